"""MESH as one operator of torch, on top of the fused kernels."""

from typing import Any

import torch
from torch import Tensor

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
    cost, _, a, b, slots, real, tau, sigma, temperature, *_, keep = inputs
    _, _, _, error, trace, changed, history = output
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(error, trace, history)
    ctx.save_for_backward(changed, history if keep else None, trace, a, b, slots, real, tau)
    ctx.sigma, ctx.temperature, ctx.dtype = sigma, temperature, cost.dtype


def _backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    changed, history, trace, a, b, slots, real, tau = ctx.saved_tensors
    needs = ctx.needs_input_grad
    # Both the cost and the noise get the gradient of the changed cost; of the noise in float32.
    dtype = torch.float32 if needs[1] else ctx.dtype
    by_cost, by_a, by_b, by_tau, _ = transport_backward(
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
    )
    return (
        by_cost.to(ctx.dtype) if needs[0] else None,
        ctx.sigma * by_cost if needs[1] else None,
        by_a if needs[2] else None,
        by_b if needs[3] else None,
        None,
        None,
        by_tau if needs[6] else None,
        *(None,) * 8,
    )


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
