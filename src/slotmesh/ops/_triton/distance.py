# type: ignore  # Triton's language only looks like Python
"""Distances of few queries to many keys: a block of keys is read once for all queries.

From differences, not the expanded square: exact for vectors that are nearly equal.
"""

# ruff: noqa: N803

import triton
import triton.language as tl
from torch import Tensor

from slotmesh.ops._triton.launch import run_on
from slotmesh.ops._triton.tile import sum_of


@triton.jit
def _mine(blocks):
    """The batch element and the block of this program, of which there can be over 65,535."""
    return (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks


@triton.jit
def _at(i_b, o_n, o_d, n, d):
    """Offsets of a block of keys (N, D), and which of them exist."""
    at = (i_b * n + o_n)[:, None] * d + o_d[None, :]
    return at, (o_n < n)[:, None] & (o_d < d)[None, :]


@triton.jit
def distance_kernel(
    queries, keys, cost, m, n, d, blocks, SQUARED: tl.constexpr, N: tl.constexpr, D: tl.constexpr
):
    """Costs of a block of keys: queries (B, m, d), keys (B, n, d) to cost (B, m, n)."""
    i_b, i_n = _mine(blocks)
    o_n, o_d = i_n * N + tl.arange(0, N), tl.arange(0, D)
    at, inside = _at(i_b, o_n, o_d, n, d)
    b_k = tl.load(keys + at, mask=inside, other=0.0).to(tl.float32)
    for i in range(m):
        row = i_b * m + i
        b_q = tl.load(queries + row * d + o_d, mask=o_d < d, other=0.0).to(tl.float32)
        gap = b_q[None, :] - b_k
        b_c = sum_of(gap * gap, 1)
        if not SQUARED:
            b_c = tl.sqrt_rn(b_c)
        tl.store(cost + row * n + o_n, b_c, mask=o_n < n)


@triton.jit
def distance_backward_kernel(
    queries,
    keys,
    cost,
    grad,
    parts,
    grad_keys,
    m,
    n,
    d,
    blocks,
    SQUARED: tl.constexpr,
    N: tl.constexpr,
    D: tl.constexpr,
):
    """Gradients of a block of keys; parts (B, blocks, m, d) has those of queries for each block.

    Differences need not be formed for each pair: the gradient of a key is the key times the sum of
    the weights, minus the weighted sum of queries. Coordinates are relative to the first query, so
    that only keys much closer to a query than queries to each other lose digits.
    """
    i_b, i_n = _mine(blocks)
    o_n, o_d = i_n * N + tl.arange(0, N), tl.arange(0, D)
    queries += i_b * m * d
    parts += (i_b * blocks + i_n) * m * d
    at, inside = _at(i_b, o_n, o_d, n, d)
    origin = tl.load(queries + o_d, mask=o_d < d, other=0.0).to(tl.float32)
    b_k = tl.load(keys + at, mask=inside, other=0.0).to(tl.float32) - origin[None, :]
    pulled = tl.full((N, D), 0.0, tl.float32)
    total = tl.full((N,), 0.0, tl.float32)
    for i in range(m):
        b_q = tl.load(queries + i * d + o_d, mask=o_d < d, other=0.0).to(tl.float32) - origin
        # The factor of each difference in the gradient.
        row = i_b * m + i
        b_w = tl.load(grad + row * n + o_n, mask=o_n < n, other=0.0).to(tl.float32)
        if SQUARED:
            b_w = 2.0 * b_w
        else:
            b_c = tl.load(cost + row * n + o_n, mask=o_n < n, other=0.0)
            # At distance zero the gradient is zero.
            b_w = tl.where(b_c > 0, b_w / tl.where(b_c > 0, b_c, 1.0), 0.0)
        total += b_w
        pulled += b_w[:, None] * b_q[None, :]
        b_dq = b_q * sum_of(b_w, 0) - sum_of(b_w[:, None] * b_k, 0)
        tl.store(parts + i * d + o_d, b_dq, mask=o_d < d)
    b_dk = b_k * total[:, None] - pulled
    tl.store(grad_keys + at, b_dk.to(grad_keys.dtype.element_ty), mask=inside)


@triton.jit
def distance_fold_kernel(
    parts, grad_queries, n_parts, size, blocks, P: tl.constexpr, S: tl.constexpr
):
    """Sum of parts (B, n_parts, size) to (B, size), in the dtype of the queries."""
    i_b, i_s = _mine(blocks)
    o_p, o_s = tl.arange(0, P), i_s * S + tl.arange(0, S)
    parts += i_b * n_parts * size
    total = tl.full((P, S), 0.0, tl.float32)
    for start in range(0, n_parts, P):
        rows = (start + o_p).to(tl.int64)
        there = (rows < n_parts)[:, None] & (o_s < size)[None, :]
        total += tl.load(parts + rows[:, None] * size + o_s[None, :], mask=there, other=0.0)
    found = sum_of(total, 0).to(grad_queries.dtype.element_ty)
    tl.store(grad_queries + i_b * size + o_s, found, mask=o_s < size)


# Numbers of a block, and its warps: for vectors of size 64 on an H200.
FORWARD = {"numbers": 4096, "num_warps": 4}
BACKWARD = {"numbers": 2048, "num_warps": 1}
# Parts read at once, and numbers of each.
FOLD = {"P": 32, "S": 64, "num_warps": 4}


def _block(d: int, numbers: int, num_warps: int) -> dict[str, int]:
    """Keys in a block, and their length rounded up."""
    wide = max(16, 1 << (d - 1).bit_length())
    return {"N": max(1, min(128, numbers // wide)), "D": wide, "num_warps": num_warps}


def forward(queries: Tensor, keys: Tensor, cost: Tensor, squared: bool) -> None:
    """Fill the cost (B, m, n); all contiguous."""
    (batch, m, d), n = queries.shape, keys.shape[1]
    size = _block(d, **FORWARD)
    blocks = -(-n // size["N"])
    run_on(
        cost.device, distance_kernel, (batch * blocks,),
        queries, keys, cost, m, n, d, blocks, squared, **size,
    )  # fmt: skip


def backward(
    queries: Tensor,
    keys: Tensor,
    cost: Tensor,
    grad: Tensor,
    grad_queries: Tensor,
    grad_keys: Tensor,
    squared: bool,
) -> None:
    """Fill grad_queries (B, m, d) and grad_keys (B, n, d); all contiguous."""
    (batch, m, d), n = queries.shape, keys.shape[1]
    size = _block(d, **BACKWARD)
    blocks = -(-n // size["N"])
    parts = cost.new_empty((batch, blocks, m, d))
    run_on(
        cost.device, distance_backward_kernel, (batch * blocks,),
        queries, keys, cost, grad, parts, grad_keys, m, n, d, blocks, squared, **size,
    )  # fmt: skip
    folds = -(-m * d // FOLD["S"])
    run_on(
        cost.device, distance_fold_kernel, (batch * folds,),
        parts, grad_queries, blocks, m * d, folds, **FOLD,
    )  # fmt: skip
