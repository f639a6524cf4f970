"""The error that the normalisation of inputs leaves to every model of Table 1."""

import math


def norm_floor(dim: int) -> float:
    r"""Least RMSE, over sigma, of vectors from N(0, sigma^2 I) that are known normalised only.

    Layer normalisation takes two things from a vector: its mean, and the norm of what is left. For
    a Gaussian both say nothing about the direction, which is kept, so that the best guess is their
    expectation: 0 for the component along the mean, and the mean of a chi distribution with
    ``dim - 1`` degrees of freedom for the norm. What remains is

    .. math:: \sqrt{\frac{1 + \mathrm{Var}(\chi_{d-1})}{d}},\qquad
        \mathrm{Var}(\chi_k) = k - 2 \left(\frac{\Gamma((k+1)/2)}{\Gamma(k/2)}\right)^2.

    It holds for every read-out, linear or not. The epsilon of the normalisation (1e-5) lets some of
    the norm through where sigma is small: there the bound is :func:`mean_floor`.

    Args:
        dim: Length of a vector, at least 2.

    Example:
        >>> from paper.floor import norm_floor
        >>> round(norm_floor(32), 4)
        0.2162
    """
    if dim < 2:
        raise ValueError(
            f"norm_floor: dim is {dim}, expected at least 2: of one number normalisation leaves 0."
        )
    k = dim - 1
    mean = math.sqrt(2) * math.exp(math.lgamma((k + 1) / 2) - math.lgamma(k / 2))
    return math.sqrt((1 + k - mean**2) / dim)


def mean_floor(dim: int) -> float:
    """The same of vectors that are known but for their mean.

    Example:
        >>> from paper.floor import mean_floor
        >>> round(mean_floor(32), 4)
        0.1768
    """
    return dim**-0.5
