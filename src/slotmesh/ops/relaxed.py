r"""Partial and unbalanced transport in plain torch, in the log domain.

Both are Sinkhorn with other half-steps (Chizat et al. 2018). With :math:`K = -C/\tau`, a penalty
:math:`\rho` for the Kullback-Leibler divergence between sums and masses multiplies the usual
:math:`v = \log b - \mathrm{LSE}_i(K + u)` by :math:`\rho / (\rho + \tau)`. Where sums may be below
masses and a share of the mass is transported, it becomes
:math:`\min(0, \log b - \mathrm{LSE}_i(K + u + \lambda))`, and :math:`\lambda` scales the plan to
its mass after each iteration.
"""

import math
from numbers import Real
from typing import Any, NamedTuple

import torch
from torch import Tensor

from slotmesh.ops import checks
from slotmesh.ops._naive import Potentials, all_true, log_sum_exp, scale_inputs, scale_slots, start
from slotmesh.ops.problem import (
    CONVERGED,
    Given,
    Problem,
    SolverSettings,
    full_precision,
    problem,
    temperature_of,
)
from slotmesh.ops.transport import Transport


class Relaxation(NamedTuple):
    """How far sums may be from masses; one of the two is given."""

    share: float | None
    penalty: tuple[float, float] | None
    """For slots and for inputs; infinite for exact sums."""

    @property
    def words(self) -> str:
        """The requested option in words."""
        return "share is given" if self.penalty is None else "penalty is given"


def relaxation(
    op: str, share: object, penalty: object, grad: str, init: object = None
) -> Relaxation:
    """Check the two options, of which one is given."""
    if share is not None and penalty is not None:
        raise ValueError(
            f"{op}: got both share={share} and penalty={penalty}, expected one of them. Pass share "
            "to transport a part of the mass, or penalty to let sums differ from masses."
        )
    if grad != "unroll":
        raise ValueError(
            f"{op}: grad is '{grad}', expected 'unroll' with share or penalty, whose fixed point "
            "has other derivatives."
        )
    if penalty is not None:
        several = isinstance(penalty, tuple | list)
        pair: list[Any] = list(penalty) if several else [penalty, penalty]  # pyright: ignore
        if len(pair) != 2:
            raise ValueError(
                f"{op}: penalty has {len(pair)} entries, expected a number or one for slots and "
                "one for inputs."
            )
        first, second = (_penalty(op, x) for x in pair)
        return Relaxation(None, (first, second))
    if init is not None:
        raise ValueError(
            f"{op}: got both init and share, expected one of them: the potentials of partial "
            "transport cannot be continued. Leave init out."
        )
    number = checks.as_real(op, "share", share, positive=True)
    if number > 1:
        raise ValueError(
            f"{op}: share is {share!r}, expected at most 1: the share of the smaller total mass "
            "that is transported."
        )
    return Relaxation(number, None)


def _penalty(op: str, value: object) -> float:
    if isinstance(value, Real) and value == math.inf:
        return math.inf
    return checks.as_real(op, "penalty", value, positive=True)


def relaxed_transport(
    given: Given, settings: SolverSettings, relaxed: Relaxation, u: Tensor | None
) -> Transport:
    """``sinkhorn`` with sums that may differ from the masses."""
    task = problem(given, balanced=False)
    with full_precision(given.cost):
        log_kernel = -task.cost / task.tau
        found = _iterate(task, log_kernel, settings, relaxed, start(task, u))
        plan = _plan(task, log_kernel, found.u, found.v)
        error = _error(task, plan.detach(), found.v.detach(), relaxed)
    return Transport(
        plan=plan.to(given.cost.dtype),
        u=found.u,
        v=found.v,
        cost=given.cost,
        marginal_error=error,
        n_iters=found.n_iters,
        converged=error <= (CONVERGED if settings.tol is None else settings.tol),
        temperature=temperature_of(given, found.u),
    )


def _iterate(
    task: Problem, log_kernel: Tensor, settings: SolverSettings, relaxed: Relaxation, u: Tensor
) -> Potentials:
    """Potentials, of which those of the slots include the factor of partial transport."""
    mass = task.b.detach()
    total = mass.sum(-1).clamp(min=torch.finfo(mass.dtype).tiny)
    factor = torch.zeros_like(total)
    v = torch.zeros_like(task.b)
    count = torch.zeros(u.shape[:-1], dtype=torch.int64, device=u.device)
    done = torch.zeros(u.shape[:-1], dtype=torch.bool, device=u.device)
    for _ in range(settings.n_iters):
        now = _once(task, log_kernel, relaxed, u, factor)
        count = count + (~done).to(count.dtype)
        if settings.tol is None:
            u, v, factor = now
        else:
            frozen = done.unsqueeze(-1)
            # The sums may be right before the plan is: it must have stopped changing as well.
            drift = torch.where(task.b > 0, (v - now[1]).detach(), 0.0)
            drift = drift + (factor - now[2]).detach().unsqueeze(-1)
            change = (mass * torch.expm1(drift)).abs().sum(-1) / total
            u, v = torch.where(frozen, u, now[0]), torch.where(frozen, v, now[1])
            factor = torch.where(done, factor, now[2])
            plan = _plan(task, log_kernel, u + factor.unsqueeze(-1), v).detach()
            error = _error(task, plan, v.detach(), relaxed)
            done = done | ((error <= settings.tol) & (change <= settings.tol))
            if all_true(done):
                break
    return Potentials(u + factor.unsqueeze(-1), v, count)


def _plan(task: Problem, log_kernel: Tensor, u: Tensor, v: Tensor) -> Tensor:
    exponent = log_kernel + u.unsqueeze(-1) + v.unsqueeze(-2)
    some = (task.a.sum(-1) > 0) & (task.b.sum(-1) > 0)
    return torch.where(some[..., None, None], exponent.exp(), 0.0)


def _once(
    task: Problem, log_kernel: Tensor, relaxed: Relaxation, u: Tensor, factor: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    if relaxed.penalty is not None:
        tau = task.tau[..., 0] if isinstance(task.tau, Tensor) else task.tau
        scales = [1.0 if rho == math.inf else rho / (rho + tau) for rho in relaxed.penalty]
        v = _scaled(scales[1], scale_inputs(log_kernel, task.log_b, u))
        u = _scaled(scales[0], scale_slots(log_kernel, task.log_a, v))
        return u, v, factor
    shift = factor.unsqueeze(-1)
    v = scale_inputs(log_kernel, task.log_b, u + shift).clamp(max=0.0)
    sums = log_sum_exp(log_kernel + v.unsqueeze(-2), -1)
    u = (task.log_a - sums - shift).clamp(max=0.0)
    smaller = torch.minimum(task.a.sum(-1), task.b.sum(-1))
    wanted = (relaxed.share or 0.0) * smaller.clamp(min=torch.finfo(u.dtype).tiny)
    return u, v, wanted.log() - log_sum_exp(u + sums, -1)


def _scaled(scale: float | Tensor, potentials: Tensor) -> Tensor:
    """Potentials times a positive number, for which infinite ones would have the gradient NaN."""
    none = potentials == -torch.inf
    return torch.where(none, -torch.inf, scale * torch.where(none, 0.0, potentials))


def _error(task: Problem, plan: Tensor, v: Tensor, relaxed: Relaxation) -> Tensor:
    """Mass that is not where the potentials want it, as a share of the mass of the plan."""
    rows, columns = plan.sum(-1), plan.sum(-2)
    total = rows.sum(-1).clamp(min=torch.finfo(plan.dtype).tiny)
    if relaxed.penalty is None:
        above = (rows - task.a).clamp(min=0).sum(-1) + (columns - task.b).clamp(min=0).sum(-1)
        below = torch.where(v < 0, (task.b - columns).clamp(min=0), 0.0).sum(-1)
        return (above + below) / total
    tau = task.tau[..., 0] if isinstance(task.tau, Tensor) else task.tau
    rho = relaxed.penalty[1]
    strength = torch.where(task.b > 0, v, 0.0) * (0.0 if rho == math.inf else tau / rho)
    return (columns - task.b * torch.exp(-strength)).abs().sum(-1) / total
