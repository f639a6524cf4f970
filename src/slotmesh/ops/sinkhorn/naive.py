"""Sinkhorn in plain torch, in the log domain: the truth that every other backend is held to.

One iteration is two half-steps. The first gives every input its mass, the second every slot, so
that slot sums are exact in the result.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from slotmesh.ops._problem import Problem


class Potentials(NamedTuple):
    """Logarithmic scalings of the rows and columns of the kernel."""

    u: Tensor  # (*batch, m)
    v: Tensor  # (*batch, n)
    n_iters: Tensor  # (*batch), int64


def start(problem: Problem, u: Tensor | None) -> Tensor:
    """The slots' first potentials: given or zero; -inf for padded slots, which take no part."""
    return first_potentials(problem.a, problem.slots, u)


def first_potentials(a: Tensor, slots: Tensor | None, u: Tensor | None) -> Tensor:
    """As :func:`start`, for masses and a mask (*batch, m)."""
    first = torch.zeros_like(a) if u is None else u.to(a.dtype).expand_as(a)
    return first if slots is None else torch.where(slots, first, -torch.inf)


def softmax(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Softmax and log-sum-exp along one dimension, for one exponential per entry.

    The derivative is the softmax as it is, which sums to 1. That of ``torch.logsumexp`` is made of
    the rounded result, so of large numbers it is off by a factor, in every iteration again.
    """
    highest = x.detach().amax(dim, keepdim=True)
    shares = (x - highest).exp()
    total = shares.sum(dim, keepdim=True)
    return shares / total, (total.log() + highest).squeeze(dim)


def scale_inputs(log_kernel: Tensor, log_b: Tensor, u: Tensor) -> Tensor:
    """Half-step over inputs: (*batch, m, n), (*batch, n), (*batch, m) to v (*batch, n)."""
    return log_b - softmax(log_kernel + u.unsqueeze(-1), -2)[1]


def scale_slots(log_kernel: Tensor, log_a: Tensor, v: Tensor) -> Tensor:
    """Half-step over slots: (*batch, m, n), (*batch, m), (*batch, n) to u (*batch, m)."""
    return log_a - softmax(log_kernel + v.unsqueeze(-2), -1)[1]


def iterate(
    log_kernel: Tensor,
    problem: Problem,
    u: Tensor,
    n_iters: int,
    tol: float | None = None,
) -> Potentials:
    """Run ``n_iters`` iterations from the slots' potentials ``u``.

    With ``tol``, a batch element whose marginal error is within it is frozen: the loop goes on,
    but changes it no more, so its result does not depend on its partners in the batch.
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
        # The sums over slots before this half-step are b exp(v - next_v): the error is for free.
        drift = torch.where(log_b > -torch.inf, (v - next_v).detach(), 0.0)
        error = (mass * torch.expm1(drift)).abs().sum(-1) / total
        done = done | (error <= tol)
        v = torch.where(done.unsqueeze(-1), v, next_v)
        u = torch.where(done.unsqueeze(-1), u, scale_slots(log_kernel, log_a, v))
        count = count + (~done).to(count.dtype)
    return Potentials(u, v, count)


def solve(
    task: Problem, cost: Tensor, temperature: float | Tensor, u: Tensor | None, n_iters: int
) -> tuple[Tensor, Potentials]:
    """Plan and potentials of another cost (*batch, m, n) for the masses of ``task``."""
    log_kernel = -cost / temperature
    potentials = iterate(log_kernel, task, start(task, u), n_iters)
    return plan_of(log_kernel, task.a, potentials.v), potentials


def plan_of(log_kernel: Tensor, a: Tensor, v: Tensor) -> Tensor:
    """The plan (*batch, m, n) of the inputs' potentials, after the half-step over slots.

    Equal to exp(u + v + log_kernel); written as masses times shares it has exact slot sums and the
    right gradient at slots without mass.
    """
    return a.unsqueeze(-1) * torch.softmax(log_kernel + v.unsqueeze(-2), -1)
