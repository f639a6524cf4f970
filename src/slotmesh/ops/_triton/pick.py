# type: ignore  # kernels are a language of their own, which only looks like Python
"""What the exact solvers do to vectors in registers: read one entry, find the smallest."""

import triton
import triton.language as tl

from slotmesh.ops._triton.tile import max_of, sum_of


@triton.jit
def min_of(x, axis: tl.constexpr):
    """Smallest along an axis; as for sum_of, not tl.min."""
    return tl.reduce(x, axis, tl.standard._elementwise_min)


@triton.jit
def entry(x, index, i):
    """x[i] of a vector with its indices; 0 where there is no i."""
    return sum_of(tl.where(index == i, x, 0), 0)


@triton.jit
def any_of(x, axis: tl.constexpr):
    """Whether something along an axis is true."""
    return max_of(tl.where(x, 1, 0), axis) > 0
