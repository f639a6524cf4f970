"""A kernel that reduces with two functions, for a test; imported as kernels are."""

import triton
import triton.language as tl


@triton.jit
def reduce_kernel(x, out, SIZE: tl.constexpr, OWN: tl.constexpr, THEIRS: tl.constexpr):
    values = tl.load(x + tl.arange(0, SIZE))
    tl.store(out, tl.reduce(values, 0, OWN))
    tl.store(out + 1, tl.reduce(values, 0, THEIRS))
