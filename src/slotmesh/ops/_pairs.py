"""Pairs that are not allowed, and dustbins: both change the problem before a backend sees it."""

from typing import NamedTuple

import torch
from torch import Tensor

from slotmesh.ops import checks
from slotmesh.ops.problem import (
    CONVERGED,
    Given,
    check_problem,
    compute_dtype,
    expanded_masks,
    real_entries,
    scaled_temperature,
)
from slotmesh.ops.transport import Transport

# A pair that is not allowed costs as much as the dearest allowed one and, on top, the range of
# allowed costs this many times, and temperatures: its share of the plan underflows to 0 on every
# backend, unless the allowed pairs leave no other way and iterations are many.
RANGES, TEMPERATURES = 64.0, 2000.0


class Framed(NamedTuple):
    """A problem that every backend can solve, and what its result has to be turned into."""

    given: Given
    pairs: Tensor | None  # (*batch, m, n), True where allowed; None for everywhere
    dtype: torch.dtype  # of the plan

    def finish(self, t: Transport, tol: float | None = None) -> Transport:
        """The result for the caller: pairs that are not allowed have no mass and infinite cost."""
        if self.pairs is None:
            return t._replace(plan=t.plan.to(self.dtype))
        # If the allowed pairs cannot carry all mass, Sinkhorn eventually pays this price.
        whole = t.plan.detach().to(t.marginal_error.dtype)
        lost = torch.where(self.pairs, 0.0, whole).sum((-2, -1))
        total = whole.sum((-2, -1)).clamp(min=torch.finfo(whole.dtype).tiny)
        # This mass is missing from the sums on both sides.
        error = t.marginal_error + 2.0 * lost / total
        return t._replace(
            plan=torch.where(self.pairs, t.plan, 0.0).to(self.dtype),
            cost=torch.where(self.pairs, t.cost, torch.inf),
            marginal_error=error,
            converged=t.converged & (error <= (CONVERGED if tol is None else tol)),
        )


def framed(given: Given, dustbin: float | Tensor | None, pair_mask: Tensor | None) -> Framed:
    """Add the dustbins, and make pairs that are not allowed too expensive."""
    dtype = given.cost.dtype
    if pair_mask is not None:
        check_pairs(given, pair_mask)
    if dustbin is not None:
        given, pair_mask = _with_dustbin(given, dustbin, pair_mask)
    if pair_mask is None:
        return Framed(given, None, dtype)
    batch = checks.broadcast_shapes(check_problem(given), pair_mask.shape[:-2])
    pairs = pair_mask.expand(*batch, *given.cost.shape[-2:])
    return Framed(_forbid(given, pairs), pairs, dtype)


def dear(cost: Tensor, allowed: Tensor, ranges: float, more: float | Tensor) -> Tensor:
    """The cost with a price for pairs that are not allowed, above that of all others.

    Args:
        cost: ``(*batch, m, n)``.
        allowed: The same shape, True where a pair is allowed.
        ranges: How often to add the range of the allowed costs.
        more: A further amount to add, a number or ``(..., 1, 1)``.
    """
    still = cost.detach()
    high = torch.where(allowed, still, -torch.inf).amax((-2, -1), keepdim=True)
    low = torch.where(allowed, still, torch.inf).amin((-2, -1), keepdim=True)
    some = high >= low
    high, low = torch.where(some, high, 0.0), torch.where(some, low, 0.0)
    return torch.where(allowed, cost, high + ranges * (high - low) + more)


def check_pairs(given: Given, pair_mask: object) -> None:
    """Check a mask of allowed pairs."""
    op, cost = given.op, given.cost
    batch, (m, n) = check_problem(given), cost.shape[-2:]
    kind = f"a boolean tensor (..., {m}, {n}), True where a pair is allowed"
    if not isinstance(pair_mask, Tensor):
        raise ValueError(
            f"{op}: pair_mask is a {type(pair_mask).__name__}, expected {kind}. "
            "Convert it with torch.as_tensor."
        )
    if pair_mask.dtype != torch.bool:
        raise ValueError(
            f"{op}: pair_mask has dtype {pair_mask.dtype}, expected {kind}. Use pair_mask.bool()."
        )
    if pair_mask.ndim < 2 or pair_mask.shape[-2:] != (m, n):
        raise ValueError(
            f"{op}: pair_mask has shape {tuple(pair_mask.shape)}, expected (..., {m}, {n}) to fit "
            f"cost of shape {tuple(cost.shape)}. Rows of cost are slots, columns are inputs."
        )
    if pair_mask.device != cost.device:
        raise ValueError(
            f"{op}: pair_mask is on {pair_mask.device}, expected {cost.device}, where cost is. "
            "Move it with pair_mask.to(cost.device)."
        )
    try:
        checks.broadcast_shapes(batch, pair_mask.shape[:-2])
    except RuntimeError:
        raise ValueError(
            f"{op}: pair_mask has shape {tuple(pair_mask.shape)}, whose leading dimensions do not "
            f"broadcast with the batch dimensions {batch}. Give it these, or none."
        ) from None


def _forbid(given: Given, pairs: Tensor) -> Given:
    """The same problem, in which a pair that is not allowed is too expensive."""
    cost, *batch = given.cost, *pairs.shape[:-2]
    slots, inputs = expanded_masks(given, tuple(batch))
    real = real_entries(slots, inputs)
    allowed = pairs if real is None else pairs & real
    tau = scaled_temperature(given, tuple(batch))
    cost = cost.to(compute_dtype(cost)).expand(pairs.shape)
    found = given._replace(cost=dear(cost, allowed, RANGES, TEMPERATURES * tau))
    able_slots, able_inputs = allowed.any(-1), allowed.any(-2)
    if checks.can_read_values(*given.tensors(), pairs):
        _check_feasible(given, "slot", slots, given.a, able_slots)
        _check_feasible(given, "input", inputs, given.b, able_inputs)
        if bool(able_slots.all() and able_inputs.all()):
            return found
    # If values could not be checked, elements without an allowed pair count as padding.
    return found._replace(slot_mask=able_slots, input_mask=able_inputs)


def _check_feasible(
    given: Given, name: str, mask: Tensor | None, mass: Tensor | None, able: Tensor
) -> None:
    wrong = ~able if mask is None else mask & ~able
    if mass is not None:
        wrong = wrong & (mass > 0)
    if bool(wrong.any()):
        first = [int(i) for i in wrong.nonzero()[0]]
        raise ValueError(
            f"{given.op}: pair_mask allows no pair for {int(wrong.sum())} {name}s with mass (the "
            f"first is {first}), expected at least one True for each. Mask such elements with "
            f"{name}_mask, or pass dustbin, which takes them."
        )


def _with_dustbin(
    given: Given, dustbin: float | Tensor, pair_mask: Tensor | None
) -> tuple[Given, Tensor | None]:
    """Add a row and a column of one cost, each with the total mass of the other side."""
    batch = check_problem(given)
    # A price may be too large for half precision.
    cost = given.cost.to(compute_dtype(given.cost))
    m, n = cost.shape[-2:]
    price = _price(given, dustbin, batch).to(cost.dtype)
    cost = torch.cat((cost.expand(*batch, m, n), price.expand(*batch, m, 1)), -1)
    cost = torch.cat((cost, price.expand(*batch, 1, n + 1)), -2)
    slots, inputs = expanded_masks(given, batch)
    a, b = (
        _masses(x, mask, (*batch, size), cost)
        for x, mask, size in ((given.a, slots, m), (given.b, inputs, n))
    )
    total_a, total_b = a.sum(-1, keepdim=True), b.sum(-1, keepdim=True)
    one = torch.ones((*batch, 1), dtype=torch.bool, device=cost.device)
    if pair_mask is not None:
        pair_mask = torch.nn.functional.pad(pair_mask, (0, 1, 0, 1), value=True)
    more = given._replace(
        cost=cost,
        a=torch.cat((a, total_b), -1),
        b=torch.cat((b, total_a), -1),
        slot_mask=None if slots is None else torch.cat((slots, one), -1),
        input_mask=None if inputs is None else torch.cat((inputs, one), -1),
    )
    return more, pair_mask


def _masses(
    given: Tensor | None, mask: Tensor | None, shape: tuple[int, ...], like: Tensor
) -> Tensor:
    """One unit per element, or what the caller gave."""
    mass = like.new_ones(shape) if given is None else given.to(like.dtype).expand(shape)
    return mass if mask is None else torch.where(mask, mass, 0.0)


def _price(given: Given, dustbin: float | Tensor, batch: tuple[int, ...]) -> Tensor:
    """The cost of a pair with a dustbin (..., 1, 1)."""
    op, cost = given.op, given.cost
    if not isinstance(dustbin, Tensor):
        number = checks.as_number(op, "dustbin", dustbin)
        return torch.full((1, 1), number, dtype=compute_dtype(cost), device=cost.device)
    if not dustbin.is_floating_point() or not checks.broadcasts_to(dustbin.shape, batch):
        raise ValueError(
            f"{op}: dustbin is a tensor of shape {tuple(dustbin.shape)} and dtype {dustbin.dtype}, "
            f"expected floating point that broadcasts to the batch dimensions {batch} of cost. "
            "Pass a tensor without dimensions for one dustbin cost."
        )
    if dustbin.device != cost.device:
        raise ValueError(
            f"{op}: dustbin is on {dustbin.device}, expected {cost.device}, where cost is. "
            "Move it with dustbin.to(cost.device)."
        )
    checks.check_finite(op, "dustbin", dustbin, "Look for an overflow upstream.")
    return dustbin[..., None, None]
