r"""MESH in plain torch: gradient descent on the cost until the Sinkhorn plan has low entropy.

The gradient of the objective by the cost is derived by hand. With :math:`K = -C/\tau`, one
iteration of Sinkhorn is :math:`v_t = \log b - \mathrm{LSE}_i(K + u_{t-1})` and
:math:`u_t = \log a - \mathrm{LSE}_j(K + v_t)`. Both half-steps are log-sum-exps, so their
derivatives are the softmaxes :math:`Q_t` (over slots) and :math:`R_t` (over inputs), and reverse
mode is a walk back through these. No autograd runs inside, so MESH works under ``no_grad``,
``inference_mode``, ``torch.func`` and ``torch.compile``.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from slotmesh.ops._problem import Problem
from slotmesh.ops.mesh.objectives import Objective
from slotmesh.ops.sinkhorn.naive import iterate, softmax, start

# A shorter gradient is not blown up to length 1, only divided by this: the plan is hard.
SHORTEST = 1e-12


class Descent(NamedTuple):
    """Where the descent ended."""

    cost: Tensor  # (*batch, m, n), the changed cost
    u: Tensor | None  # (*batch, m), potentials to start the last Sinkhorn from


def objective_gradient(
    log_kernel: Tensor, problem: Problem, u: Tensor, n_iters: int, objective: Objective
) -> tuple[Tensor, Tensor]:
    """Derivative of objective(sinkhorn plan) by the log kernel, at fixed starting potentials.

    It is zero, as is its own derivative, where it cannot be told from rounding: at an exact tie of
    all slots, say, where its direction would be that of the rounding, and its derivative infinite.
    Entries of the plan are as exact as the numbers that they are exponentials of, and where a slot
    has nearly all its mass at one input, that entry has next to no error.

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
    # Slot sums are fixed, so what is the same in a row changes nothing. Without the value at its
    # largest entry, a row that is nearly hard has small numbers where it had their cancellation.
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
    # What is added to a column of K is taken off its v, and nothing else changes: columns sum to 0,
    # and what is left of their sums is rounding.
    grad = grad - (over_slots[-1] * grad.sum(-2, keepdim=True)).detach()
    sizes = 1.0 + log_kernel.abs() + torch.where(first.isinf(), 0.0, first.abs()).unsqueeze(-1)
    sizes = plan * (1.0 - over_inputs[-1]) * (sizes + slope.abs() + at_largest.abs())
    sizes = sizes.detach()
    rounding = torch.finfo(grad.dtype).eps * sizes.square().sum((-2, -1), keepdim=True).sqrt()
    only_rounding = grad.detach().square().sum((-2, -1), keepdim=True).sqrt() < rounding
    return torch.where(only_rounding, 0.0, grad), u


def descend(
    cost: Tensor,
    problem: Problem,
    *,
    length: float | Tensor,
    n_steps: int,
    n_iters: int,
    temperature: float | Tensor,
    potentials: str,
    objective: Objective,
    unroll: bool,
) -> Descent:
    """Take ``n_steps`` steps of the given length down the objective, from ``cost`` (*batch, m, n).

    Straight through (not ``unroll``) each step subtracts a constant, so the changed cost has the
    identity as its gradient.
    """
    still = problem if unroll else problem.detach()
    u = None
    for _ in range(n_steps):
        first = start(problem, u)
        log_kernel = -cost / temperature
        if unroll:
            grad, reached = objective_gradient(log_kernel, still, first, n_iters, objective)
        else:
            grad, reached = objective_gradient(
                log_kernel.detach(), still, first.detach(), n_iters, objective
            )
            grad, reached = grad.detach(), reached.detach()
            if potentials == "reuse":
                reached = iterate(log_kernel, problem, first, n_iters).u
        # d/dC is -1/temperature times d/dK; descending on C therefore ascends on K.
        cost = cost + length * _unit(grad)
        u = None if potentials == "fresh" else reached
        if potentials == "detach" and u is not None:
            u = u.detach()
    return Descent(cost, u)


def _unit(grad: Tensor) -> Tensor:
    """Each matrix scaled to Frobenius norm 1; a constant where there is next to nothing."""
    squared = grad.square().sum((-2, -1), keepdim=True)
    unit = grad * squared.clamp(min=SHORTEST**2).rsqrt()
    return torch.where(squared < SHORTEST**2, unit.detach(), unit)
