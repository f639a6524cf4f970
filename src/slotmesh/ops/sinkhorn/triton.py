"""Sinkhorn as one operator of torch, on top of the fused kernels."""

from typing import Any

import torch
from torch import Tensor

from slotmesh.ops._adjoint import implicit_gradients, save_implicit
from slotmesh.ops._fused import Flat, transport_backward
from slotmesh.ops._typed import custom_op


@custom_op("slotmesh::sinkhorn", mutates_args=())
def sinkhorn_op(
    cost: Tensor,
    a: Tensor | None,
    b: Tensor | None,
    slots: Tensor | None,
    inputs: Tensor | None,
    tau: Tensor | None,
    init: Tensor | None,
    temperature: float,
    n_iters: int,
    implicit: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Plan, u, v, marginal error, and the trace that backward reads."""
    from slotmesh.ops._triton import launch

    outputs = _outputs(cost, n_iters)
    launch.forward(
        cost,
        None,
        a,
        b,
        slots,
        inputs,
        tau,
        init,
        outputs,
        sigma=0.0,
        temperature=temperature,
        length=0.0,
        per_entry=False,
        n_steps=0,
        n_iters=n_iters,
        mesh=False,
        fresh=False,
        keep=False,
    )
    return outputs


@sinkhorn_op.register_fake
def _(
    cost: Tensor,
    a: Tensor | None,
    b: Tensor | None,
    slots: Tensor | None,
    inputs: Tensor | None,
    tau: Tensor | None,
    init: Tensor | None,
    temperature: float,
    n_iters: int,
    implicit: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return _outputs(cost, n_iters)


def _outputs(cost: Tensor, n_iters: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    batch, m, n = cost.shape
    exact = torch.float32
    return (
        torch.empty_like(cost),
        cost.new_empty((batch, m), dtype=exact),
        cost.new_empty((batch, n), dtype=exact),
        cost.new_empty((batch,), dtype=exact),
        cost.new_empty((1, batch, 3 * n_iters, m), dtype=exact),
    )


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    cost, a, b, slots, real, tau, _, temperature, _, implicit = inputs
    plan, u, v, error, trace = output
    ctx.set_materialize_grads(False)
    ctx.implicit = implicit
    if implicit:
        ctx.mark_non_differentiable(u, v, error, trace)
        save_implicit(ctx, plan, cost, tau, -1.0 / temperature)
        return
    ctx.mark_non_differentiable(error, trace)
    ctx.save_for_backward(cost, trace, a, b, slots, real, tau)
    ctx.temperature = temperature


def _backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    needs = ctx.needs_input_grad
    if ctx.implicit:
        by_cost, by_a, by_b, by_tau = implicit_gradients(ctx, grads[0])
        by_init = None
    else:
        cost, trace, a, b, slots, real, tau = ctx.saved_tensors
        by_cost, by_a, by_b, by_tau, by_init = transport_backward(
            cost,
            None,
            trace,
            a,
            b,
            slots,
            real,
            tau,
            *grads[:3],
            None,
            ctx.temperature,
            False,
            [needs[1] or needs[2], needs[5], needs[6]],
            cost.dtype,
        )
    return (
        by_cost,
        by_a if needs[1] else None,
        by_b if needs[2] else None,
        None,
        None,
        by_tau if needs[5] else None,
        by_init if needs[6] else None,
        *(None,) * 3,
    )


sinkhorn_op.register_autograd(_backward, setup_context=_setup)


def fused_sinkhorn(
    task: Flat,
    tau: Tensor | None,
    temperature: float,
    init: Tensor | None,
    n_iters: int,
    *,
    implicit: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Plan, u, v and marginal error with the batch dimensions of the task."""
    plan, u, v, error, _ = sinkhorn_op(
        task.cost,
        task.a,
        task.b,
        task.slots,
        task.inputs,
        tau,
        init,
        temperature,
        n_iters,
        implicit,
    )
    m, n = plan.shape[-2:]
    batch = task.batch
    return plan.view(*batch, m, n), u.view(*batch, m), v.view(*batch, n), error.view(batch)
