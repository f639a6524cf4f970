# type: ignore  # kernels are a language of their own, which only looks like Python
"""One number of each element by a hidden layer that never leaves the chip.

Written out, the hidden layer of all inputs is several times as large as the inputs, and it is read
and written six times for its gradient: more than a MESH iteration moves.
"""

# ruff: noqa: N803

import triton
import triton.language as tl
from torch import Tensor

from slotmesh.ops._triton.tile import sum_of

PROGRAMS = 264
"""Of the gradient: two for each multiprocessor of an H200."""


@triton.jit
def _read(base, rows, cols, n, k):
    """A block of a matrix (n, k) in bfloat16; 0 outside."""
    inside = (rows < n)[:, None] & (cols < k)[None, :]
    at = rows.to(tl.int64)[:, None] * k + cols[None, :]
    return tl.load(base + at, mask=inside, other=0.0).to(tl.bfloat16), at, inside


@triton.jit
def _layer(weight, bias, last, d, h, D: tl.constexpr, H: tl.constexpr):
    """Weights (H, D), biases and last weights (H,)."""
    o_h, o_d = tl.arange(0, H), tl.arange(0, D)
    b_w, _, _ = _read(weight, o_h, o_d, h, d)
    b_b = tl.load(bias + o_h, mask=o_h < h, other=0.0).to(tl.float32)
    b_l = tl.load(last + o_h, mask=o_h < h, other=0.0).to(tl.float32)
    return b_w, b_b, b_l


@triton.jit
def logit_kernel(
    x, weight, bias, last, logit, n, d, h, N: tl.constexpr, D: tl.constexpr, H: tl.constexpr
):
    """Elements (n, d) to logits (n,)."""
    o_n = tl.program_id(0) * N + tl.arange(0, N)
    b_w, b_b, b_l = _layer(weight, bias, last, d, h, D, H)
    b_x, _, _ = _read(x, o_n, tl.arange(0, D), n, d)
    hidden = tl.maximum(tl.dot(b_x, tl.trans(b_w)) + b_b[None, :], 0.0)
    tl.store(logit + o_n, sum_of(hidden * b_l[None, :], 1), mask=o_n < n)


@triton.jit
def logit_backward_kernel(
    x,
    weight,
    bias,
    last,
    grad,
    by_x,
    parts,
    n,
    d,
    h,
    N: tl.constexpr,
    D: tl.constexpr,
    H: tl.constexpr,
):
    """Gradient by elements; parts (programs, h, d + 2) has those by weights, bias and last."""
    o_d, o_h = tl.arange(0, D), tl.arange(0, H)
    b_w, b_b, b_l = _layer(weight, bias, last, d, h, D, H)
    by_w = tl.full((H, D), 0.0, tl.float32)
    by_b = tl.full((H,), 0.0, tl.float32)
    by_l = tl.full((H,), 0.0, tl.float32)
    for start in range(tl.program_id(0) * N, n, tl.num_programs(0) * N):
        o_n = start + tl.arange(0, N)
        b_x, at, inside = _read(x, o_n, o_d, n, d)
        b_g = tl.load(grad + o_n, mask=o_n < n, other=0.0).to(tl.float32)
        hidden = tl.maximum(tl.dot(b_x, tl.trans(b_w)) + b_b[None, :], 0.0)
        by_l += sum_of(hidden * b_g[:, None], 0)
        pull = tl.where(hidden > 0, b_g[:, None] * b_l[None, :], 0.0)
        by_b += sum_of(pull, 0)
        pull = pull.to(tl.bfloat16)
        by_w = tl.dot(tl.trans(pull), b_x, by_w)
        b_dx = tl.dot(pull, b_w)
        tl.store(by_x + at, b_dx.to(by_x.dtype.element_ty), mask=inside)
    row = (tl.program_id(0) * h + o_h) * (d + 2)
    there = o_h < h
    tl.store(parts + row[:, None] + o_d[None, :], by_w, mask=there[:, None] & (o_d < d)[None, :])
    tl.store(parts + row + d, by_b, mask=there)
    tl.store(parts + row + d + 1, by_l, mask=there)


# Elements of a block, and how it runs: for 64 features and 128 hidden on an H200.
FORWARD = {"N": 128, "num_warps": 4, "num_stages": 1}
BACKWARD = {"N": 32, "num_warps": 4, "num_stages": 2}


def _size(d: int, h: int) -> dict[str, int]:
    wide, high = (max(16, 1 << (k - 1).bit_length()) for k in (d, h))
    return {"D": wide, "H": high}


def n_programs(n: int) -> int:
    """Programs of the gradient for so many elements."""
    return max(1, min(PROGRAMS, -(-n // BACKWARD["N"])))


def forward(x: Tensor, weight: Tensor, bias: Tensor, last: Tensor, logit: Tensor) -> None:
    """Fill logits (n,) of elements (n, d); all contiguous."""
    (n, d), h = x.shape, weight.shape[0]
    logit_kernel[(-(-n // FORWARD["N"]),)](
        x, weight, bias, last, logit, n, d, h, **_size(d, h), **FORWARD
    )


def backward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    last: Tensor,
    grad: Tensor,
    by_x: Tensor,
    parts: Tensor,
) -> None:
    """Fill by_x (n, d) and parts (programs, h, d + 2); all contiguous."""
    (n, d), h = x.shape, weight.shape[0]
    logit_backward_kernel[(parts.shape[0],)](
        x, weight, bias, last, grad, by_x, parts, n, d, h, **_size(d, h), **BACKWARD
    )
