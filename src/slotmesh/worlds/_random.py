"""Random numbers as a pure function of (seed, index, name), the same on every device.

Each sample has its own stream, found by hashing: drawing sample one million needs none before it,
and its neighbours in the batch do not matter. Integers are exact everywhere, and floats are made
from them with correctly rounded operations only.
"""

import zlib

import torch
from torch import Tensor

# Odd constants of the splitmix64 generator, as signed 64-bit integers.
_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_MIX_1 = 0xBF58476D1CE4E5B9 - (1 << 64)
_MIX_2 = 0x94D049BB133111EB - (1 << 64)


def uniform(seed: int, index: Tensor, name: str, shape: tuple[int, ...] = ()) -> Tensor:
    """Numbers in [0, 1): float64 ``(len(index), *shape)``, multiples of 2^-53.

    Args:
        seed: The world's seed.
        index: int64 ``(batch)``, the samples.
        name: What the numbers are for; each name has independent numbers.
        shape: Shape of the numbers per sample; a longer one starts with the same numbers.
    """
    return _logical_shift(bits(seed, index, name, shape), 11).to(torch.float64) * 2.0**-53


def integers(seed: int, index: Tensor, name: str, n: int, shape: tuple[int, ...] = ()) -> Tensor:
    """Whole numbers from 0 to n - 1: int64 ``(len(index), *shape)``, uniform for n << 2^32."""
    # The high half times n, over 2^32: unbiased to n / 2^32.
    return (_logical_shift(bits(seed, index, name, shape), 32) * n) >> 32


def distinct(seed: int, index: Tensor, name: str, n: int) -> Tensor:
    """The numbers from 0 to n - 1 in a random order: int64 ``(len(index), n)``."""
    return bits(seed, index, name, (n,)).argsort(-1)


def bits(seed: int, index: Tensor, name: str, shape: tuple[int, ...] = ()) -> Tensor:
    """64 random bits per number: int64 ``(len(index), *shape)``."""
    count = 1
    for size in shape:
        count *= size
    # Two rounds per coordinate keep streams of neighbouring seeds, names and indices apart.
    key = _hash_int(_hash_int(seed & ((1 << 64) - 1)) ^ zlib.crc32(name.encode()))
    stream = _mix(index.to(torch.int64) * _GOLDEN + key)
    counter = torch.arange(1, count + 1, dtype=torch.int64, device=index.device)
    return _mix(stream.unsqueeze(-1) + counter * _GOLDEN).reshape(len(index), *shape)


def _mix(x: Tensor) -> Tensor:
    """The finaliser of splitmix64, elementwise; integer multiplication wraps."""
    x = (x ^ _logical_shift(x, 30)) * _MIX_1
    x = (x ^ _logical_shift(x, 27)) * _MIX_2
    return x ^ _logical_shift(x, 31)


def _logical_shift(x: Tensor, by: int) -> Tensor:
    """Shift right, filling with zeros (torch's shift fills with the sign)."""
    return (x >> by) & ((1 << (64 - by)) - 1)


def _hash_int(x: int) -> int:
    """The same finaliser on a Python integer, as a signed 64-bit result."""
    full = (1 << 64) - 1
    x = (x + _GOLDEN) & full
    x = ((x ^ (x >> 30)) * (_MIX_1 & full)) & full
    x = ((x ^ (x >> 27)) * (_MIX_2 & full)) & full
    x ^= x >> 31
    return x - (1 << 64) if x >> 63 else x
