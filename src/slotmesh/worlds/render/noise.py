"""Random numbers at lattice points of space, and smooth noise between them."""

import torch
from torch import Tensor

from slotmesh.worlds.render.vec import Vec


def lattice(x: Tensor, y: Tensor, z: Tensor | int = 0, salt: int = 0) -> Tensor:
    """A number in [0, 1] for each cell: float32 from whole-numbered float coordinates."""
    key = _whole(x) * 374761393 + _whole(y) * 668265263 + salt * 69069
    key = key + (z * 974634497 if isinstance(z, int) else _whole(z) * 974634497)
    key = (key ^ (key >> 13)) * 1274126177
    key = (key ^ (key >> 15)) * 1103515245
    return ((key >> 8) & 0xFFFF).float() * (1 / 65535)


def smooth(p: Vec) -> Tensor:
    """Noise in [0, 1] that varies over about one unit."""
    low = [x.floor() for x in p]
    fx, fy, fz = (_fade(x - i) for x, i in zip(p, low, strict=True))
    x, y, z = low
    x1, y1, z1 = x + 1, y + 1, z + 1
    bottom = _mix(
        _mix(lattice(x, y, z), lattice(x1, y, z), fx),
        _mix(lattice(x, y1, z), lattice(x1, y1, z), fx),
        fy,
    )
    top = _mix(
        _mix(lattice(x, y, z1), lattice(x1, y, z1), fx),
        _mix(lattice(x, y1, z1), lattice(x1, y1, z1), fx),
        fy,
    )
    return _mix(bottom, top, fz)


def layers(p: Vec, octaves: int = 3) -> Tensor:
    """Noise in [0, 1] of several scales, each half as wide and half as strong."""
    total, strength, whole = torch.zeros_like(p[0]), 1.0, 0.0
    for i in range(octaves):
        step = 2.0**i
        # Shifted, so that the layers' lattices do not line up.
        total = total + strength * smooth((p[0] * step + 17 * i, p[1] * step, p[2] * step))
        whole, strength = whole + strength, strength / 2
    return total / whole


def _fade(x: Tensor) -> Tensor:
    return x * x * (3 - 2 * x)


def _mix(a: Tensor, b: Tensor, t: Tensor) -> Tensor:
    return a + (b - a) * t


def _whole(x: Tensor) -> Tensor:
    # Whole numbers in 32 bits wrap alike everywhere.
    return x.to(torch.int32)
