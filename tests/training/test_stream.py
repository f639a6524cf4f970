"""The order of the data is a pure function of the seed, the step and the process."""

import multiprocessing
from itertools import islice
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slotmesh.training.stream import EvalBatches, Order, train_batches
from slotmesh.worlds import RandomObjects

SIZES = st.integers(1, 12)


class Numbers:
    """A source whose samples are their own numbers, and which counts what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    def sample(self, index: Any) -> torch.Tensor:
        self.asked.append(list(index))
        return torch.tensor(self.asked[-1])


def train(n: int | None, batch_size: int, start: int = 0, **options: Any) -> list[list[int]]:
    """The first 7 batches."""
    order = Order(n, batch_size=batch_size, seed=options.pop("seed", 0))
    batches = train_batches(Numbers(), order, start, **options)
    return [batch.tolist() for batch in islice(batches, 7)]


@given(batch_size=SIZES, epochs=st.integers(1, 3), spare=st.integers(0, 11), seed=st.integers(0, 9))
def test_an_epoch_shows_every_sample_at_most_once(
    batch_size: int, epochs: int, spare: int, seed: int
) -> None:
    n = 3 * batch_size + spare % batch_size
    order = Order(n, batch_size=batch_size, seed=seed)
    seen: list[list[int]] = []
    for epoch in range(epochs):
        batches = [order.batch(3 * epoch + i) for i in range(3)]
        assert all(len(batch) == batch_size for batch in batches)
        seen.append([i for batch in batches for i in batch])
        assert len({*seen[-1]}) == 3 * batch_size
        assert {*seen[-1]} <= {*range(n)}
    if n > 5 and epochs > 1:
        assert seen[0] != seen[1]


def test_what_is_left_out_changes_from_epoch_to_epoch() -> None:
    order = Order(7, batch_size=6, seed=0)
    left = {next(iter({*range(7)} - {*order.batch(epoch)})) for epoch in range(60)}
    assert left == {*range(7)}


@given(n=st.one_of(st.none(), st.integers(12, 40)), batch_size=SIZES, n_ranks=st.integers(1, 4))
def test_processes_share_each_batch(n: int | None, batch_size: int, n_ranks: int) -> None:
    batch_size = max(1, batch_size // n_ranks) * n_ranks
    n = None if n is None else max(n, batch_size)
    for step in (0, 1, 17):
        whole = Order(n, batch_size=batch_size, seed=1).batch(step)
        parts = [
            Order(n, batch_size=batch_size, seed=1, rank=rank, n_ranks=n_ranks).batch(step)
            for rank in range(n_ranks)
        ]
        assert len({len(part) for part in parts}) == 1
        assert [x for row in zip(*parts, strict=True) for x in row] == whole


@given(n=st.one_of(st.none(), st.integers(12, 40)), steps=st.lists(st.integers(0, 99), max_size=8))
def test_a_step_does_not_depend_on_what_was_asked_before(n: int | None, steps: list[int]) -> None:
    used = Order(n, batch_size=5, seed=2)
    for step in steps:
        assert used.batch(step) == Order(n, batch_size=5, seed=2).batch(step)


def test_an_endless_source_never_repeats() -> None:
    order = Order(None, batch_size=5, seed=3)
    assert [i for step in range(4) for i in order.batch(step)] == list(range(20))


def test_seeds_differ() -> None:
    assert train(40, 8, seed=0) != train(40, 8, seed=1)


def test_a_dataset_smaller_than_a_batch() -> None:
    with pytest.raises(ValueError, match=r"--data.batch-size is 4, but there are only 3"):
        Order(3, batch_size=4, seed=0)


@given(n=st.one_of(st.none(), st.integers(5, 20)), start=st.integers(0, 6), ahead=st.integers(1, 4))
def test_a_resumed_stream_goes_on_and_batches_made_ahead_are_the_same(
    n: int | None, start: int, ahead: int
) -> None:
    whole = train(n, 5)
    assert train(n, 5, start, ahead=ahead)[: 7 - start] == whole[start:]


def test_batches_made_ahead_are_one_call() -> None:
    source = Numbers()
    order = Order(None, batch_size=2, seed=0)
    batches = train_batches(source, order, 0, ahead=3)
    assert [next(batches).tolist() for _ in range(4)] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert source.asked == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]


def test_a_world_s_samples_ahead() -> None:
    world = RandomObjects(seed=0)
    order = Order(11, batch_size=4, seed=0, rank=1, n_ranks=2)
    one, three = (list(islice(train_batches(world, order, 1, ahead=ahead), 5)) for ahead in (1, 3))
    for a, b in zip(one, three, strict=True):
        assert torch.equal(a.index, b.index)
        assert torch.equal(a.inputs, b.inputs)


# Python 3.12 warns of forks beside threads, such as those of torch.
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_other_processes_read_the_same_and_end_when_closed() -> None:
    order = Order(11, batch_size=4, seed=0)
    batches = train_batches(Numbers(), order, 2, workers=1)
    found = [batch.tolist() for batch in islice(batches, 7)]
    assert found == train(11, 4, 2)
    assert multiprocessing.active_children()
    batches.close()
    assert not multiprocessing.active_children()
    batches = EvalBatches(Numbers(), 11, batch_size=4, workers=1)
    assert [batch.tolist() for batch in batches] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]
    assert not multiprocessing.active_children()


@given(n=st.integers(1, 30), batch_size=SIZES, n_ranks=st.integers(1, 4))
def test_evaluation_sees_every_sample_once(n: int, batch_size: int, n_ranks: int) -> None:
    batches = [
        EvalBatches(Numbers(), n, batch_size=batch_size, rank=rank, n_ranks=n_ranks)
        for rank in range(n_ranks)
    ]
    assert sorted(i for part in batches for batch in part for i in batch.tolist()) == [*range(n)]
    assert [part.totals for part in batches] == [batches[0].totals] * n_ranks
    assert sum(batches[0].totals) == n
    assert all(size == batch_size for size in batches[0].totals[:-1])
    # The noise of process r of k belongs to samples r, r + k, ... of each batch.
    for rank, part in enumerate(batches):
        assert len(part) == len(list(part))
        for i, batch in enumerate(part):
            first = sum(part.totals[:i])
            assert batch.tolist() == [*range(first, first + part.totals[i])][rank::n_ranks]
