"""Exact optimal transport (earth mover's distance)."""

import math
import warnings
from typing import Literal

import torch
from torch import Tensor

from slotmesh.ops import checks
from slotmesh.ops._fused import is_eager, use_solver
from slotmesh.ops.emd.cpu import emd_batch, solve_on_cpu, solve_quickly
from slotmesh.ops.emd.triton import MOST, emd_small
from slotmesh.ops.problem import (
    Given,
    check_problem,
    clean_cost,
    compute_dtype,
    expanded_masks,
    marginal_error,
    marginals,
    problem,
)
from slotmesh.ops.transport import Transport

EMDBackend = Literal["auto", "cpu", "pot", "triton"]


def emd(
    cost: Tensor,
    a: Tensor | None = None,
    b: Tensor | None = None,
    *,
    slot_mask: Tensor | None = None,
    input_mask: Tensor | None = None,
    backend: EMDBackend = "auto",
) -> Transport:
    """Optimal transport without regularisation: the exact plan of minimal total cost.

    The plan is a vertex of the transport polytope, with at most m + n - 1 entries above 0; ties are
    broken, in the same way whenever the problem and the backend are the same.

    **The plan carries no gradient**, whatever ``cost`` requires: it is piecewise constant in the
    cost. To learn a cost, add a differentiable term, as :class:`slotmesh.nn.EMD` does, or use
    :func:`slotmesh.mesh`. The *value* of the optimum has a gradient, ``(t.plan * cost).sum()``.

    Args:
        cost: ``(..., m, n)``, rows are slots, columns are inputs. Problems are solved in float64.
        a: Mass of each slot ``(..., m)``. Default: as for :func:`slotmesh.sinkhorn`.
        b: Mass of each input ``(..., n)``. Default: as for :func:`slotmesh.sinkhorn`. Rescaled in
            float64 to the exact total of ``a``.
        slot_mask: ``(..., m)``, True where a slot is real.
        input_mask: ``(..., n)``, True where an input is real.
        backend: ``"triton"``: shortest augmenting paths in one kernel on a CUDA device, for at most
            32 slots and 16,384 inputs, without waiting for the device. ``"cpu"``: shortest
            augmenting paths in C, fast for small problems and for assignments, slow for large
            problems with uneven masses. ``"pot"``: the network simplex of POT. These two spread a
            batch over all CPU cores, and wait for a GPU. ``"auto"``: the kernel for CUDA tensors of
            these sizes, otherwise C or POT, depending on size and masses. If there are several
            optimal plans, backends may return different ones.

    Returns:
        A :class:`~slotmesh.ops.Transport` with the dual variables as potentials. On a GPU, where
        values are not checked, costs that are not finite make the kernel's plan NaN.

    Raises:
        ValueError: If an argument is invalid; values are only checked on the CPU (see
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
    checks.check_choice("emd", "backend", backend, ("auto", "cpu", "pot", "triton"))
    given = Given("emd", cost, a, b, slot_mask, input_mask)
    batch = check_problem(given)
    quick = _quickly(given, batch, backend)
    if quick is not None:
        return quick
    kernel = use_solver("emd", backend, cost, MOST, ("cpu", "pot"))
    plan, u, v, error, optimal = _with_kernel(given, batch) if kernel else _on_cpu(given, backend)
    if checks.can_read_values(optimal) and not bool(optimal.all()):
        warnings.warn(
            f"emd: {int((~optimal).sum())} of {optimal.numel()} problems stopped before their "
            "optimum; their plans are feasible but not exact (see Transport.converged). Rescale "
            "very uneven costs.",
            stacklevel=2,
        )
    return Transport(
        plan=plan.to(cost.dtype),
        u=u,
        v=v,
        cost=cost,
        marginal_error=error,
        n_iters=torch.zeros(batch, dtype=torch.int64, device=cost.device),
        converged=optimal,
        temperature=torch.zeros_like(error),
    )


def _quickly(given: Given, batch: tuple[int, ...], backend: str) -> Transport | None:
    """The result of C alone: each operation of torch takes as long as a small problem."""
    _, cost, a, b, slot_mask, input_mask, _ = given
    (m, n), dtype = cost.shape[-2:], cost.dtype
    plain = cost.device.type == "cpu" and dtype in (torch.float32, torch.float64)
    if not plain or slot_mask is not None or input_mask is not None or (a is None) != (b is None):
        return None
    if a is not None and b is not None and (a.shape != (*batch, m) or b.shape != (*batch, n)):
        return None
    if cost.shape[:-2] != batch or not is_eager(given.tensors()):
        return None
    found = solve_quickly(cost, a, b, backend)
    if found is None:
        return None
    plan, u, v, error = (x.to(dtype) for x in found)
    return Transport(
        plan=plan,
        u=u,
        v=v,
        cost=cost,
        marginal_error=error,
        n_iters=plan.new_zeros(batch, dtype=torch.int64),
        converged=plan.new_ones(batch, dtype=torch.bool),
        temperature=torch.zeros_like(error),
    )


def _with_kernel(
    given: Given, batch: tuple[int, ...]
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Plan, u, v, marginal error and whether it is optimal, with few operations before the GPU."""
    if checks.can_read_values(*given.tensors()):
        problem(given)  # for its errors
    cost = given.cost
    (m, n), size = cost.shape[-2:], math.prod(batch)
    slots, inputs = expanded_masks(given, batch)
    like = cost.new_empty((), dtype=compute_dtype(cost)).expand(*batch, m, n)
    mass_a, mass_b = marginals(given, slots, inputs, like)
    plan, u, v, steps, error = emd_small(
        cost.detach().expand(*batch, m, n).reshape(size, m, n),
        mass_a.detach().reshape(size, m),
        mass_b.detach().reshape(size, n),
        None if slots is None else slots.reshape(size, m),
        None if inputs is None else inputs.reshape(size, n),
    )
    return (
        plan.view(*batch, m, n),
        u.view(*batch, m),
        v.view(*batch, n),
        error.view(batch),
        (steps >= 0).view(batch),
    )


def _on_cpu(given: Given, backend: str) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Solve exactly in C or by POT."""
    home = given.cost.device
    cost, slots, inputs = clean_cost(given)
    mass_a, mass_b = marginals(given, slots, inputs, cost)
    cost = cost.detach()
    if home.type == "mps":  # an Apple GPU, which has no float64
        cost, mass_a, mass_b = cost.cpu(), mass_a.cpu(), mass_b.cpu()
        slots, inputs = (None if x is None else x.cpu() for x in (slots, inputs))
    mass_a, mass_b = mass_a.detach().double(), mass_b.detach().double()
    total_b = mass_b.sum(-1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
    mass_b = mass_b * (mass_a.sum(-1, keepdim=True) / total_b)
    *batch, m, n = cost.shape
    size = math.prod(batch)
    masses = mass_a.reshape(size, m), mass_b.reshape(size, n)
    solver = solve_on_cpu if is_eager(given.tensors()) and home.type == "cpu" else emd_batch
    plan, u, v, optimal = solver(cost.reshape(size, m, n), *masses, backend)
    plan, u, v = plan.view(*batch, m, n), u.view(*batch, m), v.view(*batch, n)
    if not _all_have_mass(given, mass_a, mass_b):
        u, v = _complete(cost, mass_a, mass_b, slots, inputs, u, v)
    dtype = cost.dtype
    error = marginal_error(plan, mass_a, mass_b).to(dtype)
    results = (plan.to(given.cost.dtype), u.to(dtype), v.to(dtype), error, optimal.view(batch))
    plan, u, v, error, optimal = (x.to(home) for x in results)
    return plan, u, v, error, optimal


def _all_have_mass(given: Given, a: Tensor, b: Tensor) -> bool:
    """Whether every slot and input is known to have mass."""
    if all(x is None for x in given[2:6]):
        return True
    return checks.can_read_values(a, b) and bool((a > 0).all()) and bool((b > 0).all())


def _complete(
    cost: Tensor,
    a: Tensor,
    b: Tensor,
    slots: Tensor | None,
    inputs: Tensor | None,
    u: Tensor,
    v: Tensor,
) -> tuple[Tensor, Tensor]:
    """Give elements without mass, which solvers leave out, the largest feasible potentials.

    Padding gets 0.
    """
    cost = cost.double()
    slots = torch.ones_like(a, dtype=torch.bool) if slots is None else slots
    inputs = torch.ones_like(b, dtype=torch.bool) if inputs is None else inputs
    room = torch.where((b > 0).unsqueeze(-2), cost - v.unsqueeze(-2), torch.inf).amin(-1)
    room = torch.where(room < torch.inf, room, 0.0)
    u = torch.where(a > 0, u, torch.where(slots, room, 0.0))
    room = torch.where(slots.unsqueeze(-1), cost - u.unsqueeze(-1), torch.inf).amin(-2)
    v = torch.where(b > 0, v, torch.where(inputs, room, 0.0))
    return u, v
