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


@custom_op("slotmesh::emd", mutates_args=())
def emd_batch(
    cost: Tensor, a: Tensor, b: Tensor, backend: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(batch, m, n), (batch, m), (batch, n) to plan, u, v and whether each plan is optimal.

    Elements without mass are left out of the problem, whatever their costs.
    """
    given = [x.detach().cpu().double() for x in (cost, a, b)]
    in_c = backend == "cpu" or (backend == "auto" and _suits_c(*given))
    # Decided here, as a compiler cannot look for the library.
    if in_c and use_exact("emd", backend, "pot"):
        results = exact.transport(*given)
        optimal = results[-1]
        if not bool(optimal.all()):
            rest = (~optimal).nonzero().squeeze(-1)
            for whole, part in zip(results, solve_batch(*(x[rest] for x in given)), strict=True):
                whole[rest] = part
    else:
        results = solve_batch(*given)
    plan, u, v, optimal = (x.to(cost.device) for x in results)
    return plan, u, v, optimal


@emd_batch.register_fake
def _(cost: Tensor, a: Tensor, b: Tensor, backend: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    optimal = torch.empty(cost.shape[:1], dtype=torch.bool, device=cost.device)
    return torch.empty_like(cost), torch.empty_like(a), torch.empty_like(b), optimal


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
