"""The error that no model of Table 1 can go below, because its inputs are normalised."""

import math


def norm_floor(dim: int) -> float:
    r"""Return the lowest RMSE / sigma of predicting normalised Gaussian vectors.

    Layer normalisation removes two things from a vector drawn from N(0, sigma^2 I): its mean, and
    the norm of the rest. Both are independent of the direction, which is kept, so the best guess
    is their expectation: 0 for the component along the mean, and the mean of a chi distribution
    with ``dim - 1`` degrees of freedom for the norm. The remaining error is

    .. math:: \sqrt{\frac{1 + \mathrm{Var}(\chi_{d-1})}{d}},\qquad
        \mathrm{Var}(\chi_k) = k - 2 \left(\frac{\Gamma((k+1)/2)}{\Gamma(k/2)}\right)^2.

    The bound holds for every read-out, linear or not. For small sigma the epsilon of the
    normalisation (1e-5) lets part of the norm through; there the bound is :func:`mean_floor`.

    Args:
        dim: Length of a vector, at least 2.

    Example:
        >>> from paper.table1.floor import norm_floor
        >>> round(norm_floor(32), 4)
        0.2162
    """
    if dim < 2:
        raise ValueError(
            f"norm_floor: dim is {dim}, expected at least 2: normalisation turns one number into 0."
        )
    k = dim - 1
    mean = math.sqrt(2) * math.exp(math.lgamma((k + 1) / 2) - math.lgamma(k / 2))
    return math.sqrt((1 + k - mean**2) / dim)


def mean_floor(dim: int) -> float:
    """Return the lowest RMSE / sigma if only the mean of each vector is removed.

    Example:
        >>> from paper.table1.floor import mean_floor
        >>> round(mean_floor(32), 4)
        0.1768
    """
    return dim**-0.5
