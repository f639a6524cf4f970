# type: ignore  # Triton's language only looks like Python
"""The implicit gradient of a plan: see :mod:`slotmesh.ops._implicit` for the mathematics.

The first kernel sums the coefficients of the small system of the slots over inputs, in parts; each
program of the second solves that system and writes the gradients of its own inputs. Everything is
in float64: where a plan is nearly one-hot the system is nearly singular.
"""

# ruff: noqa: N803

import torch
import triton
import triton.language as tl
from torch import Tensor

from slotmesh.ops._triton.launch import run_on
from slotmesh.ops._triton.tile import eliminate, sum_of

# Numbers of a block per thread, with up to 16 slots, and programs that keep a GPU busy.
NUMBERS, PROGRAMS = 32, 264


@triton.jit
def pulled(plan, grad, k, m, n, N: tl.constexpr, M: tl.constexpr):
    """A block of the plan and of it times its gradient (M, N), with sums and one over the sums."""
    rows, cols = tl.arange(0, M), k * N + tl.arange(0, N)
    inside = (rows < m)[:, None] & (cols < n)[None, :]
    at = rows[:, None] * n + cols[None, :]
    p = tl.load(plan + at, mask=inside, other=0.0).to(tl.float64)
    g = tl.load(grad + at, mask=inside, other=0.0).to(tl.float64)
    # Entries without mass may have any gradient.
    w = tl.where(p == 0, 0.0, p * g)
    c = sum_of(p, 0)
    share = tl.where(c > 0, 1.0 / tl.where(c > 0, c, 1.0), c * 0.0)
    return p, w, sum_of(w, 0), share, cols, at, inside


@triton.jit
def adjoint_gather_kernel(plan, grad, parts, m, n, blocks, N: tl.constexpr, M: tl.constexpr):
    """Mass that slots share (M, M), the right side (M,) and the sum of all, over a part of inputs.

    Two slots share of an input what the plan gives to one times the share of the other.
    """
    element = tl.program_id(0).to(tl.int64)
    rows = tl.arange(0, M)
    plan += element * m * n
    grad += element * m * n
    common = tl.full((M, M), 0.0, tl.float64)
    right = tl.full((M,), 0.0, tl.float64)
    whole = tl.full((N,), 0.0, tl.float64)
    for k in range(blocks):
        k += tl.program_id(1) * blocks
        p, w, into, share, cols, _, _ = pulled(plan, grad, k, m, n, N, M)
        right += sum_of(w - p * (into * share)[None, :], 1)
        whole += into
        for i in range(m):
            row = tl.load(plan + i * n + cols, mask=cols < n, other=0.0).to(tl.float64)
            with_i = sum_of(p * (row * share)[None, :], 1)
            common += tl.where((rows == i)[:, None], with_i[None, :], 0.0)
    parts += (element * tl.num_programs(1) + tl.program_id(1)) * (M * M + M + 1)
    tl.store(parts + rows[:, None] * M + rows[None, :], common)
    tl.store(parts + M * M + rows, right)
    tl.store(parts + M * M + M, sum_of(whole, 0))


@triton.jit
def adjoint_apply_kernel(
    plan, grad, parts, grad_cost, grad_a, grad_b, scale, m, n, blocks,
    N: tl.constexpr, M: tl.constexpr,
):  # fmt: skip
    """Gradients of the log kernel, times scale, and of both masses."""
    element = tl.program_id(0).to(tl.int64)
    rows = tl.arange(0, M)
    plan += element * m * n
    grad += element * m * n
    grad_cost += element * m * n
    parts += element * tl.num_programs(1) * (M * M + M + 1)
    common = tl.full((M, M), 0.0, tl.float64)
    right = tl.full((M,), 0.0, tl.float64)
    whole = right
    for _ in range(tl.num_programs(1)):
        common += tl.load(parts + rows[:, None] * M + rows[None, :])
        right += tl.load(parts + M * M + rows)
        whole += tl.load(parts + M * M + M)
        parts += M * M + M + 1

    mass = sum_of(common, 1)
    filled = mass > 0
    root = tl.sqrt(tl.where(filled, mass, 1.0))
    over = tl.where(filled, 1.0 / root, 0.0)
    total = tl.maximum(sum_of(mass, 0), 1e-300)
    pin = tl.where(filled, root / tl.sqrt(total), 0.0)
    h = pin[:, None] * pin[None, :] - common * over[:, None] * over[None, :]
    h += tl.where(rows[:, None] == rows[None, :], 1.0 + 1e-12, 0.0)
    x = over * eliminate(h, over * right, m, M)
    # A constant may move between x and y. Slots are scaled last, so the total of b has no effect.
    x = tl.where(filled, x + (whole - sum_of(mass * x, 0)) / total, 0.0)
    if tl.program_id(1) == 0:
        tl.store(grad_a + element * m + rows, x.to(tl.float32), mask=rows < m)
    for k in range(blocks):
        k += tl.program_id(1) * blocks
        p, w, into, share, cols, at, inside = pulled(plan, grad, k, m, n, N, M)
        y = share * (into - sum_of(p * x[:, None], 0))
        g = scale * (w - p * (x[:, None] + y[None, :]))
        tl.store(grad_cost + at, g.to(grad_cost.dtype.element_ty), mask=inside)
        tl.store(grad_b + element * n + cols, y.to(tl.float32), mask=cols < n)


def adjoint(
    plan: Tensor, grad: Tensor, grad_cost: Tensor, grad_a: Tensor, grad_b: Tensor, scale: float
) -> None:
    """Fill the gradients of cost (..., m, n), a (..., m) and b (..., n); all contiguous."""
    m, n = plan.shape[-2:]
    batch = plan.numel() // (m * n)
    rows = max(2, 1 << (m - 1).bit_length())
    warps = max(4, rows // 4)  # fewer have no room for the system in their registers
    columns = 32 * warps * min(NUMBERS, 512 // rows) // rows
    blocks = -(-n // columns)
    # One block each, or several if there are more than a GPU works on at once.
    each = min(blocks, -(-blocks * batch // PROGRAMS))
    n_parts = -(-blocks // each)
    parts = plan.new_empty((batch, n_parts, rows * rows + rows + 1), dtype=torch.float64)
    size = {"N": columns, "M": rows, "num_warps": warps}
    where, grid = plan.device, (batch, n_parts)
    run_on(where, adjoint_gather_kernel, grid, plan, grad, parts, m, n, each, **size)
    run_on(
        where, adjoint_apply_kernel, grid,
        plan, grad, parts, grad_cost, grad_a, grad_b, scale, m, n, each, **size,
    )  # fmt: skip
