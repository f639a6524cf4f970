# type: ignore  # Triton's language only looks like Python
"""One logit per element through a hidden layer that never leaves the chip.

In memory, the hidden layer of all inputs is several times as large as the inputs, and its gradient
reads and writes it six times: more than a MESH iteration moves.
"""

# ruff: noqa: N803

import triton
import triton.language as tl
from torch import Tensor

from slotmesh.ops._triton.launch import run_on
from slotmesh.ops._triton.tile import sum_of

PROGRAMS = 264
"""Most programs of the gradient: two per multiprocessor of an H200."""


@triton.jit
def _read(base, rows, cols, n, k):
    """A block of a matrix (n, k) in bfloat16; 0 outside."""
    inside = (rows < n)[:, None] & (cols < k)[None, :]
    at = rows.to(tl.int64)[:, None] * k + cols[None, :]
    return tl.load(base + at, mask=inside, other=0.0).to(tl.bfloat16)


@triton.jit
def _layer(weight, bias, last, d, h, D: tl.constexpr, H: tl.constexpr):
    """Weights (H, D), biases and last weights (H,)."""
    o_h, o_d = tl.arange(0, H), tl.arange(0, D)
    b_w = _read(weight, o_h, o_d, h, d)
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
    b_x = _read(x, o_n, tl.arange(0, D), n, d)
    hidden = tl.maximum(tl.dot(b_x, tl.trans(b_w)) + b_b[None, :], 0.0)
    tl.store(logit + o_n, sum_of(hidden * b_l[None, :], 1), mask=o_n < n)


@triton.jit
def logit_backward_kernel(
    x,
    weight,
    bias,
    last,
    grad,
    grad_x,
    parts,
    n,
    d: tl.constexpr,
    h: tl.constexpr,
    N: tl.constexpr,
    D: tl.constexpr,
    H: tl.constexpr,
):
    """Gradient of elements; parts (programs, h d + h + h) has those of weights, bias and last.

    The hidden layer is (H, N), so that sums over elements stay within a few threads.
    """
    o_d, o_h, o_i = tl.arange(0, D), tl.arange(0, H), tl.arange(0, N)
    b_w, b_b, b_l = _layer(weight, bias, last, d, h, D, H)
    grad_w = tl.full((H, D), 0.0, tl.float32)
    grad_b = tl.full((H,), 0.0, tl.float32)
    grad_l = tl.full((H,), 0.0, tl.float32)
    # Only the start of a block needs 64 bits: offsets inside it take half the registers.
    at = o_i[:, None] * d + o_d[None, :]
    for start in range(tl.program_id(0) * N, n, tl.num_programs(0) * N):
        o_n = start + o_i
        base = tl.cast(start, tl.int64) * d
        inside = (o_n < n)[:, None] & (o_d < d)[None, :]
        b_x = tl.load(x + base + at, mask=inside, other=0.0).to(tl.bfloat16)
        b_g = tl.load(grad + o_n, mask=o_n < n, other=0.0).to(tl.float32)
        hidden = tl.maximum(tl.dot(b_w, tl.trans(b_x)) + b_b[:, None], 0.0)
        grad_l += sum_of(hidden * b_g[None, :], 1)
        pull = tl.where(hidden > 0, b_g[None, :] * b_l[:, None], 0.0)
        grad_b += sum_of(pull, 1)
        pull = pull.to(tl.bfloat16)
        grad_w = tl.dot(pull, b_x, grad_w)
        b_dx = tl.dot(tl.trans(pull), b_w)
        tl.store(grad_x + base + at, b_dx.to(grad_x.dtype.element_ty), mask=inside)
    parts += tl.program_id(0) * h * (d + 2)
    there = o_h < h
    in_w = there[:, None] & (o_d < d)[None, :]
    tl.store(parts + o_h[:, None] * d + o_d[None, :], grad_w, mask=in_w)
    tl.store(parts + h * d + o_h, grad_b, mask=there)
    tl.store(parts + h * d + h + o_h, grad_l, mask=there)


@triton.jit
def logit_fold_kernel(
    parts, rest, n_parts, d: tl.constexpr, h: tl.constexpr, P: tl.constexpr, S: tl.constexpr
):
    """Sum of parts (n_parts, h d + h + h) to (h, d + 2): weights, bias and last side by side."""
    o_p, o_s = tl.arange(0, P), tl.program_id(0) * S + tl.arange(0, S)
    size: tl.constexpr = h * (d + 2)
    total = tl.full((P, S), 0.0, tl.float32)
    for start in range(0, n_parts, P):
        rows = start + o_p
        there = (rows < n_parts)[:, None] & (o_s < size)[None, :]
        total += tl.load(parts + rows[:, None] * size + o_s[None, :], mask=there, other=0.0)
    is_weight = o_s < h * d
    row = tl.where(is_weight, o_s // d, o_s % h)
    col = tl.where(is_weight, o_s % d, o_s // h)
    tl.store(rest + row * (d + 2) + col, sum_of(total, 0), mask=o_s < size)


# Elements of a block, and options: for 64 features and 128 hidden units on an H200.
FORWARD = {"N": 128, "num_warps": 4, "num_stages": 1}
FEW = {"N": 32, "num_warps": 4, "num_stages": 1}
# With half of a multiprocessor's registers, so that two programs fit.
MANY = {"N": 64, "num_warps": 8, "num_stages": 3, "maxnreg": 128}
# For more features or hidden units, for which the two above have too few registers.
WIDE = {"N": 32, "num_warps": 8, "num_stages": 3}
# Numbers per program, and how many of their parts it reads at once, at most.
FOLD = {"S": 64, "num_warps": 4}
MOST_PARTS = 32


def _size(d: int, h: int) -> dict[str, int]:
    wide, high = (max(16, 1 << (k - 1).bit_length()) for k in (d, h))
    return {"D": wide, "H": high}


def _backward(n: int, d: int, h: int) -> dict[str, int]:
    """Options of the gradient: few elements have one program per block."""
    if d > 64 or h > 128:
        return WIDE
    return FEW if n <= PROGRAMS * FEW["N"] else MANY


def forward(x: Tensor, weight: Tensor, bias: Tensor, last: Tensor, logit: Tensor) -> None:
    """Fill logits (n,) of elements (n, d); all contiguous."""
    (n, d), h = x.shape, weight.shape[0]
    run_on(
        x.device, logit_kernel, (-(-n // FORWARD["N"]),),
        x, weight, bias, last, logit, n, d, h, **_size(d, h), **FORWARD,
    )  # fmt: skip


def backward(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    last: Tensor,
    grad: Tensor,
    grad_x: Tensor,
    rest: Tensor,
) -> None:
    """Fill grad_x (n, d), and rest (h, d + 2) of weight, bias and last; all contiguous."""
    (n, d), h = x.shape, weight.shape[0]
    run = _backward(n, d, h)
    programs = min(PROGRAMS, -(-n // run["N"]))
    parts = rest.new_empty((programs, rest.numel()))
    run_on(
        x.device, logit_backward_kernel, (programs,),
        x, weight, bias, last, grad, grad_x, parts, n, d, h, **_size(d, h), **run,
    )  # fmt: skip
    at_once = min(MOST_PARTS, max(2, 1 << (programs - 1).bit_length()))
    run_on(
        x.device, logit_fold_kernel, (-(-rest.numel() // FOLD["S"]),),
        parts, rest, programs, d, h, P=at_once, **FOLD,
    )  # fmt: skip
