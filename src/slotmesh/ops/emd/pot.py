"""Exact transport by POT's network simplex.

POT solves one problem at a time on the CPU and releases the interpreter's lock meanwhile, so a
batch is spread over threads.
"""

import os
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]

_one_at_a_time = threading.Lock()


def solve_batch(cost: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Plan, u, v and whether each plan is optimal, for (batch, m, n), (batch, m), (batch, n).

    All are float64 on the CPU. Elements without mass are left out of the problem.
    """
    results = [torch.zeros_like(x, memory_format=torch.contiguous_format) for x in (cost, a, b)]
    given = [x.contiguous().numpy() for x in (cost, a, b)]
    problems: list[tuple[Array, ...]] = list(
        zip(*given, *(x.numpy() for x in results), strict=True)
    )
    # Warning filters belong to the process: a second batch at the same time would restore the wrong
    # ones.
    with _one_at_a_time, warnings.catch_warnings():
        # Not reaching the optimum is reported through the result, for the whole batch at once.
        warnings.simplefilter("ignore", UserWarning)
        if len(problems) < 2:
            optimal = [_solve(*p) for p in problems]
        else:
            with ThreadPoolExecutor(min(len(problems), _cores())) as pool:
                optimal = list(pool.map(_solve, *zip(*problems, strict=True)))
    plan, u, v = results
    return plan, u, v, torch.tensor(optimal, dtype=torch.bool, device="cpu")


def _solve(cost: Array, a: Array, b: Array, plan: Array, u: Array, v: Array) -> bool:
    """Fill in plan, u and v; returns whether they are optimal."""
    import ot  # pyright: ignore[reportMissingTypeStubs]

    rows, columns = a > 0, b > 0
    if not rows.any() or not columns.any():
        return True
    # An index copies.
    filled: Any = ... if rows.all() and columns.all() else np.ix_(rows, columns)
    # The simplex has absolute thresholds for reduced costs and masses: scale both to about 1, the
    # masses by a power of two, which is exact.
    scale = float(np.abs(cost[filled]).max()) or 1.0
    unit = float(np.ldexp(1.0, int(np.frexp(a.sum())[1]) - 1))
    transport: Any = ot.emd  # pyright: ignore
    found, log = transport(
        a[rows] / unit,
        b[columns] / unit,
        cost[filled] / scale,
        numItermax=10_000_000,
        log=True,
        check_marginals=False,
    )
    plan[filled] = found * unit
    u[rows], v[columns] = scale * log["u"], scale * log["v"]
    return log["warning"] is None


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
