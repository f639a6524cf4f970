"""Random numbers by hashing: known values, uniformity, independence."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from slotmesh.worlds import _random
from slotmesh.worlds._random import bits, integers, uniform

FULL = (1 << 64) - 1


def test_mixing_is_splitmix64() -> None:
    # The published outputs of splitmix64 for the seed 1234567.
    known = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    state = torch.tensor(1234567) + torch.arange(1, 6) * _random._GOLDEN
    assert [x & FULL for x in _random._mix(state).tolist()] == known


def test_hashing_a_python_integer_is_the_same_mixing() -> None:
    for x in (0, 1, 1234567, FULL):
        signed = x - (1 << 64) if x >> 63 else x
        expected = _random._mix(torch.tensor(signed) + _random._GOLDEN)
        assert _random._hash_int(x) == int(expected)


@given(
    st.integers(-(2**70), 2**70),
    st.lists(st.integers(0, 2**62), min_size=1, max_size=8),
    st.integers(0, 7),
)
def test_a_number_does_not_depend_on_its_neighbours(seed: int, index: list[int], at: int) -> None:
    at %= len(index)
    together = bits(seed, torch.tensor(index), "a", (3, 2))
    alone = bits(seed, torch.tensor([index[at]]), "a", (3, 2))
    assert torch.equal(together[at], alone[0])
    longer = bits(seed, torch.tensor([index[at]]), "a", (8,))
    assert torch.equal(longer[0, :6], alone.flatten())


@pytest.mark.parametrize("n", [2, 3, 5, 32, 40, 1000])
def test_integers_are_uniform(n: int) -> None:
    drawn = integers(0, torch.arange(100_000), "n", n)
    assert int(drawn.min()) == 0
    assert int(drawn.max()) == n - 1
    assert stats.chisquare(torch.bincount(drawn, minlength=n).numpy()).pvalue > 1e-3


def test_uniform_numbers_are_uniform() -> None:
    along_index = uniform(1, torch.arange(100_000), "u")
    along_shape = uniform(1, torch.tensor([5]), "u", (100_000,))[0]
    for numbers in (along_index, along_shape):
        assert float(numbers.min()) >= 0
        assert float(numbers.max()) < 1
        assert stats.kstest(numbers.numpy(), "uniform").pvalue > 1e-3
    assert torch.equal(along_index * 2.0**53, (along_index * 2.0**53).round())


@pytest.mark.parametrize("other", ["seed", "index", "name", "place"])
def test_neighbouring_streams_differ_in_half_of_the_bits(other: str) -> None:
    index = torch.arange(20_000)
    base = bits(3, index, "a", (2,))
    changed = {
        "seed": bits(4, index, "a", (2,)),
        "index": bits(3, index + 1, "a", (2,)),
        "name": bits(3, index, "b", (2,)),
        "place": base.roll(1, dims=1),
    }[other]
    different = base[:, 0] ^ changed[:, 0]
    for place in range(64):
        share = float(((different >> place) & 1).double().mean())
        # Five standard deviations of a fair coin thrown 20,000 times.
        assert abs(share - 0.5) < 5 * 0.5 / 20_000**0.5


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_gpu_draws_the_same_bits() -> None:
    index = torch.arange(0, 10**12, 10**8 + 7)
    on_gpu = bits(9, index.cuda(), "a", (5,)).cpu()
    assert torch.equal(on_gpu, bits(9, index, "a", (5,)))
    assert torch.equal(uniform(9, index.cuda(), "a").cpu(), uniform(9, index, "a"))
