r"""Sinkhorn and MESH in plain torch, in the log domain: the reference for every other backend.

One iteration of Sinkhorn is two half-steps. The first gives every input its mass, the second every
slot, so that slot sums are exact in the result.

MESH is gradient descent on the cost until the Sinkhorn plan has low entropy. The gradient of the
objective with respect to the cost is derived by hand. With :math:`K = -C/\tau`, one iteration is
:math:`v_t = \log b - \mathrm{LSE}_i(K + u_{t-1})` and
:math:`u_t = \log a - \mathrm{LSE}_j(K + v_t)`. Both half-steps are log-sum-exps, so their
derivatives are the softmaxes :math:`Q_t` (over slots) and :math:`R_t` (over inputs), and reverse
mode is a walk back through these. No autograd runs inside, so MESH works under ``no_grad``,
``inference_mode``, ``torch.func`` and ``torch.compile``.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from slotmesh.ops._private import transform
from slotmesh.ops.objectives import Objective
from slotmesh.ops.problem import Problem, SolverSettings

# A gradient shorter than this (the plan is one-hot) is divided by it, not scaled up to length 1.
SHORTEST = 1e-12


class Potentials(NamedTuple):
    """Logarithmic scalings of the rows and columns of the kernel."""

    u: Tensor  # (*batch, m)
    v: Tensor  # (*batch, n)
    n_iters: Tensor  # (*batch), int64


def start(problem: Problem, u: Tensor | None) -> Tensor:
    """The slots' initial potentials: as given or zero, and -inf for padded slots."""
    return first_potentials(problem.a, problem.slots, u)


def first_potentials(a: Tensor, slots: Tensor | None, u: Tensor | None) -> Tensor:
    """The slots' initial potentials, from masses and a mask (*batch, m)."""
    first = torch.zeros_like(a) if u is None else u.to(a.dtype).expand_as(a)
    return first if slots is None else torch.where(slots, first, -torch.inf)


def softmax(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Softmax and log-sum-exp along one dimension, for one exponential per entry.

    The derivative is the softmax itself, which sums to 1. ``torch.logsumexp`` computes its
    derivative from the rounded result, which for large numbers is off by a factor per iteration.
    """
    parts, total, highest = _parts(x, dim)
    return parts / total, (total.log() + highest).squeeze(dim)


def log_sum_exp(x: Tensor, dim: int) -> Tensor:
    """The second result of :func:`softmax` alone, which takes less time."""
    _, total, highest = _parts(x, dim)
    return (total.log() + highest).squeeze(dim)


def _parts(x: Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Exponentials, relative to that of the largest number, their sum and this number."""
    highest = x.detach().amax(dim, keepdim=True)
    parts = (x - highest).exp()
    return parts, parts.sum(dim, keepdim=True), highest


def scale_inputs(log_kernel: Tensor, log_b: Tensor, u: Tensor) -> Tensor:
    """Half-step over inputs: (*batch, m, n), (*batch, n), (*batch, m) to v (*batch, n)."""
    return log_b - log_sum_exp(log_kernel + u.unsqueeze(-1), -2)


def scale_slots(log_kernel: Tensor, log_a: Tensor, v: Tensor) -> Tensor:
    """Half-step over slots: (*batch, m, n), (*batch, m), (*batch, n) to u (*batch, m)."""
    return log_a - log_sum_exp(log_kernel + v.unsqueeze(-2), -1)


def iterate(
    log_kernel: Tensor,
    problem: Problem,
    u: Tensor,
    n_iters: int,
    tol: float | None = None,
) -> Potentials:
    """Run ``n_iters`` iterations from the slots' potentials ``u``.

    With ``tol``, a batch element is frozen once its marginal error is within it: the loop continues
    but leaves it unchanged, so its result does not depend on the rest of the batch.
    """
    log_a, log_b = problem.log_a, problem.log_b
    if tol is None:
        v = log_b
        for _ in range(n_iters):
            v = scale_inputs(log_kernel, log_b, u)
            u = scale_slots(log_kernel, log_a, v)
        count = torch.full(u.shape[:-1], n_iters, dtype=torch.int64, device=u.device)
        return Potentials(u, v, count)

    v = scale_inputs(log_kernel, log_b, u)
    u = scale_slots(log_kernel, log_a, v)
    count = torch.ones(u.shape[:-1], dtype=torch.int64, device=u.device)
    mass = problem.b.detach()
    total = mass.sum(-1).clamp(min=torch.finfo(mass.dtype).tiny)
    done = torch.zeros(u.shape[:-1], dtype=torch.bool, device=u.device)
    for _ in range(n_iters - 1):
        next_v = scale_inputs(log_kernel, log_b, u)
        # Sums over slots before this half-step are b exp(v - next_v): the error comes for free.
        drift = torch.where(log_b > -torch.inf, (v - next_v).detach(), 0.0)
        error = (mass * torch.expm1(drift)).abs().sum(-1) / total
        done = done | (error <= tol)
        v = torch.where(done.unsqueeze(-1), v, next_v)
        u = torch.where(done.unsqueeze(-1), u, scale_slots(log_kernel, log_a, v))
        count = count + (~done).to(count.dtype)
        if all_true(done):
            break
    return Potentials(u, v, count)


def all_true(done: Tensor) -> bool:
    """Whether all batch elements are known to be done, without waiting for a GPU."""
    plain = type(done) is Tensor and done.device.type == "cpu"
    if not plain or torch.compiler.is_compiling() or transform() is not None:
        return False
    return bool(done.all())


def solve(
    task: Problem, cost: Tensor, u: Tensor | None, n_iters: int, tol: float | None = None
) -> tuple[Tensor, Potentials]:
    """Plan and potentials of a cost (*batch, m, n), with masses and temperature of ``task``."""
    log_kernel = -cost / task.tau
    potentials = iterate(log_kernel, task, start(task, u), n_iters, tol)
    return plan_of(log_kernel, task.a, potentials.v), potentials


def plan_of(log_kernel: Tensor, a: Tensor, v: Tensor) -> Tensor:
    """The plan (*batch, m, n) of the inputs' potentials, after the half-step over slots.

    Equal to exp(u + v + log_kernel). Written as masses times shares, slot sums are exact and the
    gradient is right for slots without mass.
    """
    return a.unsqueeze(-1) * torch.softmax(log_kernel + v.unsqueeze(-2), -1)


def objective_gradient(
    log_kernel: Tensor, problem: Problem, u: Tensor, n_iters: int, objective: Objective
) -> tuple[Tensor, Tensor]:
    """Derivative of objective(sinkhorn plan) with respect to the log kernel, for fixed initial u.

    A derivative that cannot be distinguished from rounding is replaced by zero, and so is its own
    derivative: at an exact tie of all slots, for example, its direction would be that of the
    rounding error and its derivative infinite. The rounding error of an entry of the plan is that
    of its exponent, except where a slot has nearly all its mass at one input: that entry has almost
    no error.

    Returns:
        The derivative (*batch, m, n) and the slots' potentials (*batch, m) that Sinkhorn reached.
    """
    log_a, log_b = problem.log_a, problem.log_b
    first = u
    over_slots: list[Tensor] = []
    over_inputs: list[Tensor] = []
    for _ in range(n_iters):
        shares, total = softmax(log_kernel + u.unsqueeze(-1), -2)
        v = log_b - total
        over_slots.append(shares)
        shares, total = softmax(log_kernel + v.unsqueeze(-2), -1)
        u = log_a - total
        over_inputs.append(shares)

    plan = problem.a.unsqueeze(-1) * over_inputs[-1]
    slope = objective.derivative(plan)
    # Slot sums are fixed, so a constant added to a row changes nothing. Subtracting the value at
    # the largest entry avoids cancellation in rows that are nearly one-hot.
    largest = plan.detach().argmax(-1, keepdim=True)
    at_largest = slope.detach().gather(-1, largest)
    grad = plan * (slope - at_largest)
    into_u, into_v = grad.sum(-1), grad.sum(-2)
    for q, r in zip(reversed(over_slots), reversed(over_inputs), strict=True):
        flow = r * into_u.unsqueeze(-1)
        into_v = into_v - flow.sum(-2)
        grad = grad - flow
        flow = q * into_v.unsqueeze(-2)
        into_u = -flow.sum(-1)
        grad = grad - flow
        into_v = torch.zeros_like(into_v)
    # A constant added to a column of K is absorbed by its v, so columns of the gradient sum to 0;
    # whatever is left of their sums is rounding.
    grad = grad - (over_slots[-1] * grad.sum(-2, keepdim=True)).detach()
    sizes = 1.0 + log_kernel.abs() + torch.where(first.isinf(), 0.0, first.abs()).unsqueeze(-1)
    sizes = plan * (1.0 - over_inputs[-1]) * (sizes + slope.abs() + at_largest.abs())
    sizes = sizes.detach()
    rounding = torch.finfo(grad.dtype).eps * sizes.square().sum((-2, -1), keepdim=True).sqrt()
    only_rounding = grad.detach().square().sum((-2, -1), keepdim=True).sqrt() < rounding
    return torch.where(only_rounding, 0.0, grad), u


def descend(
    task: Problem,
    cost: Tensor,
    settings: SolverSettings,
    length: float | Tensor,
    objective: Objective,
) -> tuple[Tensor, Tensor | None]:
    """Take steps of the given length down the objective, from ``cost`` (*batch, m, n).

    Straight through (not ``unroll``) each step subtracts a constant, so the adjusted cost has the
    identity as its gradient.

    Returns:
        The adjusted cost, and the potentials (*batch, m) to start the last Sinkhorn from, or None.
    """
    n_iters, unroll, reuse = settings.n_iters, settings.unroll, settings.reuse
    still = task if unroll else task.detach()
    u = None
    for _ in range(settings.n_steps):
        first = start(task, u)
        log_kernel = -cost / task.tau
        if unroll:
            grad, reached = objective_gradient(log_kernel, still, first, n_iters, objective)
        else:
            grad, reached = objective_gradient(
                log_kernel.detach(), still, first.detach(), n_iters, objective
            )
            grad, reached = grad.detach(), reached.detach()
            if reuse:
                reached = iterate(log_kernel, task, first, n_iters).u
        # d/dC is -1/temperature times d/dK; descending on C therefore ascends on K.
        cost = cost + length * _unit(grad)
        u = None if settings.fresh else reached if reuse else reached.detach()
    return cost, u


def step_length(task: Problem, settings: SolverSettings) -> float | Tensor:
    """Frobenius norm of a step: a float, or (..., 1, 1) if it depends on masks or a temperature."""
    m, n = task.cost.shape[-2:]
    length: float | Tensor = settings.length
    if settings.relative:
        # Straight through, a step is a constant.
        length = length * (task if settings.unroll else task.detach()).tau
    if not settings.per_entry:
        return length
    if task.slots is None and task.inputs is None:
        # Sizes may be symbols, for an exported program.
        return length * torch.sym_sqrt(torch.sym_float(m * n))  # pyright: ignore
    # At least one is a tensor. The other stays a number: copying it to a GPU would synchronise.
    slots = m if task.slots is None else task.slots.sum(-1)
    inputs = n if task.inputs is None else task.inputs.sum(-1)
    entries: Any = slots * inputs
    return length * entries.to(task.cost.dtype).sqrt()[..., None, None]


def _unit(grad: Tensor) -> Tensor:
    """Each matrix scaled to Frobenius norm 1; a constant where the gradient vanishes."""
    squared = grad.square().sum((-2, -1), keepdim=True)
    unit = grad * squared.clamp(min=SHORTEST**2).rsqrt()
    return torch.where(squared < SHORTEST**2, unit.detach(), unit)
