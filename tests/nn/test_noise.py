"""Several processes draw what one would, and several models what each would."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paper.replicas.stacked import StackedGenerator
from slotmesh import SlotAttention, mesh
from slotmesh.nn import FixedNoise, LearnedNoise, Mesh
from slotmesh.nn.noise import SharedGenerator, gaussian


def generators(n_ranks: int, total: int, seed: int = 3) -> list[SharedGenerator]:
    return [
        SharedGenerator("cpu", seed=seed, rank=rank, n_ranks=n_ranks, total=total)
        for rank in range(n_ranks)
    ]


@given(
    n_ranks=st.integers(1, 5),
    total=st.integers(1, 9),
    shapes=st.lists(st.lists(st.integers(1, 4), max_size=3), min_size=1, max_size=4),
    double=st.booleans(),
)
def test_the_parts_make_up_the_whole(
    n_ranks: int, total: int, shapes: list[list[int]], double: bool
) -> None:
    dtype = torch.float64 if double else torch.float32
    plain = torch.Generator().manual_seed(3)
    parts = generators(n_ranks, total)
    for shape in shapes:
        whole = gaussian(torch.empty(total, *shape, dtype=dtype), plain)
        for rank, part in enumerate(parts):
            mine = whole[rank::n_ranks]
            drawn = gaussian(torch.empty(len(mine), *shape, dtype=dtype), part)
            assert torch.equal(drawn, mine)
            assert drawn.dtype == dtype


def test_one_process_draws_as_a_plain_generator() -> None:
    one = SharedGenerator("cpu", seed=7, rank=0, n_ranks=1, total=4)
    plain = torch.Generator().manual_seed(7)
    like = torch.empty(4, 3)
    assert torch.equal(gaussian(like, one), gaussian(like, plain))


def test_mesh_in_two_processes() -> None:
    cost = torch.rand(5, 3, 7, generator=torch.Generator().manual_seed(0))
    whole = mesh(cost, noise=0.1 * gaussian(cost, generators(1, 5)[0])).plan
    for rank, part in enumerate(generators(2, 5)):
        mine = cost[rank::2]
        assert torch.equal(mesh(mine, noise=0.1 * gaussian(mine, part)).plan, whole[rank::2])


@pytest.mark.parametrize("kind", [FixedNoise, LearnedNoise])
def test_all_noise_of_slot_attention_in_two_processes(
    kind: type[FixedNoise | LearnedNoise],
) -> None:
    """First slots, MESH and the way to the next frame, one after the other from one generator."""
    torch.manual_seed(0)
    attention = SlotAttention(6, 4, 3, Mesh(noise=0.1)).double()
    transition = kind().bind(slot_dim=4).double()
    inputs = torch.randn(5, 8, 6, dtype=torch.float64)

    def run(rows: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        slots = attention(rows, generator=generator).slots
        slots = transition(slots, generator=generator).slots
        return attention(rows, slots, generator=generator).slots

    whole = run(inputs, generators(1, 5)[0])
    other = run(inputs, generators(1, 5, seed=4)[0])
    assert not torch.allclose(whole, other)
    for rank, part in enumerate(generators(2, 5)):
        torch.testing.assert_close(run(inputs[rank::2], part), whole[rank::2])


@pytest.mark.parametrize("rank", [-1, 2])
def test_a_rank_that_is_not_there(rank: int) -> None:
    with pytest.raises(ValueError, match=f"rank is {rank}, expected 0 to 1"):
        SharedGenerator("cpu", seed=0, rank=rank, n_ranks=2, total=4)


@given(
    lead=st.lists(st.integers(1, 3), min_size=1, max_size=2),
    shapes=st.lists(st.lists(st.integers(1, 9), max_size=3), min_size=1, max_size=4),
    double=st.booleans(),
)
def test_each_model_draws_what_it_would_by_itself(
    lead: list[int], shapes: list[list[int]], double: bool
) -> None:
    dtype = torch.float64 if double else torch.float32
    n = int(torch.tensor(lead).prod())
    stacked = StackedGenerator("cpu", range(5, 5 + n), tuple(lead))
    for seeds in (range(5, 5 + n), range(n, 0, -1)):
        stacked.seed(seeds)
        plain = [torch.Generator().manual_seed(seed) for seed in seeds]
        for shape in shapes:
            # Views without memory of their own are what slot initialisers ask with.
            whole = gaussian(torch.zeros((), dtype=dtype).expand(*lead, *shape), stacked)
            assert whole.shape == (*lead, *shape)
            for row, one in zip(whole.view(n, *shape), plain, strict=True):
                assert torch.equal(row, gaussian(torch.empty(shape, dtype=dtype), one))


def test_stacked_generators_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match=r"got 3 seeds for a shape of \(2,\), expected one for"):
        StackedGenerator("cpu", [1, 2, 3], (2,))
    with pytest.raises(ValueError, match="got 0 seeds"):
        StackedGenerator("cpu", [])
    with pytest.raises(
        ValueError, match=r"asked for noise of shape \(3, 4\), .* begins with \(2,\)"
    ):
        gaussian(torch.zeros(3, 4), StackedGenerator("cpu", [1, 2]))
