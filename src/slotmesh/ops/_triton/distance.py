# type: ignore  # kernels are a language of their own, which only looks like Python
"""Distances of few queries to many keys: a block of keys is read once and meets every query.

Differences, not the expanded square: exact for vectors that are nearly equal.
"""

# ruff: noqa: N803

import triton
import triton.language as tl
from torch import Tensor

from slotmesh.ops._triton.tile import sum_of


@triton.jit
def _keys(keys, i_b, o_n, o_d, n, d):
    """A block of keys (N, D), zero outside."""
    at = (i_b * n + o_n)[:, None] * d + o_d[None, :]
    inside = (o_n < n)[:, None] & (o_d < d)[None, :]
    return tl.load(keys + at, mask=inside, other=0.0).to(tl.float32), at, inside


@triton.jit
def distance_kernel(
    queries, keys, cost, m, n, d, SQUARED: tl.constexpr, N: tl.constexpr, D: tl.constexpr
):
    """Costs of a block of keys: queries (B, m, d), keys (B, n, d) to cost (B, m, n)."""
    i_b = tl.program_id(0).to(tl.int64)
    o_n, o_d = tl.program_id(1) * N + tl.arange(0, N), tl.arange(0, D)
    b_k, _, _ = _keys(keys, i_b, o_n, o_d, n, d)
    for i in range(m):
        row = i_b * m + i
        b_q = tl.load(queries + row * d + o_d, mask=o_d < d, other=0.0).to(tl.float32)
        gap = b_q[None, :] - b_k
        b_c = sum_of(gap * gap, 1)
        if not SQUARED:
            b_c = tl.sqrt_rn(b_c)
        tl.store(cost + row * n + o_n, b_c, mask=o_n < n)


@triton.jit
def _pull(cost, grad, rows, o_n, m, n, i_b, SQUARED: tl.constexpr):
    """By what the gradient of each pair's cost multiplies their difference: (M, N)."""
    at = (i_b * m + rows)[:, None] * n + o_n[None, :]
    inside = (rows < m)[:, None] & (o_n < n)[None, :]
    b_g = tl.load(grad + at, mask=inside, other=0.0).to(tl.float32)
    if SQUARED:
        return 2.0 * b_g
    else:
        b_c = tl.load(cost + at, mask=inside, other=0.0)
        # At distance zero the gradient is zero.
        return tl.where(b_c > 0, b_g / tl.where(b_c > 0, b_c, 1.0), 0.0)


@triton.jit
def distance_backward_kernel(
    queries,
    keys,
    cost,
    grad,
    by_queries,
    by_keys,
    m,
    n,
    d,
    SQUARED: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    D: tl.constexpr,
):
    """Gradients of a block of keys; by_queries (B, blocks, m, d) has the part of each block.

    Differences need not be formed for each pair: what pulls a key is its own place times the sum of
    the weights, less the weighted sum of queries, a small matrix product. Places are taken from the
    first query, so that only those much nearer to each other than queries are lose digits.
    """
    i_b, i_n = tl.program_id(0).to(tl.int64), tl.program_id(1)
    o_n, o_d = i_n * N + tl.arange(0, N), tl.arange(0, D)
    origin = tl.load(queries + i_b * m * d + o_d, mask=o_d < d, other=0.0).to(tl.float32)
    b_k, at, inside = _keys(keys, i_b, o_n, o_d, n, d)
    b_k = tl.where(inside, b_k - origin[None, :], 0.0)
    b_dk = tl.full((N, D), 0.0, tl.float32)
    part = (i_b * tl.num_programs(1) + i_n) * m
    for i in range(0, m, M):
        rows = i + tl.arange(0, M)
        valid = (rows < m)[:, None] & (o_d < d)[None, :]
        b_q = tl.load(queries + (i_b * m + rows)[:, None] * d + o_d[None, :], mask=valid, other=0.0)
        b_q = tl.where(valid, b_q.to(tl.float32) - origin[None, :], 0.0)
        b_w = _pull(cost, grad, rows, o_n, m, n, i_b, SQUARED)
        b_dk += b_k * sum_of(b_w, 0)[:, None]
        b_dk -= tl.dot(tl.trans(b_w), b_q, input_precision="ieee")
        b_dq = b_q * sum_of(b_w, 1)[:, None] - tl.dot(b_w, b_k, input_precision="ieee")
        tl.store(by_queries + (part + rows)[:, None] * d + o_d[None, :], b_dq, mask=valid)
    tl.store(by_keys + at, b_dk, mask=inside)


def block(d: int, numbers: int = 4096) -> dict[str, int]:
    """Keys in a block of so many numbers, and their length rounded up.

    On an H200 with vectors of 64, blocks of 64 keys are fastest forward, and of 128 backward.
    """
    wide = max(16, 1 << (d - 1).bit_length())
    return {"N": max(16, min(128, numbers // wide)), "D": wide, "num_warps": 4}


def n_parts(n: int, d: int) -> int:
    """Blocks that the keys make backward, each with its part of the queries' gradient."""
    return -(-n // block(d, 8192)["N"])


def forward(queries: Tensor, keys: Tensor, cost: Tensor, squared: bool) -> None:
    """Fill the cost (B, m, n); all contiguous."""
    (batch, m, d), n = queries.shape, keys.shape[1]
    size = block(d)
    grid = (batch, -(-n // size["N"]))
    distance_kernel[grid](queries, keys, cost, m, n, d, squared, **size)


def backward(
    queries: Tensor,
    keys: Tensor,
    cost: Tensor,
    grad: Tensor,
    by_queries: Tensor,
    by_keys: Tensor,
    squared: bool,
) -> None:
    """Fill by_queries (B, parts, m, d) and by_keys (B, n, d); all contiguous."""
    (batch, m, d), n = queries.shape, keys.shape[1]
    distance_backward_kernel[batch, n_parts(n, d)](
        queries, keys, cost, grad, by_queries, by_keys, m, n, d, squared, M=16, **block(d, 8192)
    )
