"""What holds in every world that makes pictures, and how worlds are found by name."""

import re
import weakref
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slotmesh.worlds import (
    WORLDS,
    MultiDSprites,
    RandomObjects,
    Sample,
    VectorSample,
    World,
    make_world,
    register_world,
)

PICTURES = [name for name in WORLDS if name != "random-objects"]
FAR = 10**12


@pytest.fixture(scope="module", params=PICTURES)
def made(request: pytest.FixtureRequest) -> tuple[World, Sample]:
    world = make_world(request.param, seed=3)
    assert isinstance(world, World)
    assert world.name == request.param
    return world, world.sample([FAR, 5, FAR + 1])


def test_the_record_has_its_types_and_shapes(made: tuple[World, Sample]) -> None:
    world, sample = made
    lead = sample.present.shape[:-1]
    side = sample.image.shape[-1]
    assert sample.image.shape == (*lead, 3, side, side)
    assert sample.mask.shape == (*lead, side, side)
    assert sample.present.shape[-1] == world.max_objects
    assert sample.image.dtype == sample.mask.dtype == torch.uint8
    assert sample.present.dtype == torch.bool
    assert sample.index.tolist() == [FAR, 5, FAR + 1]


def test_every_pixel_is_background_or_a_present_object(made: tuple[World, Sample]) -> None:
    _, sample = made
    masks = sample.mask.flatten(0, -3).numpy()
    for mask, present in zip(masks, sample.present.flatten(0, -2), strict=True):
        expected = {k + 1 for k, real in enumerate(present.tolist()) if real}
        assert set(np.unique(mask)) - {0} == expected


def test_a_sample_alone_is_the_same(made: tuple[World, Sample]) -> None:
    world, sample = made
    alone = world.sample([FAR + 1])
    for name, column in sample.objects.items():
        assert torch.equal(column[2:], alone.objects[name]), name
    assert torch.equal(sample.present[2:], alone.present)
    difference = sample.image[2:].to(torch.int16) - alone.image.to(torch.int16)
    assert int(difference.abs().max()) <= 1


def test_worlds_are_found_by_name() -> None:
    assert make_world("clevrer-l").frames == (0, 127)  # pyright: ignore
    assert make_world("random-objects", sigma=0.1, seed=4).seed == 4
    with pytest.raises(ValueError, match="no world 'clever', expected one of multi-dsprites, "):
        make_world("clever")
    with pytest.raises(ValueError, match=r"multi-dsprites does not take these settings: .*colour"):
        make_world("multi-dsprites", colour=1)


def test_every_entry_says_what_the_commands_need() -> None:
    for name, entry in WORLDS.items():
        assert entry.description, name
        assert (entry.reader is None) == (name == "random-objects")
        table = {} if entry.reader is None else make_world(name).sample([0]).objects  # pyright: ignore
        assert set(entry.classes) <= set(table), name
        for column, names in entry.classes.items():
            assert int(table[column].max()) < len(names), (name, column)


def test_a_world_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    class Tiny(MultiDSprites):
        name = "tiny"

    monkeypatch.setattr("slotmesh.worlds.registry.WORLDS", dict(WORLDS))
    register_world("tiny", Tiny, description="small sprites", settings={"size": 32})
    world = make_world("tiny", seed=2)
    assert isinstance(world, Tiny)
    assert world.sample([0]).image.shape[-1] == 32
    with pytest.raises(ValueError, match="a world named 'tiny' already exists"):
        register_world("tiny", Tiny)
    with pytest.raises(ValueError, match="a world named 'clevr' already exists"):
        register_world("clevr", Tiny)


def tensors(record: Sample | VectorSample) -> dict[str, torch.Tensor]:
    """All tensors of a record, by name."""
    parts = dict(vars(record))
    return parts | parts.pop("objects", {})


@pytest.fixture(scope="module", params=["multi-dsprites", "clevrer-s", "random-objects"])
def record(request: pytest.FixtureRequest) -> Sample | VectorSample:
    return make_world(request.param, seed=1).sample(range(20, 25))


def test_a_slice_of_a_record_is_one_too(record: Sample | VectorSample) -> None:
    whole = tensors(record)
    for rows in (slice(2), slice(1, 4), slice(-2, None), slice(None, None, 2), slice(9, 12)):
        part = record[rows]
        assert type(part) is type(record)
        assert len(part) == len(range(5)[rows])
        found = tensors(part)
        assert found.keys() == whole.keys()
        for name, tensor in found.items():
            assert torch.equal(tensor, whole[name][rows]), name
    chosen = torch.tensor([4, 0])
    assert record[chosen].index.tolist() == [24, 20]
    assert all(torch.equal(x, whole[name][chosen]) for name, x in tensors(record[chosen]).items())
    for wrong in (1, None, (slice(2), slice(2)), torch.tensor(1)):
        with pytest.raises(TypeError, match="expected a slice"):
            record[wrong]  # pyright: ignore
    with pytest.raises(TypeError, match="expected a slice"):
        list(record)  # pyright: ignore


@pytest.mark.parametrize("kind", [MultiDSprites, RandomObjects])
@given(st.integers(1, 4), st.integers(0, 50), st.integers(1, 4))
def test_batches_are_the_same_however_many_are_drawn_at_once(
    kind: type[MultiDSprites | RandomObjects], size: int, start: int, ahead: int
) -> None:
    world = kind(seed=5)
    found = islice(world.batches(size, start, ahead=ahead), 5)
    for first, batch in zip(range(start, start + 5 * size, size), found, strict=True):
        expected = tensors(world.sample(range(first, first + size)))
        for name, tensor in tensors(batch).items():
            assert torch.equal(tensor, expected[name]), name


def test_what_was_drawn_is_let_go_of_before_the_next() -> None:
    class Watched(RandomObjects):
        drawn: weakref.ref[VectorSample] | None = None
        lengths: list[int] = []  # noqa: RUF012

        def make(self, index: torch.Tensor) -> VectorSample:
            assert self.drawn is None or self.drawn() is None
            made = super().make(index)
            self.drawn = weakref.ref(made)
            self.lengths.append(len(made))
            return made

    world = Watched(dim=2)
    for i, batch in enumerate(islice(world.batches(3, ahead=4), 12)):
        assert len(batch) == 3
        assert len(world.lengths) == i // 4 + 1
    assert world.lengths == [12] * 3


@pytest.mark.parametrize(
    "index",
    [range(4, 9), range(9, 4, -2), [3, 1, 3], (7,), np.array([2, 5]), torch.tensor([6, 0])],
)
def test_an_index_is_anything_with_whole_numbers(index: Any) -> None:
    sample = RandomObjects(dim=2).sample(index)
    assert sample.index.dtype == torch.int64
    assert sample.index.tolist() == list(index)


@pytest.mark.parametrize(
    ("index", "shape"),
    [
        ([], "(0,)"),
        (range(3, 3), "(0,)"),
        ([[1, 2]], "(1, 2)"),
        (5, "()"),
    ],
)
def test_a_bad_index_is_told(index: Any, shape: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"the index has shape {shape}, expected")):
        RandomObjects(dim=2).sample(index)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_drawing_does_not_wait_for_the_gpu(no_waiting: Any) -> None:
    world = RandomObjects(dim=2, device="cuda")
    there = torch.arange(3, device="cuda")
    world.sample(range(3))  # the first call may set things up
    with no_waiting():
        found = [world.sample(index) for index in (range(3), [0, 1, 2], torch.arange(3), there)]
        with pytest.raises(ValueError, match="at least 0"):
            world.sample([0, -1])
    for sample in found:
        assert torch.equal(sample.inputs, found[0].inputs)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_only_hidden_sprites_are_waited_for(no_waiting: Any) -> None:
    world = MultiDSprites(device="cuda")
    index = torch.arange(64, device="cuda")
    factors = world._factors(index)
    x, y = world._draw_places(index, 0)
    seen = world._see(factors, x, y)
    expected = world.sample(index)
    world._place = lambda *_: (x, y, seen)  # pyright: ignore
    with no_waiting():
        found = world.sample([*range(64)])
    once = (expected.objects["x"] == found.objects["x"]).all(1)
    assert 32 < once.sum() < 64
    assert torch.equal(found.image[once], expected.image[once])


def test_bad_batches_are_told_at_once() -> None:
    world = RandomObjects()
    with pytest.raises(ValueError, match="batch_size is 0, expected a whole number of at least 1"):
        world.batches(0)
    with pytest.raises(ValueError, match="start is -1"):
        world.batches(8, start=-1)
    with pytest.raises(ValueError, match="ahead is 0"):
        world.batches(8, ahead=0)
