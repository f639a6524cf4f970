"""Gaussian numbers that are bit-identical on every device and in every batch.

Library logarithms and error functions differ in their last digits between devices, and even
between the middle and the end of a vector. The inverse normal distribution is computed here from
sums, products, quotients and square roots only, which are correctly rounded everywhere.
"""

import math

import torch
from torch import Tensor

from slotmesh.worlds._random import bits

# Wichura (1988), algorithm AS 241, PPND16: numerators and denominators, lowest power first; the
# relative error is about 1e-16. The last two pairs are for the tails.
# fmt: off
_CENTRE = (
    (3.3871328727963666080, 1.3314166789178437745e2, 1.9715909503065514427e3,
     1.3731693765509461125e4, 4.5921953931549871457e4, 6.7265770927008700853e4,
     3.3430575583588128105e4, 2.5090809287301226727e3),
    (1.0, 4.2313330701600911252e1, 6.8718700749205790830e2,
     5.3941960214247511077e3, 2.1213794301586595867e4, 3.9307895800092710610e4,
     2.8729085735721942674e4, 5.2264952788528545610e3),
)
_TAIL = (
    (1.42343711074968357734, 4.63033784615654529590, 5.76949722146069140550,
     3.64784832476320460504, 1.27045825245236838258, 2.41780725177450611770e-1,
     2.27238449892691845833e-2, 7.74545014278341407640e-4),
    (1.0, 2.05319162663775882187, 1.67638483018380384940,
     6.89767334985100004550e-1, 1.48103976427480074590e-1, 1.51986665636164571966e-2,
     5.47593808499534494600e-4, 1.05075007164441684324e-9),
)
_FAR_TAIL = (
    (6.65790464350110377720, 5.46378491116411436990, 1.78482653991729133580,
     2.96560571828504891230e-1, 2.65321895265761230930e-2, 1.24266094738807843860e-3,
     2.71155556874348757815e-5, 2.01033439929228813265e-7),
    (1.0, 5.99832206555887937690e-1, 1.36929880922735805310e-1,
     1.48753612908506148525e-2, 7.86869131145613259100e-4, 1.84631831751005468180e-5,
     1.42151175831644588870e-7, 2.04426310338993978564e-15),
)
# fmt: on


def normal(seed: int, index: Tensor, name: str, shape: tuple[int, ...] = ()) -> Tensor:
    """Numbers from N(0, 1): float64 ``(len(index), *shape)``.

    Args:
        seed: The world's seed.
        index: int64 ``(batch)``, the samples.
        name: What the numbers are for; each name has independent numbers.
        shape: Shape of the numbers per sample.
    """
    # 52 bits plus a half: never 0 or 1, and symmetric around 1/2.
    whole = (bits(seed, index, name, shape) >> 12) & ((1 << 52) - 1)
    return quantile((whole.to(torch.float64) + 0.5) * 2.0**-52)


def quantile(p: Tensor) -> Tensor:
    """The inverse of the normal distribution function, elementwise, for float64 in (0, 1)."""
    q = p - 0.5
    near = 0.180625 - q * q
    centre = q * _ratio(_CENTRE, near)
    far = torch.sqrt(-log(torch.minimum(p, 1 - p)))
    tail = torch.where(far <= 5, _ratio(_TAIL, far - 1.6), _ratio(_FAR_TAIL, far - 5))
    return torch.where(near >= 0, centre, torch.where(q < 0, -tail, tail))


def log(x: Tensor) -> Tensor:
    """The natural logarithm of positive float64 numbers, to about 1e-16."""
    mantissa, exponent = torch.frexp(x)
    low = mantissa < math.sqrt(0.5)
    mantissa = torch.where(low, mantissa + mantissa, mantissa)
    exponent = exponent.to(torch.float64) - low.to(torch.float64)
    # log m = 2 (s + s^3/3 + s^5/5 + ...) with s = (m - 1) / (m + 1), at most 0.172.
    s = (mantissa - 1) / (mantissa + 1)
    series = _polynomial(tuple(2 / (2 * k + 1) for k in range(12)), s * s)
    return exponent * math.log(2) + s * series


def _ratio(parts: tuple[tuple[float, ...], tuple[float, ...]], x: Tensor) -> Tensor:
    return _polynomial(parts[0], x) / _polynomial(parts[1], x)


def _polynomial(coefficients: tuple[float, ...], x: Tensor) -> Tensor:
    """Horner's rule, one operation at a time: none may be fused with the next."""
    value = torch.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        value = value * x
        value = value + coefficient
    return value
