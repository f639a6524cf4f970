# type: ignore  # kernels are a language of their own, which only looks like Python
"""Small systems of linear equations in registers."""

# ruff: noqa: N803

import triton
import triton.language as tl

from slotmesh.ops._triton.pick import entry
from slotmesh.ops._triton.tile import sum_of


@triton.jit
def eliminate(h, g, m, M: tl.constexpr):
    """Solve h x = g by Gauss-Jordan; h (M, M) is positive definite, so no row need be swapped.

    Rows from m on are those of a diagonal matrix.
    """
    rows = tl.arange(0, M)
    diagonal = rows[:, None] == rows[None, :]
    for k in range(m):
        row = sum_of(tl.where((rows == k)[:, None], h, 0.0), 0)
        column = sum_of(tl.where((rows == k)[None, :], h, 0.0), 1)
        factor = tl.where(rows == k, 0.0, column / entry(column, rows, k))
        h -= factor[:, None] * row[None, :]
        g -= factor * entry(g, rows, k)
    return g / sum_of(tl.where(diagonal, h, 0.0), 1)
