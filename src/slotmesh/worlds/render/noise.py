"""Random numbers at lattice points, and smooth noise between them.

Kernel launches dominate on a GPU, so corners, octaves and salts are dimensions of tensors.
"""

from collections.abc import Callable

import torch
from torch import Tensor

Point = tuple[Tensor, ...]
"""Two or three coordinates of the same shape; the third is 0 if it is left out."""
Noise = Callable[[Point], Tensor]
"""`smooth`, or a faster equivalent."""

_PRIMES = (374761393, 668265263, 974634497)
_SALT = 69069


def lattice(x: Tensor, y: Tensor, *salts: int) -> Tensor:
    """Random numbers in [0, 1] per cell: float32 ``(len(salts), ...)``, from integral floats."""
    key = _whole(x) * _PRIMES[0] + _whole(y) * _PRIMES[1]
    return _number(torch.stack([key + salt * _SALT for salt in salts]))


def smooth(p: Point) -> Tensor:
    """Noise in [0, 1] that varies over about one unit, of the coordinates' shape."""
    if torch.compiler.is_compiling():
        return _fused(p)
    place = torch.stack(p)
    low = place.floor()
    fade = _fade(place.sub_(low))
    keys: Tensor | None = None
    for i, whole in enumerate(_whole(low)):
        key = whole * _PRIMES[i]
        pair = torch.stack((key, key + _PRIMES[i]))
        # The first coordinate's corners come last.
        keys = pair if keys is None else pair.view(2, *[1] * i, *whole.shape) + keys
    assert keys is not None
    value = _number(keys)
    for i, t in enumerate(fade):
        a, b = value.unbind(len(p) - 1 - i)
        value = _mix(a, b, t)
    return value


def _fused(p: Point) -> Tensor:
    """`smooth` corner by corner, which the compiler turns into one kernel."""
    low = [x.floor() for x in p]
    sides = [
        (key, key + prime)
        for key, prime in ((_whole(x) * k, k) for x, k in zip(low, _PRIMES, strict=False))
    ]
    keys = list(sides[0])
    for pair in sides[1:]:
        keys = [side + key for side in pair for key in keys]
    values = [_number(key) for key in keys]
    for x, i in zip(p, low, strict=True):
        t = _fade(x - i)
        values = [_mix(a, b, t) for a, b in zip(values[::2], values[1::2], strict=True)]
    return values[0]


def layers(p: Point, noise: Noise, octaves: int = 3) -> Tensor:
    """Noise in [0, 1] of several scales, each half as wide and half as strong."""
    # Shifted, so that the layers' lattices do not line up.
    first = torch.stack([p[0] * 2.0**i + 17 * i for i in range(octaves)])
    rest = [torch.stack([x * 2.0**i for i in range(octaves)]) for x in p[1:]]
    total, whole = 0.0, 0.0
    for i, value in enumerate(noise((first, *rest))):
        total, whole = total + 0.5**i * value, whole + 0.5**i
    assert isinstance(total, Tensor)
    return total / whole


def _number(key: Tensor) -> Tensor:
    key = (key ^ (key >> 13)) * 1274126177
    key = (key ^ (key >> 15)) * 1103515245
    return ((key >> 8) & 0xFFFF).float() * (1 / 65535)


def _fade(x: Tensor) -> Tensor:
    return x * x * (3 - 2 * x)


def _mix(a: Tensor, b: Tensor, t: Tensor) -> Tensor:
    return a + (b - a) * t


def _whole(x: Tensor) -> Tensor:
    # 32-bit integers wrap the same way everywhere.
    return x.to(torch.int32)
