"""The form that problems have on their way to C."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from slotmesh.ops import _checks as checks
from slotmesh.ops._fused import flat_vector
from slotmesh.ops._problem import Problem, log_marginal, problem


class Batch(NamedTuple):
    """A problem with one batch dimension, contiguous."""

    cost: Tensor  # (batch, m, n)
    a: Tensor  # (batch, m)
    b: Tensor  # (batch, n)
    slots: Tensor | None  # (batch, m)
    tau: float | Tensor  # a tensor is (batch, 1, 1)
    even: Tensor | None  # (batch,), where masses suit scalings; None for everywhere

    def at(self, rows: Tensor) -> "Batch":
        """Some elements of it."""
        return Batch(*(x[rows] if isinstance(x, Tensor) else x for x in self))  # pyright: ignore

    def task(self) -> Problem:
        """What the log domain works on."""
        log_a, log_b = log_marginal(self.a), log_marginal(self.b)
        return Problem(self.cost, self.a, self.b, log_a, log_b, self.slots, None)


def flat_batch(task: Problem, cost: Tensor, tau: float | Tensor, *, given: bool) -> Batch:
    """A checked problem with another cost.

    Args:
        task: The problem.
        cost: ``(*batch, m, n)``.
        tau: The temperature, a float or ``(..., 1, 1)``.
        given: Whether a caller gave marginals, so that they can be anything.
    """
    *batch, m, n = cost.shape
    a, b, slots = (flat_vector(x) for x in (task.a, task.b, task.slots))
    assert a is not None
    assert b is not None
    if isinstance(tau, Tensor):
        tau = tau.expand(*batch, 1, 1).reshape(-1, 1, 1)
    even = sound(a.detach(), b.detach(), slots) if given else None
    if len(batch) != 1:
        cost = cost.reshape(-1, m, n)
    return Batch(cost.contiguous(), a, b, slots, tau, even)


def quick_problem(op: str, cost: Tensor, *rest: Tensor | None) -> Problem:
    """As :func:`problem`; quicker for a cost alone, which has been checked to be a matrix."""
    a, b, slot_mask, input_mask = rest
    if any(x is not None for x in rest):
        return problem(op, cost, a, b, slot_mask, input_mask)
    clean = cost.to(torch.float32)
    if clean.numel() > 0 and checks.can_read_values(clean):
        low, high = torch.aminmax(clean.detach())
        if not (math.isfinite(low.item()) and math.isfinite(high.item())):
            return problem(op, cost, None, None, None, None)  # for its error
    *batch, m, n = clean.shape
    share = m / n
    return Problem(
        clean,
        clean.new_ones((*batch, m)),
        clean.new_full((*batch, n), share),
        clean.new_zeros((*batch, m)),
        clean.new_full((*batch, n), math.log(share)),
        None,
        None,
    )


def sound(a: Tensor, b: Tensor, slots: Tensor | None) -> Tensor:
    """Of which batch elements the masses suit scalings: (batch,).

    Entries of E are off by up to 1e-30, and scalings of inputs are at most ``LIMIT`` of scaling.c
    times the largest mass. The sum over a row has to be nothing beside that of the row, which is
    the mass of its slot over its scaling. And vectors of inputs must be normal numbers in float32.
    """
    total = a.sum(-1)
    lowest = (a if slots is None else torch.where(slots, a, torch.inf)).amin(-1)
    even = lowest >= 1e-7 * b.shape[-1] * b.amax(-1)
    normal = ((b == 0) | (b >= 1e-15)).all(-1)
    return even & normal & (total >= 1e-6) & (total <= 1e6)
