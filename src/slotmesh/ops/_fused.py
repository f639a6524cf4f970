"""``sinkhorn`` and ``mesh`` on the Triton kernels: when they can run, and their gradients.

An eager call launches the kernels directly. Anything that traces the call (``torch.compile``,
``torch.export``, a dispatch mode) sees a single custom operator instead, from
:mod:`slotmesh.ops._operator`. Triton is imported when a kernel first runs.
"""

import importlib.util
import math
import os
from typing import Any, Literal

import torch
from torch import Tensor

from slotmesh.ops import checks
from slotmesh.ops._implicit import plan_adjoint
from slotmesh.ops._kernel_types import (
    SHOWN,
    Gradients,
    Incoming,
    Operands,
    Past,
    Results,
    Wanted,
)
from slotmesh.ops._private import (
    dispatch_modes,
    is_batched_gradient,
    only_vmap,
    transform,
    unpack_dual,
)
from slotmesh.ops.problem import (
    Given,
    SolverSettings,
    check_problem,
    expanded_masks,
    full_precision,
    marginals,
    problem,
    real_entries,
    scaled_temperature,
    temperature_of,
)
from slotmesh.ops.transport import Transport

Backend = Literal["auto", "torch", "triton", "cpu"]
BACKENDS: tuple[Backend, ...] = ("auto", "torch", "triton", "cpu")

MOST_SLOTS, MOST_INPUTS = 1024, 65_536
# Most slots for the kernels of the implicit gradient, whose programs hold a matrix of all pairs.
MOST_PAIRED = 64
# Most numbers that are recorded per batch element, in which the kernels use 32-bit offsets.
MOST_RECORDED = 2**31 - 1
# Most numbers in a program with several small matrices.
SMALL = 128
HALF_OR_SINGLE = (torch.float32, torch.bfloat16, torch.float16)

_torch: Any = torch
_HAS_TRITON = importlib.util.find_spec("triton") is not None


# ---- whether a kernel runs ----


def use_kernel(
    given: Given, backend: str, settings: SolverSettings, beyond: str | None, *more: object
) -> bool:
    """Whether to use the kernels; raises a ValueError if they are requested by name and cannot run.

    Args:
        given: The arguments, of which ``cost`` has been checked to be a matrix.
        backend: The requested backend.
        settings: The settings.
        beyond: An option in use that only the torch backend supports, in words, or None.
        more: Further arguments that may be tensors.
    """
    if backend in ("torch", "cpu") or (backend == "auto" and not given.cost.is_cuda):
        return False
    m, n = given.cost.shape[-2:]
    reason = beyond
    if reason is None and (m > MOST_SLOTS or n > MOST_INPUTS):
        reason = f"cost is {m} x {n}, and the kernels take at most {MOST_SLOTS} x {MOST_INPUTS}"
    elif reason is None and 3 * settings.n_iters * block_size(m) > MOST_RECORDED:
        most = MOST_RECORDED // (3 * block_size(m))
        reason = (
            f"n_iters is {settings.n_iters}, and the kernels take at most {most} with {m} slots"
        )
    reason = reason or cannot_run("cost", given.cost, *given.tensors()[1:], *more, vmap=True)
    return _fits(given.op, backend, reason, "Use backend='auto' to choose one, or backend='torch'.")


def use_solver(
    op: str, backend: str, cost: Tensor, most: tuple[int, int], others: tuple[str, ...]
) -> bool:
    """Whether to use the kernel of an exact solver; as :func:`use_kernel`.

    Args:
        op: Name of the operation.
        backend: The requested backend.
        cost: ``(..., m, n)``, checked to be a matrix.
        most: Largest m and n that the kernel takes.
        others: Its other backends, of which the last takes everything.
    """
    if backend in others or (backend == "auto" and not cost.is_cuda):
        return False
    m, n = cost.shape[-2:]
    reason = _no_kernel("cost", cost, (*HALF_OR_SINGLE, torch.float64))
    if reason is None and (m > most[0] or n > most[1]):
        reason = f"cost is {m} x {n}, and the kernel takes at most {most[0]} x {most[1]}"
    return _fits(op, backend, reason, f"Use backend='{others[-1]}', which takes everything.")


def cannot_run(name: str, x: Tensor, *others: object, vmap: bool = False) -> str | None:
    """Why no kernel can take this tensor, whatever its shape, or None; ``vmap`` if it has rules."""
    reason = _no_kernel(name, x, HALF_OR_SINGLE)
    if reason is None and not torch.compiler.is_compiling():
        if transform() is not None and not (vmap and only_vmap()):
            return "this is inside a transform of torch.func, of which kernels support only vmap"
        if any(isinstance(y, Tensor) and unpack_dual(y).tangent is not None for y in (x, *others)):
            return "forward-mode derivatives are on, which the kernels do not support"
    return reason


def _no_kernel(name: str, x: Tensor, dtypes: tuple[torch.dtype, ...]) -> str | None:
    if not _HAS_TRITON:
        return "triton is not installed (pip install triton)"
    if not x.is_cuda and os.environ.get("TRITON_INTERPRET") != "1":
        return f"{name} is on {x.device}, and the kernels need a CUDA device"
    if x.dtype not in dtypes:
        return f"{name} has dtype {x.dtype}, and the kernels compute in float32"
    return None


def _fits(op: str, backend: str, reason: str | None, fix: str) -> bool:
    if reason is not None and backend == "triton":
        raise ValueError(f"{op}: backend is 'triton', which does not work here: {reason}. {fix}")
    return reason is None


# ---- running the kernels ----


def block_size(x: int) -> int:
    """The power of two, at least 2, to which the kernels pad a number of slots or inputs."""
    size = 2
    while size < x:
        size *= 2
    return size


def small_group(m: int, n: int, settings: SolverSettings) -> int:
    """How many small matrices share a program; 0 if each has its own."""
    if settings.mesh:
        return 0
    group = SMALL // (block_size(m) * block_size(n))
    return group if group > 1 else 0


def empty(like: Tensor, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Memory on the device of ``like``."""
    # By name: torch first tries to read a positional shape as a number, which takes longer.
    return like.new_empty(size=shape, dtype=dtype)


def results_of(operands: Operands, settings: SolverSettings) -> Results:
    """Memory for the forward kernel; None where it writes nothing."""
    cost, mesh = operands.cost, settings.mesh
    *batch, m, n = cost.shape
    kept = settings.n_steps if settings.keep else 0
    count, n_iters = math.prod(batch), settings.n_iters
    small = small_group(m, n, settings) > 0
    recorded = (n_iters + 3, m) if small else (3 * n_iters, block_size(m))
    return Results(
        plan=empty(cost, *batch, m, n, dtype=cost.dtype),
        u=empty(cost, *batch, m),
        v=empty(cost, *batch, n),
        error=empty(cost, *batch),
        n_iters=empty(cost, *batch, dtype=torch.int64),
        converged=empty(cost, *batch, dtype=torch.bool),
        temperature=empty(cost, *batch),
        changed=empty(cost, *batch, m, n) if mesh else None,
        trace=empty(cost, kept + 1, count, *recorded),
        history=empty(cost, kept, *batch, m, n) if kept else None,
    )


def gradients_of(operands: Operands, past: Past, wanted: Wanted) -> Gradients:
    """Memory for the backward kernel; None where it writes nothing."""
    cost = operands.cost
    *batch, m, n = cost.shape
    # Several Sinkhorns add to one gradient, which half precision would round each time.
    kind = wanted.dtype if past.history is None else torch.float32
    return Gradients(
        cost=empty(cost, *batch, m, n, dtype=kind),
        a=empty(cost, *batch, m) if wanted.masses else None,
        b=empty(cost, *batch, n) if wanted.masses else None,
        tau=empty(cost, *batch) if wanted.tau else None,
        init=empty(cost, *batch, m) if wanted.init else None,
    )


def run_forward(operands: Operands, settings: SolverSettings) -> Results:
    """Sinkhorn, or MESH."""
    from slotmesh.ops._triton import launch

    results = results_of(operands, settings)
    launch.forward(operands, settings, results)
    return results


def run_backward(
    operands: Operands, past: Past, incoming: Incoming, settings: SolverSettings, wanted: Wanted
) -> Gradients:
    """Gradients through the iterations; ``operands.cost`` is the cost that the plan belongs to."""
    from slotmesh.ops._triton import launch

    grads = gradients_of(operands, past, wanted)
    into = Incoming(*(None if g is None else g.contiguous() for g in incoming))
    launch.backward(operands, past, into, settings, wanted, grads)
    return grads._replace(cost=_as(wanted.dtype, grads.cost))


def run_adjoint(plan: Tensor, grad: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """Pull a gradient of plans (..., m, n) back to log kernels, times scale, a and b.

    As :func:`slotmesh.ops._implicit.plan_adjoint`; masses are float32 in any case.
    """
    if plan.shape[-2] > MOST_PAIRED:
        kernel, a, b = plan_adjoint(plan, grad)
        return scale * kernel, a.to(torch.float32), b.to(torch.float32)
    from slotmesh.ops._triton.adjoint import adjoint

    found = adjoint_of(plan)
    if plan.numel():
        adjoint(plan.contiguous(), grad.contiguous(), *found, scale)
    return found


def adjoint_of(plan: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Memory for the adjoint kernels."""
    *batch, m, n = plan.shape
    return (
        empty(plan, *batch, m, n, dtype=plan.dtype),
        empty(plan, *batch, m),
        empty(plan, *batch, n),
    )


# ---- derivatives ----


def save(
    ctx: Any, operands: Operands, settings: SolverSettings, results: Results, *hidden: Any
) -> None:
    """Keep what the derivative needs, and say which results have none; nor have the hidden ones."""
    ctx.set_materialize_grads(False)
    ctx.settings, ctx.dtype = settings, operands.cost.dtype
    cost = results.changed if settings.mesh else operands.cost
    constant = [results.error, results.n_iters, results.converged, results.temperature, *hidden]
    if settings.implicit:
        constant += [results.u, results.v]
        kept = (results.plan, None)
    else:
        kept = (results.trace, results.history if settings.keep else None)
    ctx.mark_non_differentiable(*constant)
    # Neither the noise nor the first potentials are needed: only the cost that they led to.
    ctx.save_for_backward(cost, *operands[2:7], *kept)


def pull_back(
    ctx: Any, incoming: Incoming, needs: Operands, backward: Any, adjoint: Any
) -> tuple[Tensor | None, ...]:
    """Gradients of the operands.

    Args:
        ctx: What :func:`save` filled.
        incoming: Gradients of the results.
        needs: Which operands need one.
        backward: :func:`run_backward`, or the operator of it.
        adjoint: :func:`run_adjoint`, or the operator of it.
    """
    cost, a, b, slots, inputs, tau, first, history = ctx.saved_tensors
    operands = Operands(cost, None, a, b, slots, inputs, tau, None)
    settings = ctx.settings
    if settings.implicit:
        found = _implicit(operands, first, incoming, settings, adjoint)
    elif all(g is None for g in incoming):
        found = (None,) * 5
    else:
        # The noise gets the gradient of the cost as well, in float32.
        dtype = torch.float32 if needs.noise else ctx.dtype
        wanted = Wanted(bool(needs.a or needs.b), bool(needs.tau), bool(needs.init), dtype)
        found = backward(operands, Past(first, history), incoming, settings, wanted)
    grad_cost, grad_a, grad_b, grad_tau, grad_init = found
    given = grad_cost is not None
    return (
        _as(ctx.dtype, grad_cost) if needs.cost and given else None,
        settings.sigma * grad_cost if needs.noise and given else None,
        grad_a if needs.a else None,
        grad_b if needs.b else None,
        None,
        None,
        grad_tau if needs.tau else None,
        grad_init if needs.init else None,
    )


def _implicit(
    operands: Operands, plan: Tensor, incoming: Incoming, settings: SolverSettings, adjoint: Any
) -> tuple[Tensor | None, ...]:
    """Gradients as of a converged plan; None where nothing arrives."""
    grads: tuple[Tensor | None, ...] = (None,) * 5
    tau = operands.tau
    if incoming.plan is not None:
        grad_cost, grad_a, grad_b = adjoint(plan, incoming.plan, -1.0 / settings.temperature)
        grad_tau = None
        if tau is not None:
            grad_cost = grad_cost / tau[..., None, None]
            # Padding may have any cost.
            used = torch.where(grad_cost == 0, 0.0, grad_cost * operands.cost)
            grad_tau = -used.sum((-2, -1)) / tau
        grads = (grad_cost, grad_a, grad_b, grad_tau, None)
    if incoming.changed is not None:
        real = real_entries(operands.slots, operands.inputs)
        direct = incoming.changed if real is None else torch.where(real, incoming.changed, 0.0)
        grads = (direct if grads[0] is None else grads[0] + direct, *grads[1:])
    return grads


class _Eager(torch.autograd.Function):
    """The kernels and their gradient without an operator, whose layers take longer than they do."""

    @staticmethod
    def forward(ctx: Any, settings: SolverSettings, *tensors: Any) -> tuple[Tensor | None, ...]:
        operands = Operands(*tensors)
        results = run_forward(operands, settings)
        save(ctx, operands, settings, results)
        return results[:SHOWN]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor | None, ...]:
        incoming = Incoming(grads[0], grads[1], grads[2], grads[7])
        needs = Operands(*ctx.needs_input_grad[1:])
        how = (run_backward, run_adjoint)
        # The operators say what they cannot do: a second derivative, a batch of gradients.
        if (
            torch.is_grad_enabled()
            or transform() is not None
            or any(g is not None and is_batched_gradient(g) for g in incoming)
        ):
            from slotmesh.ops import _operator

            how = (_operator.backward_flat, _operator.plan_adjoint)
        return None, *pull_back(ctx, incoming, needs, *how)


_run_eager: Any = _Eager.apply  # pyright: ignore


def is_eager(tensors: list[Tensor]) -> bool:
    """Whether nothing but autograd watches this call."""
    return (
        not torch.compiler.is_compiling()
        and transform() is None
        and dispatch_modes() == 0
        and not _torch.jit.is_tracing()
        # Subclasses (fake, distributed, ...) bring rules of their own.
        and all(type(x) in (Tensor, torch.nn.Parameter) for x in tensors)
    )


# ---- from the front door ----


def fused_transport(
    given: Given, settings: SolverSettings, noise: Tensor | None = None, init: Tensor | None = None
) -> Transport:
    """``sinkhorn`` or ``mesh`` by the kernel.

    Args:
        given: The arguments.
        settings: The settings.
        noise: ``(*batch, m, n)``, in units of ``settings.sigma``.
        init: ``(..., m)``, the first u.
    """
    cost = given.cost
    with full_precision(cost):
        operands, settings = _prepare(given, settings, noise, init)
        leaves = [x for x in operands if x is not None]
        graph = torch.is_grad_enabled() and any(x.requires_grad for x in leaves)
        if settings.reuse and settings.n_steps > 0 and graph:
            settings = settings._replace(keep=True)
        if not is_eager(leaves):
            found = _torch.ops.slotmesh.transport(*operands, *settings)
        elif graph:
            found = _run_eager(settings, *operands)
        else:
            found = run_forward(operands, settings)
        plan, u, v, error, n_iters, converged, temperature, changed = found[:SHOWN]
    return Transport(
        plan=_as(cost.dtype, plan),
        u=u,
        v=v,
        cost=changed if settings.mesh and changed is not None else cost,
        marginal_error=error,
        n_iters=n_iters,
        converged=converged,
        # A tensor may have a graph.
        temperature=temperature_of(given, u) if operands.tau is not None else temperature,
    )


def _prepare(
    given: Given, settings: SolverSettings, noise: Tensor | None, init: Tensor | None
) -> tuple[Operands, SolverSettings]:
    """Check the arguments as :func:`problem` does, and give all of them the same batch."""
    if checks.can_read_values(*given.tensors()):
        problem(given)  # for its errors
    batch = check_problem(given)
    m, n = given.cost.shape[-2:]
    cost, a, b = given.cost, given.a, given.b
    if cost.shape[:-2] != batch:
        cost = cost.expand(*batch, m, n)
    if settings.implicit:
        # Its gradient is computed from the plan, for which half precision is too coarse.
        cost = cost.to(torch.float32)
    slots, inputs = expanded_masks(given, batch)
    if a is not None or b is not None:
        a, b = marginals(given, slots, inputs, cost.to(torch.float32))
    tau = scaled_temperature(given, batch)
    if isinstance(tau, Tensor):
        tau = tau[..., 0, 0].expand(batch)
    else:
        settings, tau = settings._replace(temperature=float(tau)), None
    if init is not None:
        init = init.to(torch.float32).expand(*batch, m)
    operands = (cost, noise, a, b, slots, inputs, tau, init)
    whole: Any = (None if x is None else x.contiguous() for x in operands)
    return Operands(*whole), settings


def _as(dtype: torch.dtype, x: Tensor) -> Tensor:
    """The same numbers in a dtype, without a call of torch if it is theirs."""
    return x if x.dtype == dtype else x.to(dtype)


def flat_vector(x: Tensor | None) -> Tensor | None:
    """(*batch, size) to (B, size)."""
    return None if x is None else x.reshape(-1, x.shape[-1]).contiguous()
