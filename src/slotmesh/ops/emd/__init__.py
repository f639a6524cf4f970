"""Exact optimal transport (earth mover's distance)."""

import math
import warnings
from typing import Literal

import torch
from torch import Tensor

from slotmesh.ops import _checks as checks
from slotmesh.ops._kernels import use_solver
from slotmesh.ops._problem import Problem, marginal_error, problem
from slotmesh.ops.emd.pot import emd_batch
from slotmesh.ops.emd.triton import MOST, emd_small
from slotmesh.ops.transport import Transport

EMDBackend = Literal["auto", "pot", "triton"]


def emd(
    cost: Tensor,
    a: Tensor | None = None,
    b: Tensor | None = None,
    *,
    slot_mask: Tensor | None = None,
    input_mask: Tensor | None = None,
    backend: EMDBackend = "auto",
) -> Transport:
    """Optimal transport without regularisation: the exact plan of least total cost.

    The plan is a vertex of the transport polytope, with at most m + n - 1 entries above 0; ties
    are broken, always in the same way for the same problem and backend.

    **The plan carries no gradient**, whatever ``cost`` requires: it is piecewise constant in the
    cost. To learn a cost, add a term that has one, as :class:`slotmesh.nn.EMD` does, or use
    :func:`slotmesh.mesh`. The *value* of the optimum has a gradient, ``(t.plan * cost).sum()``.

    Args:
        cost: ``(..., m, n)``, rows are slots, columns are inputs. Solved in float64.
        a: Mass of each slot ``(..., m)``. Default: as for :func:`slotmesh.sinkhorn`.
        b: Mass of each input ``(..., n)``. Default: as for :func:`slotmesh.sinkhorn`. Rescaled in
            float64 to the exact total of ``a``.
        slot_mask: ``(..., m)``, True where a slot is real.
        input_mask: ``(..., n)``, True where an input is real.
        backend: ``"pot"`` (network simplex on the CPU, a batch over all cores: this waits for a
            GPU), ``"triton"`` (shortest augmenting paths in one kernel on a CUDA device, for at
            most 32 slots and 16,384 inputs, which waits for nothing), or ``"auto"``, which is
            ``"pot"`` so far.

    Returns:
        A :class:`~slotmesh.ops.Transport` with the dual variables as potentials. On a GPU, where
        values are not looked at, costs that are not finite make the kernel's plan NaN.

    Raises:
        ValueError: If an argument does not fit; values are only looked at on the CPU (see
            :func:`slotmesh.ops.set_value_checks`).

    Example:
        >>> import torch
        >>> from slotmesh import emd
        >>> t = emd(torch.tensor([[0.0, 2.0], [1.0, 0.0]]))
        >>> t.plan
        tensor([[1., 0.],
                [0., 1.]])
        >>> t.plan.requires_grad
        False
    """
    checks.check_choice("emd", "backend", backend, ("auto", "pot", "triton"))
    task = problem("emd", cost, a, b, slot_mask, input_mask)
    mass_a, mass_b = task.a.detach().double(), task.b.detach().double()
    total_b = mass_b.sum(-1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
    mass_b = mass_b * (mass_a.sum(-1, keepdim=True) / total_b)
    batch, (m, n) = task.cost.shape[:-2], task.cost.shape[-2:]
    size = math.prod(batch)
    flat = task.cost.detach().reshape(size, m, n)
    masses = mass_a.reshape(size, m), mass_b.reshape(size, n)
    if use_solver("emd", backend, cost, MOST, "pot"):
        plan, u, v, steps = emd_small(flat, *masses)
        optimal = steps >= 0
    else:
        plan, u, v, optimal = emd_batch(flat.double(), *masses)
    if checks.can_read_values(optimal) and not bool(optimal.all()):
        warnings.warn(
            f"emd: {int((~optimal).sum())} of {size} problems stopped before their optimum; their "
            "plans are feasible, not exact (see Transport.converged). Rescale very uneven costs.",
            stacklevel=2,
        )
    plan = plan.reshape(*batch, m, n)
    u, v = _complete(task, u.reshape(*batch, m), v.reshape(*batch, n))
    dtype = task.cost.dtype
    return Transport(
        plan=plan.to(cost.dtype),
        u=u.to(dtype),
        v=v.to(dtype),
        cost=cost,
        marginal_error=marginal_error(plan, mass_a, mass_b).to(dtype),
        n_iters=torch.zeros(batch, dtype=torch.int64, device=cost.device),
        converged=optimal.reshape(batch),
    )


def _complete(task: Problem, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Give elements that no mass reaches the largest potentials that the costs allow them.

    Solvers leave these elements out; padding gets 0.
    """
    cost, a, b = (x.detach().double() for x in (task.cost, task.a, task.b))
    slots = torch.ones_like(a, dtype=torch.bool) if task.slots is None else task.slots
    inputs = torch.ones_like(b, dtype=torch.bool) if task.inputs is None else task.inputs
    room = torch.where((b > 0).unsqueeze(-2), cost - v.unsqueeze(-2), torch.inf).amin(-1)
    room = torch.where(room < torch.inf, room, 0.0)
    u = torch.where(a > 0, u, torch.where(slots, room, 0.0))
    room = torch.where(slots.unsqueeze(-1), cost - u.unsqueeze(-1), torch.inf).amin(-2)
    v = torch.where(b > 0, v, torch.where(inputs, room, 0.0))
    return u, v
