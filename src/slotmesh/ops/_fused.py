"""``sinkhorn`` and ``mesh`` as one operator of torch on top of the kernels, and when it can run.

The operators (``slotmesh::transport`` and its gradients) are known to torch without triton, which
is imported when one of them runs.
"""

import importlib.util
import os
from typing import Any, Literal, NamedTuple, get_type_hints

import torch
from torch import Tensor

from slotmesh.ops import checks
from slotmesh.ops._private import custom_op, transform, unpack_dual
from slotmesh.ops.problem import (
    CONVERGED,
    Given,
    SolverSettings,
    check_problem,
    expanded_masks,
    full_precision,
    marginals,
    problem,
    real_entries,
    scaled_temperature,
)
from slotmesh.ops.transport import Transport

Backend = Literal["auto", "torch", "triton", "cpu"]
BACKENDS: tuple[Backend, ...] = ("auto", "torch", "triton", "cpu")

MOST_SLOTS, MOST_INPUTS = 64, 65_536
# Per batch element, over slots and iterations: the kernels use 32-bit offsets inside it.
MOST_RECORDED = 2**31 - 1
HALF_OR_SINGLE = (torch.float32, torch.bfloat16, torch.float16)

_HAS_TRITON = importlib.util.find_spec("triton") is not None


# ---- whether a kernel runs ----


def use_kernel(
    given: Given, backend: str, settings: SolverSettings, beyond: str | None, *more: object
) -> bool:
    """Whether the kernel runs; a ValueError if it was asked for by name and cannot.

    Args:
        given: The arguments, of which ``cost`` has been checked to be a matrix.
        backend: The backend that the caller asked for.
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
    elif reason is None and 3 * settings.n_iters * m > MOST_RECORDED:
        most = MOST_RECORDED // (3 * m)
        reason = (
            f"n_iters is {settings.n_iters}, and the kernels take at most {most} with {m} slots"
        )
    reason = reason or cannot_run("cost", given.cost, *given.tensors()[1:], *more)
    return _fits(given.op, backend, reason, "Use backend='auto' to choose one, or backend='torch'.")


def use_solver(
    op: str, backend: str, cost: Tensor, most: tuple[int, int], others: tuple[str, ...]
) -> bool:
    """The same for the kernels of the exact solvers.

    Args:
        op: Name of the operation.
        backend: The backend that the caller asked for.
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


def cannot_run(name: str, x: Tensor, *others: object) -> str | None:
    """Why no kernel can take this tensor, whatever its shape, or None."""
    reason = _no_kernel(name, x, HALF_OR_SINGLE)
    if reason is None and not torch.compiler.is_compiling():
        if transform() is not None:
            return "this is inside a transform of torch.func, which the kernels do not support"
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


# ---- the operators ----


class Operands(NamedTuple):
    """Tensors of a kernel: one batch dimension, contiguous; None where there is nothing."""

    cost: Tensor  # (B, m, n), any floating dtype up to float32
    noise: Tensor | None  # (B, m, n), in units of sigma
    a: Tensor | None  # (B, m), together with b or not at all
    b: Tensor | None  # (B, n)
    slots: Tensor | None  # (B, m), True where real
    inputs: Tensor | None  # (B, n)
    tau: Tensor | None  # (B,), used instead of the temperature
    init: Tensor | None  # (B, m), the first u


class Results(NamedTuple):
    """What the forward kernel fills."""

    plan: Tensor  # (B, m, n), in the dtype of the cost
    u: Tensor  # (B, m)
    v: Tensor  # (B, n)
    error: Tensor  # (B,), of the marginals
    trace: Tensor  # (1 + kept steps, B, 3 n_iters, m), for the backward kernel
    changed: Tensor  # (B, m, n), the adjusted cost; empty for Sinkhorn, like the next
    history: Tensor  # (kept steps, B, m, n), the costs before it


class Past(NamedTuple):
    """What the forward kernel leaves for the backward kernel."""

    trace: Tensor
    history: Tensor | None  # None unless the gradient goes through all steps


class Incoming(NamedTuple):
    """Gradients of results; None where there is none."""

    plan: Tensor | None
    u: Tensor | None
    v: Tensor | None
    changed: Tensor | None


class Wanted(NamedTuple):
    """Which gradients to compute besides that of the cost, and the dtype of that one."""

    masses: bool
    tau: bool
    init: bool
    dtype: torch.dtype


class Gradients(NamedTuple):
    """What the backward kernel fills; empty where not wanted."""

    cost: Tensor
    a: Tensor
    b: Tensor
    tau: Tensor
    init: Tensor


_SCHEMA = {
    Tensor: "Tensor",
    Tensor | None: "Tensor?",
    float: "float",
    float | None: "float?",
    int: "SymInt",
    bool: "bool",
    torch.dtype: "ScalarType",
}


def _flat_op(name: str, returns: type[Any], *parts: type[Any]) -> Any:
    """Make an operator of a function of NamedTuples; torch.library wants flat arguments."""
    # Numbered, as two parts may have fields of one name.
    hints = [kind for part in parts for kind in get_type_hints(part).values()]
    arguments = ", ".join(f"{_SCHEMA[kind]} x{i}" for i, kind in enumerate(hints))
    schema = f"({arguments}) -> ({', '.join(['Tensor'] * len(returns._fields))})"

    def decorate(function: Any) -> Any:
        def flat(*args: Any) -> tuple[Tensor, ...]:
            return tuple(function(*_split(args, *parts)))

        return custom_op(name, flat, mutates_args=(), schema=schema)

    return decorate


def _split(args: tuple[Any, ...], *parts: Any) -> list[Any]:
    """Flat arguments as NamedTuples again."""
    found: list[Any] = []
    for part in parts:
        size = len(part._fields)
        found.append(part(*args[:size]))
        args = args[size:]
    return found


@_flat_op("slotmesh::transport", Results, Operands, SolverSettings)
def transport_op(operands: Operands, settings: SolverSettings) -> Results:
    """Sinkhorn, or MESH."""
    from slotmesh.ops._triton import launch

    results = _results(operands, settings)
    launch.forward(operands, settings, results)
    return results


@transport_op.register_fake
def _(*args: Any) -> Results:
    return _results(*_split(args, Operands, SolverSettings))


def _results(operands: Operands, settings: SolverSettings) -> Results:
    cost, mesh = operands.cost, settings.mesh
    batch, m, n = cost.shape
    kept = settings.n_steps if settings.keep else 0

    def empty(*shape: int) -> Tensor:
        return cost.new_empty(shape, dtype=torch.float32)

    return Results(
        plan=torch.empty_like(cost),
        u=empty(batch, m),
        v=empty(batch, n),
        error=empty(batch),
        trace=empty(kept + 1, batch, 3 * settings.n_iters, m),
        changed=empty(batch, m, n) if mesh else empty(0),
        history=empty(kept, batch, m, n) if mesh else empty(0),
    )


@_flat_op(
    "slotmesh::transport_backward", Gradients, Operands, Past, Incoming, SolverSettings, Wanted
)
def transport_backward(
    operands: Operands, past: Past, incoming: Incoming, settings: SolverSettings, wanted: Wanted
) -> Gradients:
    """Gradients through the iterations; ``operands.cost`` is the cost that the plan belongs to."""
    from slotmesh.ops._triton import launch

    grads = _gradients(operands, past, wanted)
    into = Incoming(*(None if g is None else g.contiguous() for g in incoming))
    launch.backward(operands, past, into, settings, wanted, grads)
    return grads._replace(cost=grads.cost.to(wanted.dtype))


@transport_backward.register_fake
def _(*args: Any) -> Gradients:
    operands, past, _, _, wanted = _split(args, Operands, Past, Incoming, SolverSettings, Wanted)
    grads = _gradients(operands, past, wanted)
    return grads._replace(cost=grads.cost.to(wanted.dtype))


def _gradients(operands: Operands, past: Past, wanted: Wanted) -> Gradients:
    cost = operands.cost
    batch, m, n = cost.shape

    def vector(needed: bool, *shape: int) -> Tensor:
        return cost.new_empty(shape if needed else (0,), dtype=torch.float32)

    # Several Sinkhorns add to one gradient, which half precision would round each time.
    kind = wanted.dtype if past.history is None else torch.float32
    return Gradients(
        cost=cost.new_empty(cost.shape, dtype=kind),
        a=vector(wanted.masses, batch, m),
        b=vector(wanted.masses, batch, n),
        tau=vector(wanted.tau, batch),
        init=vector(wanted.init, batch, m),
    )


@custom_op("slotmesh::plan_adjoint", mutates_args=())
def plan_adjoint(plan: Tensor, grad: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """Pull a gradient of plans (B, m, n) back to log kernels, times scale, a and b.

    As :func:`slotmesh.ops.sinkhorn.implicit.plan_adjoint`; masses are float32 in any case.
    """
    from slotmesh.ops._triton.adjoint import adjoint

    found = _adjoint(plan)
    if plan.numel():
        adjoint(plan.contiguous(), grad.contiguous(), *found, scale)
    return found


@plan_adjoint.register_fake
def _(plan: Tensor, grad: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    return _adjoint(plan)


def _adjoint(plan: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    batch, m, n = plan.shape
    return (
        plan.new_empty((batch, m, n)),
        plan.new_empty((batch, m), dtype=torch.float32),
        plan.new_empty((batch, n), dtype=torch.float32),
    )


# ---- derivatives ----


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    operands, settings = _split(inputs, Operands, SolverSettings)
    results = Results(*output)
    ctx.set_materialize_grads(False)
    ctx.settings, ctx.dtype = settings, operands.cost.dtype
    cost = results.changed if settings.mesh else operands.cost
    constant = [results.error, results.trace, results.history]
    if not settings.mesh:
        constant.append(results.changed)
    if settings.implicit:
        constant += [results.u, results.v]
        kept = (results.plan, None)
    else:
        kept = (results.trace, results.history if settings.keep else None)
    ctx.mark_non_differentiable(*constant)
    # Neither the noise nor the first potentials are needed: only the cost that they led to.
    ctx.save_for_backward(cost, *operands[2:7], *kept)


def _backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    cost, a, b, slots, inputs, tau, first, history = ctx.saved_tensors
    operands = Operands(cost, None, a, b, slots, inputs, tau, None)
    needs = Operands(*ctx.needs_input_grad[: len(Operands._fields)])
    settings = ctx.settings
    incoming = Incoming(grads[0], grads[1], grads[2], grads[5] if settings.mesh else None)
    if settings.implicit:
        found = _implicit(operands, first, incoming, settings)
    else:
        # The noise gets the gradient of the cost as well, in float32.
        dtype = torch.float32 if needs.noise else ctx.dtype
        wanted = Wanted(bool(needs.a or needs.b), bool(needs.tau), bool(needs.init), dtype)
        past = Past(first, history)
        found = transport_backward(*operands, *past, *incoming, *settings, *wanted)
    grad_cost, grad_a, grad_b, grad_tau, grad_init = found
    given = grad_cost is not None
    return (
        grad_cost.to(ctx.dtype) if needs.cost and given else None,
        settings.sigma * grad_cost if needs.noise and given else None,
        grad_a if needs.a else None,
        grad_b if needs.b else None,
        None,
        None,
        grad_tau if needs.tau else None,
        grad_init if needs.init else None,
        *(None,) * len(settings),
    )


def _implicit(
    operands: Operands, plan: Tensor, incoming: Incoming, settings: SolverSettings
) -> tuple[Tensor | None, ...]:
    """Gradients as of a converged plan; None where nothing arrives."""
    grads: tuple[Tensor | None, ...] = (None,) * 5
    tau = operands.tau
    if incoming.plan is not None:
        grad_cost, grad_a, grad_b = plan_adjoint(plan, incoming.plan, -1.0 / settings.temperature)
        grad_tau = None
        if tau is not None:
            grad_cost = grad_cost / tau[:, None, None]
            # Padding may have any cost.
            used = torch.where(grad_cost == 0, 0.0, grad_cost * operands.cost)
            grad_tau = -used.sum((-2, -1)) / tau
        grads = (grad_cost, grad_a, grad_b, grad_tau, None)
    if incoming.changed is not None:
        real = real_entries(operands.slots, operands.inputs)
        direct = incoming.changed if real is None else torch.where(real, incoming.changed, 0.0)
        grads = (direct if grads[0] is None else grads[0] + direct, *grads[1:])
    return grads


transport_op.register_autograd(_backward, setup_context=_setup)


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
        batch, operands, settings = _flatten(given, settings, noise, init)
        leaves = [x for x in operands if x is not None]
        graph = torch.is_grad_enabled() and any(x.requires_grad for x in leaves)
        settings = settings._replace(keep=settings.reuse and settings.n_steps > 0 and graph)
        results = Results(*transport_op(*operands, *settings))
    m, n = cost.shape[-2:]
    error = results.error.view(batch)
    return Transport(
        plan=results.plan.view(*batch, m, n).to(cost.dtype),
        u=results.u.view(*batch, m),
        v=results.v.view(*batch, n),
        cost=results.changed.view(*batch, m, n) if settings.mesh else cost,
        marginal_error=error,
        n_iters=torch.full(batch, settings.n_iters, dtype=torch.int64, device=cost.device),
        converged=error <= CONVERGED,
    )


def _flatten(
    given: Given, settings: SolverSettings, noise: Tensor | None, init: Tensor | None
) -> tuple[tuple[int, ...], Operands, SolverSettings]:
    """Check the arguments as :func:`problem` does, and give them one batch dimension."""
    if checks.can_read_values(*given.tensors()):
        problem(given)  # for its errors
    batch = check_problem(given)
    m, n = given.cost.shape[-2:]
    cost, a, b = given.cost.expand(*batch, m, n), given.a, given.b
    if settings.implicit:
        # Its gradient is computed from the plan, for which half precision is too coarse.
        cost = cost.to(torch.float32)
    slots, inputs = expanded_masks(given, batch)
    if a is not None or b is not None:
        a, b = marginals(given, slots, inputs, cost.to(torch.float32))
    tau = scaled_temperature(given, batch)
    if isinstance(tau, Tensor):
        tau = tau[..., 0, 0].expand(batch).reshape(-1).contiguous()
    else:
        settings, tau = settings._replace(temperature=float(tau)), None
    if init is not None:
        init = init.to(torch.float32).expand(*batch, m)
    cost = cost.reshape(-1, m, n).contiguous()
    operands = Operands(
        cost,
        None if noise is None else noise.reshape(cost.shape).contiguous(),
        flat_vector(a),
        flat_vector(b),
        flat_vector(slots),
        flat_vector(inputs),
        tau,
        flat_vector(init),
    )
    return batch, operands, settings


def flat_vector(x: Tensor | None) -> Tensor | None:
    """(*batch, size) to (B, size)."""
    return None if x is None else x.reshape(-1, x.shape[-1]).contiguous()
