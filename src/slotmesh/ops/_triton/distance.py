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
def _pull(cost, grad, row, o_n, n, SQUARED: tl.constexpr):
    """What the gradient of a pair's cost is to be multiplied with their difference: (N)."""
    b_g = tl.load(grad + row * n + o_n, mask=o_n < n, other=0.0).to(tl.float32)
    if SQUARED:
        return 2.0 * b_g
    b_c = tl.load(cost + row * n + o_n, mask=o_n < n, other=0.0)
    # At distance zero the gradient is zero.
    return tl.where(b_c > 0, b_g / tl.where(b_c > 0, b_c, 1.0), 0.0)


@triton.jit
def by_keys_kernel(
    queries,
    keys,
    cost,
    grad,
    by_keys,
    m,
    n,
    d,
    SQUARED: tl.constexpr,
    N: tl.constexpr,
    D: tl.constexpr,
):
    """Gradient by a block of keys, which meets every query."""
    i_b = tl.program_id(0).to(tl.int64)
    o_n, o_d = tl.program_id(1) * N + tl.arange(0, N), tl.arange(0, D)
    b_k, at, inside = _keys(keys, i_b, o_n, o_d, n, d)
    b_dk = tl.full((N, D), 0.0, tl.float32)
    for i in range(m):
        row = i_b * m + i
        b_q = tl.load(queries + row * d + o_d, mask=o_d < d, other=0.0).to(tl.float32)
        b_dk -= _pull(cost, grad, row, o_n, n, SQUARED)[:, None] * (b_q[None, :] - b_k)
    tl.store(by_keys + at, b_dk, mask=inside)


@triton.jit
def by_queries_kernel(
    queries,
    keys,
    cost,
    grad,
    by_queries,
    m,
    n,
    d,
    chunks,
    SQUARED: tl.constexpr,
    N: tl.constexpr,
    D: tl.constexpr,
):
    """Gradient by one query from some chunks of the keys: a part of (B, parts, m, d)."""
    i_b, i_m, i_p = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    row, o_d = i_b * m + i_m, tl.arange(0, D)
    b_q = tl.load(queries + row * d + o_d, mask=o_d < d, other=0.0).to(tl.float32)
    b_dq = tl.full((N, D), 0.0, tl.float32)
    # One reduction at the end: in between it would cost more than all the rest.
    for i in range(chunks):
        o_n = (i_p * chunks + i) * N + tl.arange(0, N)
        b_k, _, _ = _keys(keys, i_b, o_n, o_d, n, d)
        b_dq += _pull(cost, grad, row, o_n, n, SQUARED)[:, None] * (b_q[None, :] - b_k)
    part = (i_b * tl.num_programs(2) + i_p) * m + i_m
    tl.store(by_queries + part * d + o_d, sum_of(b_dq, 0), mask=o_d < d)


# Chunks of keys that one program goes through.
CHUNKS = 8


def block(d: int) -> dict[str, int]:
    """Keys in a block and their length rounded up: 4,096 numbers for 4 warps."""
    wide = max(16, 1 << (d - 1).bit_length())
    return {"N": max(16, 4096 // wide), "D": wide, "num_warps": 4}


def n_parts(n: int, d: int) -> int:
    """Programs that share the keys of one query."""
    return -(-n // (CHUNKS * block(d)["N"]))


def forward(queries: Tensor, keys: Tensor, cost: Tensor, squared: bool) -> None:
    """Fill the cost (B, m, n); all contiguous."""
    (batch, m, d), n, size = queries.shape, keys.shape[1], block(queries.shape[2])
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
    (batch, m, d), n, size = queries.shape, keys.shape[1], block(queries.shape[2])
    grid = (batch, m, n_parts(n, d))
    by_queries_kernel[grid](queries, keys, cost, grad, by_queries, m, n, d, CHUNKS, squared, **size)
    grid = (batch, -(-n // size["N"]))
    by_keys_kernel[grid](queries, keys, cost, grad, by_keys, m, n, d, squared, **size)
