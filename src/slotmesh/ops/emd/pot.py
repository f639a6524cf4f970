"""Exact transport by POT's network simplex, as a torch operator.

POT solves one problem at a time on the CPU and releases the interpreter's lock meanwhile, so a
batch is spread over threads.
"""

import os
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slotmesh.ops._private import custom_op, register_vmap

Array = NDArray[np.float64]


@custom_op("slotmesh::emd", mutates_args=())
def emd_batch(cost: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(batch, m, n), (batch, m), (batch, n) to plan, u, v and whether each plan is optimal.

    Elements without mass are left out of the problem, whatever their costs.
    """
    arrays = [x.detach().cpu().double().contiguous().numpy() for x in (cost, a, b)]
    problems: list[tuple[Array, Array, Array]] = list(zip(*arrays, strict=True))
    with warnings.catch_warnings():
        # Not reaching the optimum is reported through the result, for the whole batch at once.
        warnings.simplefilter("ignore", UserWarning)
        if len(problems) < 2:
            solved = [_solve(*p) for p in problems]
        else:
            with ThreadPoolExecutor(min(len(problems), _cores())) as pool:
                solved = list(pool.map(_solve, *zip(*problems, strict=True)))
    plan, u, v = (torch.empty_like(x) for x in (cost, a, b))
    for i, one in enumerate(solved):
        for whole, part in zip((plan, u, v), one[:3], strict=True):
            whole[i] = torch.as_tensor(part)
    return (
        plan,
        u,
        v,
        torch.tensor([one[3] for one in solved], dtype=torch.bool, device=cost.device),
    )


@emd_batch.register_fake
def _(cost: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    optimal = torch.empty(cost.shape[:1], dtype=torch.bool, device=cost.device)
    return torch.empty_like(cost), torch.empty_like(a), torch.empty_like(b), optimal


@register_vmap(emd_batch)
def _(info: Any, in_dims: tuple[int | None, ...], cost: Tensor, a: Tensor, b: Tensor) -> Any:
    moved = [
        x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
        for x, dim in zip((cost, a, b), in_dims, strict=True)
    ]
    batch = moved[0].shape[:2]
    results = emd_batch(*(x.flatten(0, 1) for x in moved))
    return tuple(x.unflatten(0, batch) for x in results), (0, 0, 0, 0)


def _solve(cost: Array, a: Array, b: Array) -> tuple[Array, Array, Array, bool]:
    import ot  # pyright: ignore[reportMissingTypeStubs]

    filled = np.ix_(a > 0, b > 0)
    plan, u, v = np.zeros_like(cost), np.zeros_like(a), np.zeros_like(b)
    if not (a > 0).any() or not (b > 0).any():
        return plan, u, v, True
    # The simplex has absolute thresholds for reduced costs and masses: scale both to about 1, the
    # masses by a power of two, which is exact.
    scale = float(np.abs(cost[filled]).max()) or 1.0
    unit = float(np.ldexp(1.0, int(np.frexp(a.sum())[1]) - 1))
    transport: Any = ot.emd  # pyright: ignore
    plan[filled], log = transport(
        a[a > 0] / unit,
        b[b > 0] / unit,
        cost[filled] / scale,
        numItermax=10_000_000,
        log=True,
        check_marginals=False,
    )
    plan[filled] *= unit
    u[a > 0], v[b > 0] = scale * log["u"], scale * log["v"]
    return plan, u, v, log["warning"] is None


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
