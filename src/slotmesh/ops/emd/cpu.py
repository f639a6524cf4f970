"""Exact transport on the CPU as a torch operator: in C where that is faster, else by POT."""

from typing import Any

import torch
from torch import Tensor

from slotmesh.ops._native import exact
from slotmesh.ops._native.exact import use_exact
from slotmesh.ops._private import custom_op, register_vmap
from slotmesh.ops.emd.pot import solve_batch

# Paths in C take less time than the network simplex of POT up to this many slots or inputs and
# entries, or if a problem is an assignment.
LONGEST, LARGEST = 256, 4096


Solved = tuple[Tensor, Tensor, Tensor, Tensor]


def solve_on_cpu(cost: Tensor, a: Tensor, b: Tensor, backend: str) -> Solved:
    """The same as the operator below, without torch's dispatch, which dominates small problems."""
    given = [x.detach().cpu() for x in (cost, a, b)]
    in_c = backend == "cpu" or (backend == "auto" and _suits_c(*given))
    # Decided here, as a compiler cannot look for the library.
    if in_c and use_exact("emd", backend, "pot"):
        *found, fine = exact.transport(*given)
        optimal = found[0].new_ones(len(cost), dtype=torch.bool)
        if fine is not None:
            rest = (~fine).nonzero().squeeze(-1)
            again = solve_batch(*(x[rest].double() for x in given))
            for whole, part in zip((*found, optimal), again, strict=True):
                whole[rest] = part
        results = (*found, optimal)
    else:
        results = solve_batch(*(x.double() for x in given))
    plan, u, v, optimal = (x.to(cost.device) for x in results)
    return plan, u, v, optimal


def solve_quickly(
    cost: Tensor, a: Tensor | None, b: Tensor | None, backend: str
) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """Plan, u, v and marginal error in C, which also looks at the values; else None.

    Args:
        cost: ``(..., m, n)``, float32 or float64.
        a: Masses ``(..., m)``, or None if both are missing.
        b: Masses ``(..., n)``.
        backend: The backend that the caller asked for.
    """
    *batch, m, n = cost.shape
    small = max(m, n) <= LONGEST and m * n <= LARGEST
    suits = backend == "cpu" or (backend == "auto" and (small or (m == n and a is None)))
    if not suits or not use_exact("emd", backend, "pot"):
        return None
    flat = cost.detach() if len(batch) == 1 else cost.detach().reshape(-1, m, n)
    masses = (None if x is None else x.detach().double().reshape(-1, x.shape[-1]) for x in (a, b))
    found = exact.quick_transport(flat, *masses)
    if found is None or len(batch) == 1:
        return found
    plan, u, v, error = found
    return plan.view(*batch, m, n), u.view(*batch, m), v.view(*batch, n), error.view(batch)


@custom_op("slotmesh::emd", mutates_args=())
def emd_batch(cost: Tensor, a: Tensor, b: Tensor, backend: str) -> Solved:
    """(batch, m, n), (batch, m), (batch, n) to plan, u, v and whether each plan is optimal.

    Costs are float32 or float64, all others float64. Elements without mass are left out of the
    problem, whatever their costs.
    """
    return solve_on_cpu(cost, a, b, backend)


@emd_batch.register_fake
def _(cost: Tensor, a: Tensor, b: Tensor, backend: str) -> Solved:
    optimal = torch.empty(cost.shape[:1], dtype=torch.bool, device=cost.device)
    plan = torch.empty_like(cost, dtype=torch.float64, memory_format=torch.contiguous_format)
    return plan, torch.empty_like(a), torch.empty_like(b), optimal


@register_vmap(emd_batch)
def _(
    info: Any, in_dims: tuple[int | None, ...], cost: Tensor, a: Tensor, b: Tensor, backend: str
) -> Any:
    moved = [
        x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
        for x, dim in zip((cost, a, b), in_dims[:3], strict=True)
    ]
    batch = moved[0].shape[:2]
    results = emd_batch(*(x.flatten(0, 1) for x in moved), backend)
    return tuple(x.unflatten(0, batch) for x in results), (0, 0, 0, 0)


def _suits_c(cost: Tensor, a: Tensor, b: Tensor) -> bool:
    m, n = cost.shape[1:]
    if max(m, n) <= LONGEST and m * n <= LARGEST:
        return True
    return m == n and all(bool((x == x[:, :1]).all()) for x in (a, b))
