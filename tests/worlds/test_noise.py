"""Noise: numbers at lattice points by whole-number arithmetic, and what lies between them."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from slotmesh.worlds.render.noise import _fused, lattice, layers, smooth


def number(x: int, y: int, z: int = 0, salt: int = 0) -> float:
    """The hash of a cell in Python's whole numbers, cut to 32 bits as signed ones are."""

    def cut(k: int) -> int:
        return (k + (1 << 31)) % (1 << 32) - (1 << 31)

    key = cut(x * 374761393 + y * 668265263 + z * 974634497 + salt * 69069)
    key = cut((key ^ (key >> 13)) * 1274126177)
    key = cut((key ^ (key >> 15)) * 1103515245)
    return ((key >> 8) & 0xFFFF) / 65535


CELL = st.integers(-2000, 2000)


@given(CELL, CELL, st.lists(st.integers(0, 30), min_size=1, max_size=4))
def test_numbers_of_cells(x: int, y: int, salts: list[int]) -> None:
    found = lattice(torch.tensor([float(x)]), torch.tensor([float(y)]), *salts)
    assert found.shape == (len(salts), 1)
    np.testing.assert_allclose(found[:, 0], [number(x, y, salt=s) for s in salts], rtol=1e-6)


@given(st.tuples(CELL, CELL, CELL), st.tuples(*[st.floats(0, 0.99)] * 3))
def test_noise_lies_between_its_corners(cell: tuple[int, ...], inside: tuple[float, ...]) -> None:
    p = [torch.tensor([c + f], dtype=torch.float32) for c, f in zip(cell, inside, strict=True)]
    low = [int(x.floor()) for x in p]
    part = [float(x - i) for x, i in zip(p, low, strict=True)]
    t = [f * f * (3 - 2 * f) for f in part]
    expected = sum(
        np.prod([t[i] if c[i] else 1 - t[i] for i in range(3)])
        * number(low[0] + c[0], low[1] + c[1], low[2] + c[2])
        for c in np.ndindex(2, 2, 2)
    )
    assert abs(float(smooth((p[0], p[1], p[2]))) - expected) < 1e-5


def test_a_plane_is_space_at_height_zero() -> None:
    x, y = 40 * torch.rand(2, 3, 500, generator=torch.Generator().manual_seed(0)) - 20
    zero = torch.zeros_like(x)
    assert torch.equal(smooth((x, y)), smooth((x, y, zero)))
    assert torch.equal(_fused((x, y, zero)), smooth((x, y)))
    assert torch.equal(layers((x, y), smooth), layers((x, y, zero), smooth))


def test_layers_are_weighted_noise() -> None:
    x, y, z = 9 * torch.rand(3, 200, generator=torch.Generator().manual_seed(1))
    one, two = smooth((x, y, z)), smooth((2 * x + 17, 2 * y, 2 * z))
    torch.testing.assert_close(layers((x, y, z), smooth, 2), (one + 0.5 * two) / 1.5)
