"""MESH as one operator of torch, on top of the fused kernels."""

from typing import Any

import torch
from torch import Tensor

from slotmesh.ops._adjoint import implicit_gradients, save_implicit
from slotmesh.ops._fused import Flat, transport_backward
from slotmesh.ops._typed import custom_op


@custom_op("slotmesh::mesh", mutates_args=())
def mesh_op(
    cost: Tensor,
    noise: Tensor | None,
    a: Tensor | None,
    b: Tensor | None,
    slots: Tensor | None,
    inputs: Tensor | None,
    tau: Tensor | None,
    sigma: float,
    temperature: float,
    length: float,
    per_entry: bool,
    n_steps: int,
    n_iters: int,
    fresh: bool,
    keep: bool,
    implicit: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Plan, u, v, marginal error, trace, changed cost and, with ``keep``, the costs before it."""
    from slotmesh.ops._triton import launch

    outputs = _outputs(cost, n_steps, n_iters, keep)
    launch.forward(
        cost,
        noise,
        a,
        b,
        slots,
        inputs,
        tau,
        None,
        outputs,
        sigma=sigma,
        temperature=temperature,
        length=length,
        per_entry=per_entry,
        n_steps=n_steps,
        n_iters=n_iters,
        mesh=True,
        fresh=fresh,
        keep=keep,
    )
    return outputs


@mesh_op.register_fake
def _(
    cost: Tensor,
    noise: Tensor | None,
    a: Tensor | None,
    b: Tensor | None,
    slots: Tensor | None,
    inputs: Tensor | None,
    tau: Tensor | None,
    sigma: float,
    temperature: float,
    length: float,
    per_entry: bool,
    n_steps: int,
    n_iters: int,
    fresh: bool,
    keep: bool,
    implicit: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    return _outputs(cost, n_steps, n_iters, keep)


def _outputs(
    cost: Tensor, n_steps: int, n_iters: int, keep: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    batch, m, n = cost.shape
    exact = torch.float32
    kept = n_steps if keep else 0
    return (
        torch.empty_like(cost),
        cost.new_empty((batch, m), dtype=exact),
        cost.new_empty((batch, n), dtype=exact),
        cost.new_empty((batch,), dtype=exact),
        cost.new_empty((kept + 1, batch, 3 * n_iters, m), dtype=exact),
        cost.new_empty(cost.shape, dtype=exact),
        cost.new_empty((kept, batch, m, n), dtype=exact),
    )


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    cost, _, a, b, slots, real, tau, sigma, temperature, *_, keep, implicit = inputs
    plan, u, v, error, trace, changed, history = output
    ctx.set_materialize_grads(False)
    ctx.sigma, ctx.temperature, ctx.dtype = sigma, temperature, cost.dtype
    ctx.implicit = implicit
    if implicit:
        ctx.mark_non_differentiable(u, v, error, trace, history)
        save_implicit(ctx, plan, changed, tau, -1.0 / temperature, slots, real)
        return
    ctx.mark_non_differentiable(error, trace, history)
    ctx.save_for_backward(changed, history if keep else None, trace, a, b, slots, real, tau)


def _backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    needs = ctx.needs_input_grad
    if ctx.implicit:
        by_cost, by_a, by_b, by_tau = implicit_gradients(ctx, grads[0])
        by_changed = _where_real(grads[5], *ctx.saved_tensors[3:])
        if by_changed is not None:
            by_cost = by_changed if by_cost is None else by_cost + by_changed
    else:
        by_cost, by_a, by_b, by_tau = _through_iterations(ctx, *grads)
    by_noise = ctx.sigma * by_cost if needs[1] and by_cost is not None else None
    return (
        by_cost.to(ctx.dtype) if needs[0] and by_cost is not None else None,
        by_noise,
        by_a if needs[2] else None,
        by_b if needs[3] else None,
        None,
        None,
        by_tau if needs[6] else None,
        *(None,) * 9,
    )


def _where_real(x: Tensor | None, slots: Tensor | None, inputs: Tensor | None) -> Tensor | None:
    """(batch, m, n), 0 in padding."""
    if x is not None and slots is not None:
        x = torch.where(slots.unsqueeze(-1), x, 0.0)
    if x is not None and inputs is not None:
        x = torch.where(inputs.unsqueeze(-2), x, 0.0)
    return x


def _through_iterations(ctx: Any, *grads: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients by cost, a, b and tau."""
    changed, history, trace, a, b, slots, real, tau = ctx.saved_tensors
    needs = ctx.needs_input_grad
    # Both the cost and the noise get the gradient of the changed cost; of the noise in float32.
    dtype = torch.float32 if needs[1] else ctx.dtype
    return transport_backward(
        changed,
        history,
        trace,
        a,
        b,
        slots,
        real,
        tau,
        *grads[:3],
        grads[5],
        ctx.temperature,
        True,
        [needs[2] or needs[3], needs[6], False],
        dtype,
    )[:4]


mesh_op.register_autograd(_backward, setup_context=_setup)


def fused_mesh(
    task: Flat,
    noise: Tensor | None,
    sigma: float,
    tau: Tensor | None,
    temperature: float,
    *,
    length: float,
    per_entry: bool,
    n_steps: int,
    n_iters: int,
    potentials: str,
    implicit: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Plan, u, v, marginal error and changed cost with the batch dimensions of the task."""
    leaves = [x for x in (task.cost, noise, task.a, task.b, tau) if x is not None]
    graph = torch.is_grad_enabled() and any(x.requires_grad for x in leaves)
    plan, u, v, error, _, changed, _ = mesh_op(
        task.cost,
        None if noise is None else noise.reshape(task.cost.shape).contiguous(),
        task.a,
        task.b,
        task.slots,
        task.inputs,
        tau,
        sigma,
        temperature,
        float(length),
        per_entry,
        n_steps,
        n_iters,
        potentials == "fresh",
        potentials == "reuse" and n_steps > 0 and graph,
        implicit,
    )
    m, n = plan.shape[-2:]
    batch = task.batch
    return (
        plan.view(*batch, m, n),
        u.view(*batch, m),
        v.view(*batch, n),
        error.view(batch),
        changed.view(*batch, m, n),
    )
