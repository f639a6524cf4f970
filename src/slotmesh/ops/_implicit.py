r"""The gradient of a converged Sinkhorn plan without a graph through its iterations.

At convergence :math:`P = \exp(u \oplus v + K)` has row sums :math:`r` and column sums :math:`c`,
and these two constraints alone determine how :math:`u` and :math:`v` follow a change of :math:`K`,
:math:`a` or :math:`b`. The adjoint linear system has one unknown per slot and one per input;
eliminating the longer side leaves a small symmetric system, so memory does not grow with the
number of iterations.
"""

from typing import Any

import torch
from torch import Tensor

from slotmesh.ops import _naive as naive
from slotmesh.ops.problem import Problem

_linalg: Any = torch.linalg


class ImplicitPlan(torch.autograd.Function):
    """(log kernel, a, b, converged plan) to the plan, with the implicit gradient."""

    generate_vmap_rule = True

    @staticmethod
    def forward(log_kernel: Tensor, a: Tensor, b: Tensor, plan: Tensor) -> Tensor:
        """The plan itself."""
        return plan.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """Keep the plan; the gradient needs nothing else."""
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """Gradients of the log kernel, a and b."""
        (plan,) = ctx.saved_tensors
        return (*plan_adjoint(plan, grads[0]), None)


def implicit_plan(
    task: Problem, cost: Tensor, u: Tensor | None, n_iters: int, tol: float | None = None
) -> tuple[Tensor, naive.Potentials]:
    """Iterate without a graph, then attach the implicit gradient to the plan."""
    u = None if u is None else u.detach()
    plan, potentials = naive.solve(task.detach(), cost.detach(), u, n_iters, tol)
    apply: Any = ImplicitPlan.apply  # pyright: ignore
    return apply(-cost / task.tau, task.a, task.b, plan), potentials


def plan_adjoint(plan: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Pull a gradient of the plan (*batch, m, n) back to the log kernel, a and b."""
    # float64 inside: the system is nearly singular where the plan is nearly hard. Entries
    # without mass may have any gradient.
    p, weight = _double(plan), _double(torch.where(plan == 0, 0.0, plan * grad))
    if plan.shape[-2] <= plan.shape[-1]:
        kernel, x, y = _eliminate(p, weight)
    else:
        kernel, y, x = _eliminate(p.mT, weight.mT)
        kernel = kernel.mT
    # A constant may move between x and y. Slots are scaled last, so the total of b has no effect.
    rows, columns = p.sum(-1), p.sum(-2)
    total = columns.sum(-1, keepdim=True).clamp(min=1e-300)
    constant = (columns * y).sum(-1, keepdim=True) / total
    x, y = (x + constant) * (rows > 0), (y - constant) * (columns > 0)
    kernel, x, y = (t.to(plan.dtype).to(plan.device) for t in (kernel, x, y))
    return kernel, x, y


def _double(x: Tensor) -> Tensor:
    """float64 on the same device, or on the CPU for an Apple GPU, which has none."""
    return x.cpu().double() if x.device.type == "mps" else x.double()


def _eliminate(p: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The adjoint of a plan with at most as many rows as columns: for the log kernel, a and b."""
    rows, columns = p.sum(-1), p.sum(-2)
    smallest = torch.finfo(p.dtype).tiny  # the reciprocal of less is infinite
    filled_rows, filled_columns = rows >= smallest, columns >= smallest
    # Where there is nothing, a root's own derivative would be infinite.
    root = torch.where(filled_rows, rows, 1.0).sqrt()
    row_root, root = filled_rows / root, root * filled_rows
    column_share = torch.where(filled_columns, columns, 1.0).reciprocal() * filled_columns

    # (diag(r) - P diag(1/c) P^T) x = g_u - P diag(1/c) g_v, scaled to a unit diagonal.
    shared = p * column_share.unsqueeze(-2)
    flow = row_root.unsqueeze(-1) * (shared @ p.mT) * row_root.unsqueeze(-2)
    # Moving a constant from v to u changes nothing; fix that direction.
    root = root / root.square().sum(-1, keepdim=True).clamp(min=1e-300).sqrt()
    eye = torch.eye(p.shape[-2], dtype=p.dtype, device=p.device)
    system = (1.0 + 1e-12) * eye - flow + root.unsqueeze(-1) * root.unsqueeze(-2)
    into_v = weight.sum(-2, keepdim=True)
    right = weight.sum(-1) - (shared * into_v).sum(-1)
    # Without the check for singular systems, which waits for the GPU.
    solved = _linalg.solve_ex(system, (row_root * right).unsqueeze(-1))[0].squeeze(-1)
    x = row_root * solved
    y = column_share * (into_v.squeeze(-2) - (p.mT @ x.unsqueeze(-1)).squeeze(-1))
    return weight - p * (x.unsqueeze(-1) + y.unsqueeze(-2)), x, y
