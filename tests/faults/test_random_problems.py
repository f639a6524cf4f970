"""Random transport problems: whatever is asked for, what comes back keeps its promises.

A failure names the seed and the index of its case; SLOTMESH_SEED and `repeat` below bring it back.
"""

import math
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from slotmesh import emd, mesh, sinkhorn
from slotmesh.ops import Transport, _native, assign

from ._problems import Case, draw

OPS: dict[str, Any] = {"sinkhorn": sinkhorn, "mesh": mesh, "emd": emd}


def cases(campaign: Any, name: str, short: int, long: int, batch: int) -> Iterator[tuple]:
    """(random numbers, how to repeat it) of each case, together so many problems."""
    batch = batch if not campaign.long else 32 * batch
    for index in range(math.ceil(campaign.size(short, long) / batch)):
        what = f"{name}/{index}"
        campaign.count(f"{name}: problems", batch)
        yield campaign.rng(what), batch, f"SLOTMESH_SEED={campaign.seed}, case {what!r}"


def call(case: Case, cost: Tensor, **changes: Any) -> Transport:
    arguments = {**case.arguments(), **changes}
    if arguments.get("backend") == "cpu" and _native.unavailable():
        arguments["backend"] = "torch"
    return OPS[case.op](cost, **arguments)


@pytest.mark.parametrize("op", ["sinkhorn", "mesh"])
def test_promises(campaign, op):
    for rng, batch, where in cases(campaign, op, 640, 460_000, 16):
        case = draw(rng, batch, op)
        try:
            t = check_result(case)
            check_gradients(case, t)
            check_alone(case, t, rng)
        except Exception as error:
            error.add_note(f"{where}: {describe(case)}")
            raise


def describe(case: Case) -> str:
    given = [k for k, x in (case.masses | case.masks).items() if x is not None]
    options = {k: v for k, v in case.options.items() if not isinstance(v, (Tensor, tuple))}
    return f"{case.op} of {tuple(case.cost.shape)} {case.cost.dtype}, {given}, {options}"


def marginals(case: Case) -> tuple[Tensor, Tensor]:
    """The masses (*batch, m) and (*batch, n) that are asked for, in float64."""
    *batch, m, n = case.cost.shape

    def real(name: str, size: int) -> Tensor:
        mask = case.masks[name]
        return torch.ones(*batch, size).double() if mask is None else mask.double()

    a, b = (None if x is None else x.double() for x in case.masses.values())
    slots, inputs = real("slot_mask", m), real("input_mask", n)
    if a is None:
        total = slots.sum(-1, keepdim=True) if b is None else b.sum(-1, keepdim=True)
        a = total * slots / slots.sum(-1, keepdim=True)
    if b is None:
        b = a.sum(-1, keepdim=True) * inputs / inputs.sum(-1, keepdim=True)
    return a, b


def check_result(case: Case) -> Transport:
    t = call(case, case.cost)
    a, b = marginals(case)
    plan = t.plan.double()
    eps = torch.finfo(t.plan.dtype).eps
    assert t.plan.dtype == case.cost.dtype
    assert t.plan.shape == t.cost.shape == case.cost.shape
    assert t.plan.isfinite().all(), "plan"
    assert (t.plan >= 0).all(), "plan"
    assert t.cost.isfinite().all(), "cost"
    assert not t.u.isnan().any(), "u"
    assert not t.v.isnan().any(), "v"
    for name, dim in (("slot_mask", -1), ("input_mask", -2)):
        if case.masks[name] is not None:
            assert (t.plan * ~case.masks[name].unsqueeze(dim) == 0).all(), name
    tolerance = 4 * max(eps, 1e-6 if t.plan.dtype != torch.float64 else 1e-14)
    least = plan.shape[-1] * torch.finfo(t.plan.dtype).tiny
    assert ((plan.sum(-1) - a).abs() <= tolerance * a + least).all(), "slot sums"
    wrong = (plan.sum(-1) - a).abs().sum(-1) + (plan.sum(-2) - b).abs().sum(-1)
    wrong = wrong / a.sum(-1)
    off = plan.shape[-1] * least / a.sum(-1)
    assert ((t.marginal_error - wrong).abs() <= 4 * tolerance + off).all(), "marginal error"
    check_potentials(case, t)
    tol = case.options.get("tol")
    assert torch.equal(t.converged, t.marginal_error <= (1e-3 if tol is None else tol)), "converged"
    assert (t.n_iters <= case.options["n_iters"]).all(), "iterations"
    return t


def check_potentials(case: Case, t: Transport) -> None:
    """plan = exp(u + v - cost / temperature), as exact as the numbers in the exponent."""
    tau = case.options["temperature"]
    tau = tau[..., None, None].to(t.u.dtype).double() if isinstance(tau, Tensor) else tau
    kernel, u, v = t.cost.double() / tau, t.u.double().unsqueeze(-1), t.v.double().unsqueeze(-2)
    # In C an entry is at least 1e-30 of its column's largest, and then scaled by up to 1e8 twice.
    least = 1e-12 * t.plan.double().amax((-2, -1), keepdim=True)
    filled = t.plan > least.clamp(min=100 * torch.finfo(t.plan.dtype).tiny)
    log = torch.where(filled, t.plan.double(), 1.0).log()
    size = 1 + (kernel.abs() + u.abs() + v.abs()).where(filled, 0.0).amax((-2, -1), keepdim=True)
    off = torch.where(filled, u + v - kernel - log, 0.0).abs()
    eps = max(torch.finfo(t.plan.dtype).eps, torch.finfo(t.u.dtype).eps * 16)
    assert (off <= eps * size).all(), "potentials"


def leaf(x: Any) -> Any:
    good = isinstance(x, Tensor) and x.is_floating_point()
    return x.detach().clone().requires_grad_() if good else x


def check_gradients(case: Case, t: Transport) -> None:
    """Finite, and where the cost is not real, zero."""
    cost = leaf(case.cost)
    masses = {k: leaf(x) for k, x in case.masses.items()}
    weights = torch.linspace(-1, 1, t.plan[0].numel()).view(t.plan.shape[1:]).to(t.plan.dtype)
    again = call(case, cost, **masses)
    assert torch.equal(again.plan, t.plan), "a graph changes values"
    given = [cost, *(x for x in masses.values() if x is not None)]
    found = torch.autograd.grad((again.plan * weights).sum(), given, allow_unused=True)
    for x in found:
        # Masses over temperatures may be more than float16 can say.
        good = x is None or (~x.isnan() if x.dtype == torch.float16 else x.isfinite()).all()
        assert good, "gradients"
    for name, dim in (("slot_mask", -1), ("input_mask", -2)):
        if case.masks[name] is not None:
            padding = ~case.masks[name].unsqueeze(dim).expand_as(cost)
            assert (found[0][padding] == 0).all(), name


def check_alone(case: Case, t: Transport, rng: random.Random) -> None:
    """One element by itself has the same plan to the bit."""
    index = tuple(rng.randrange(k) for k in case.cost.shape[:-2])
    here = tuple(slice(i, i + 1) for i in index)

    def one(x: Any) -> Any:
        if isinstance(x, tuple):
            return tuple(one(y) for y in x)
        return x[here] if isinstance(x, Tensor) else x

    alone = call(case, one(case.cost), **{k: one(x) for k, x in case.arguments().items()})
    assert torch.equal(alone.plan[(0,) * len(index)], t.plan[index]), "partners"


# Exact solvers


def test_exact_transport(campaign):
    """The dual variables prove each plan: feasible, and worth as much as the plan costs."""
    for rng, batch, where in cases(campaign, "emd", 400, 30_000, 8):
        case = draw(rng, batch, "emd")
        try:
            check_optimal(case, call(case, case.cost))
        except Exception as error:
            error.add_note(f"{where}: {describe(case)}")
            raise


def check_optimal(case: Case, t: Transport) -> None:
    a, b = marginals(case)
    total = a.sum(-1)
    b = b * (total / b.sum(-1)).unsqueeze(-1)
    size = case.cost.double().abs().amax((-2, -1)).clamp(min=1e-300)
    cost, plan = case.cost.double() / size[..., None, None], t.plan.double()
    u, v = t.u.double() / size.unsqueeze(-1), t.v.double() / size.unsqueeze(-1)
    real = torch.ones_like(cost, dtype=torch.bool)
    for name, dim in (("slot_mask", -1), ("input_mask", -2)):
        mask = case.masks[name]
        real = real if mask is None else real & mask.unsqueeze(dim)
    # The simplex stops at reduced costs of about 1e-10.
    eps = max(32 * torch.finfo(t.plan.dtype).eps, 32 * torch.finfo(t.u.dtype).eps, 1e-8)
    assert t.plan.isfinite().all()
    assert (t.plan >= 0).all()
    assert (plan * ~real == 0).all(), "padding"
    assert t.converged.all()
    least = t.plan.shape[-1] * torch.finfo(t.plan.dtype).tiny
    assert ((plan.sum(-1) - a).abs() <= eps * total.unsqueeze(-1) + least).all(), "slot sums"
    slack = torch.where(real, cost - u.unsqueeze(-1) - v.unsqueeze(-2), 0.0)
    assert (slack >= -eps).all(), "the dual variables are not feasible"
    value = (a * u).sum(-1) + (b * v).sum(-1)
    paid = (plan * torch.where(real, cost, 0.0)).sum((-2, -1))
    assert ((value - paid).abs() <= eps * total + cost[0].numel() * least).all(), "not the best"


def test_assignment(campaign):
    """Against exact transport of one unit for each, whose vertices are matchings."""
    for rng, batch, where in cases(campaign, "assign", 200, 20_000, 8):
        case = draw(rng, batch, "emd")
        k = min(case.cost.shape[-2:])
        cost = case.cost[..., :k, :k].double()
        masks = dict.fromkeys(("slot_mask", "input_mask"), None)
        try:
            partner = assign(case.cost[..., :k, :k], **masks)
            ordered = partner.sort(-1).values
            assert torch.equal(ordered, torch.arange(k).expand_as(ordered)), "not a matching"
            size = cost.abs().amax((-2, -1)).clamp(min=1e-300)
            found = cost.gather(-1, partner.unsqueeze(-1)).sum((-2, -1)) / size
            best = (emd(cost).plan * cost).sum((-2, -1)) / size
            assert ((found - best).abs() <= 1e-9 * k).all(), "not the best"
        except Exception as error:
            error.add_note(f"{where}: {describe(case)}")
            raise


# What is not a problem

FAULTS = (
    *("value", "mass", "negative", "totals", "mask", "shape", "integer", "flat", "empty", "type"),
    *("temperature", "count", "backend", "size", "batch"),
)


def spoil(case: Case, rng: random.Random) -> str:
    """Make one thing of a case wrong; returns what."""
    *batch, m, n = case.cost.shape
    bad = rng.choice([math.nan, math.inf, -math.inf])
    cost = case.cost.clone()
    kind = rng.choice(FAULTS)
    if kind == "value":
        for name in case.masks:
            case.masks[name] = None
        cost[tuple(rng.randrange(k) for k in cost.shape)] = bad
    elif kind in ("mass", "negative"):
        case.masks["slot_mask"] = None
        a = torch.ones(*batch, m)
        a[..., rng.randrange(m)] = bad if kind == "mass" else -rng.random() - 0.1
        case.masses |= {"a": a, "b": None}
    elif kind == "totals":
        case.masses |= {"a": torch.ones(*batch, m), "b": torch.full((*batch, n), 2 * m / n)}
        case.masks = dict.fromkeys(case.masks)
    elif kind == "mask":
        case.masks["slot_mask"] = torch.zeros(*batch, m, dtype=torch.bool)
    elif kind == "shape":
        case.masses["b"] = torch.ones(n + 1)
    elif kind == "batch":
        case.masses["b"] = torch.ones(batch[0] + 1, *batch[1:], n)
    elif kind == "integer":
        cost = cost.clamp(-100, 100).long()
    elif kind == "flat":
        cost = cost[(0,) * (cost.ndim - 1)]
    elif kind == "empty":
        cost = cost[..., :0] if rng.random() < 0.5 else cost[..., :0, :]
    elif kind == "type":
        cost = cost.tolist()
    elif kind == "backend":
        case.options["backend"] = "cuda"
    elif kind == "temperature" and "temperature" in case.options:
        case.options["temperature"] = rng.choice([0.0, -1.0, bad, "1", None, torch.zeros(batch)])
    elif kind == "count" and "n_iters" in case.options:
        # None is mesh's default.
        odd = 0.5 if case.op == "mesh" else None
        case.options["n_iters"] = rng.choice([0, -1, 1.5, "5", True, odd])
    elif kind == "size" and case.op == "mesh":
        case.options["lr"] = rng.choice([-1.0, bad, "1"])
        case.options.pop("step", None)
    else:
        case.options["backend"] = None
    case.cost = cost
    return kind


def test_faults_are_named(campaign):
    for rng, _, where in cases(campaign, "faults", 400, 30_000, 4):
        case = draw(rng, 4, rng.choice(list(OPS)))
        text = describe(case)
        kind = spoil(case, rng)
        try:
            call(case, case.cost)
        except ValueError as error:
            said = str(error)
        except Exception as error:
            error.add_note(f"{where}: {kind} of {text}")
            raise
        else:
            said = "no error"
        good = said.startswith(f"{case.op}: ") and "expected" in said
        assert good, f"{said!r} ({where}: {kind} of {text})"
