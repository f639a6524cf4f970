"""The correctness check: errors of results, and their limits."""

import importlib.util
import math
from typing import Any

import torch
from torch import Tensor

from slotmesh.ops import Transport, assign, emd

LIMITS = {"plan": 1e-5, "gradient": 1e-4, "gap": 1e-6, "mass": 1e-6, "pot": 1e-6, "total": 1e-12}
"""Limits of relative errors by kind. plan, gradient: against pure torch in float64, Frobenius norm.
gap: cost of an exact plan above the lower bound that its potentials prove. mass: misplaced mass.
pot: cost of an exact plan, against POT. total: cost of an assignment, against SciPy."""

# POT takes up to seconds per problem; the potentials certify the others.
POT_PROBLEMS = 4


def passed(errors: dict[str, float], limits: dict[str, float] = LIMITS) -> bool:
    """Return whether all errors are within their limits; NaN never is.

    Example:
        >>> from benchmarks.gate import passed
        >>> passed({"plan": 3e-7}), passed({"plan": 1e-3}), passed({"plan": float("nan")})
        (True, False, False)
    """
    return all(error <= limits[kind] for kind, error in errors.items())


def noted(errors: dict[str, float]) -> dict[str, float | None]:
    """Return errors for a result file: three digits, None if not finite."""
    return {k: float(f"{v:.3g}") if math.isfinite(v) else None for k, v in errors.items()}


def relative(x: Tensor, truth: Tensor) -> float:
    """Return the norm of the difference divided by the norm of the truth."""
    truth = truth.double()
    return ((x.double() - truth).norm() / truth.norm()).item()


def has_pot() -> bool:
    """Return whether POT is installed."""
    return importlib.util.find_spec("ot") is not None


def exact_errors(found: Transport, a: Tensor, b: Tensor) -> dict[str, float]:
    """Return the errors of exact transport for float64 masses ``(batch, m)`` and ``(batch, n)``."""
    cost, plan, v = (x.double() for x in (found.cost, found.plan, found.v))
    value = (plan * cost).sum((-2, -1))
    # With the largest feasible u for v, the dual value is a lower bound for any v.
    u = (cost - v.unsqueeze(-2)).amin(-1)
    bound = (a * u).sum(-1) + (b * v).sum(-1)
    wrong = (plan.sum(-1) - a).abs().sum(-1) + (plan.sum(-2) - b).abs().sum(-1)
    errors = {
        "gap": _largest((value - bound) / value),
        "mass": _largest(wrong / a.sum(-1)),
    }
    if has_pot():
        k = POT_PROBLEMS
        best = emd(cost[:k].cpu(), a[:k].cpu(), b[:k].cpu(), backend="pot")
        least = (best.plan * best.cost).sum((-2, -1))
        errors["pot"] = _largest((value[:k].cpu() - least) / least)
    return errors


def plan_errors(plan: Tensor, cost: Tensor, a: Tensor, b: Tensor) -> dict[str, float]:
    """Return the errors of exact plans, with the potentials that slotmesh finds as a bound."""
    best = emd(cost.double(), a, b)
    return exact_errors(best._replace(plan=plan), a, b)


def assignment_errors(partner: Tensor, cost: Tensor) -> dict[str, float]:
    """Return the error of assignments ``(batch, n)`` for square costs ``(batch, n, n)``."""
    best = assign(cost.cpu().double(), backend="scipy")
    total, least = (_total(cost.cpu().double(), p) for p in (partner.cpu(), best))
    return {"total": _largest((total - least) / least)}


def _total(cost: Tensor, partner: Tensor) -> Tensor:
    """Return the total cost of each problem; NaN if the assignment is not one-to-one."""
    everyone = torch.arange(cost.shape[-1]).expand_as(partner)
    right = (partner.sort(-1).values == everyone).all(-1)
    total = cost.gather(-1, partner.clamp(min=0).unsqueeze(-1)).sum((-2, -1))
    return torch.where(right, total, torch.nan)


def _largest(x: Any) -> float:
    # amax propagates NaN.
    return x.abs().amax().item()
