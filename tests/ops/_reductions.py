"""Kernels that reduce with two functions each, for a test; imported as kernels are."""

import triton
import triton.language as tl

from slotmesh.ops._triton.tile import ADD, LARGER, _add, _larger


@triton.jit
def add_kernel(x, out, SIZE: tl.constexpr):
    values = tl.load(x + tl.arange(0, SIZE))
    tl.store(out, tl.reduce(values, 0, _add))
    tl.store(out + 1, tl.reduce(values, 0, ADD))


@triton.jit
def larger_kernel(x, out, SIZE: tl.constexpr):
    values = tl.load(x + tl.arange(0, SIZE))
    tl.store(out, tl.reduce(values, 0, _larger))
    tl.store(out + 1, tl.reduce(values, 0, LARGER))
