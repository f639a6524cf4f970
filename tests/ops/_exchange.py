"""A kernel that only exchanges sums; imported once it is known whether it is interpreted."""

import triton
import triton.language as tl

from slotmesh.ops._triton.exchange import exchange, exchange_pair


@triton.jit
def exchange_kernel(x, y, mail, part, C: tl.constexpr):
    """One part's side: the largest x, then the sums of x and y; in place."""
    rows = tl.arange(0, C.M)
    first, second = tl.load(x + rows), tl.load(y + rows)
    post = (mail, part, 2 * C.split * C.M)
    most, turn = exchange(first, post, part * 0, C.M, C, True)
    first, second, turn = exchange_pair(first, second, post, turn, C)
    tl.store(x + rows, first)
    tl.store(y + rows, second + 100 * most)
