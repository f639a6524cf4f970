"""The implicit gradient of a plan as an operator of torch, on top of its kernels."""

from typing import Any

import torch
from torch import Tensor

from slotmesh.ops._typed import custom_op


@custom_op("slotmesh::plan_adjoint", mutates_args=())
def plan_adjoint(plan: Tensor, grad: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """Pull a gradient of plans (batch, m, n) back to log kernels, times scale, a and b.

    As :func:`slotmesh.ops.sinkhorn.implicit.plan_adjoint`; masses are float32 whatever plans are.
    """
    from slotmesh.ops._triton.adjoint import adjoint

    outputs = _outputs(plan)
    if plan.numel():
        adjoint(plan.contiguous(), grad.contiguous(), *outputs, scale)
    return outputs


@plan_adjoint.register_fake
def _(plan: Tensor, grad: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    return _outputs(plan)


def _outputs(plan: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    batch, m, n = plan.shape
    return (
        plan.new_empty((batch, m, n)),
        plan.new_empty((batch, m), dtype=torch.float32),
        plan.new_empty((batch, n), dtype=torch.float32),
    )


def save_implicit(
    ctx: Any, plan: Tensor, cost: Tensor, tau: Tensor | None, scale: float, *more: Tensor | None
) -> None:
    """Keep what the gradient of a converged plan needs, and more."""
    ctx.save_for_backward(plan, None if tau is None else cost, tau, *more)
    ctx.scale = scale


def implicit_gradients(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, ...]:
    """Gradients by cost, a, b and tau (batch,); all None where nothing came for the plan."""
    if grad is None:
        return None, None, None, None
    plan, cost, tau = ctx.saved_tensors[:3]
    by_cost, by_a, by_b = plan_adjoint(plan, grad, ctx.scale)
    if tau is None:
        return by_cost, by_a, by_b, None
    by_cost = by_cost / tau[:, None, None]
    # Padding may cost anything.
    by_tau = torch.where(by_cost == 0, 0.0, by_cost * cost).sum((-2, -1))
    return by_cost, by_a, by_b, -by_tau / tau
