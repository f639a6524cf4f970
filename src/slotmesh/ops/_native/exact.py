"""Exact assignment and transport in C, by shortest augmenting paths: assign.c and transport.c."""

import ctypes
import os
from typing import Any

import torch
from torch import Tensor

from slotmesh.ops._native import NativeJob
from slotmesh.ops._native.library import load, torch_threads

# Entries of matrices, below which another thread takes longer than it helps.
GRAIN = 4096

_pointers = ("cost", "a", "b", "slots", "inputs"), ("partner", "plan", "u", "v", "fine")


class _ExactJob(ctypes.Structure):
    _fields_ = (
        ("base", NativeJob),
        *((name, ctypes.c_void_p) for name in _pointers[0]),
        ("maximize", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in _pointers[1]),
    )


def use_exact(op: str, backend: str, other: str) -> bool:
    """Whether the C library is available; a ValueError if it was asked for and is not."""
    found = load()
    if isinstance(found, str) and backend == "cpu":
        raise ValueError(
            f"{op}: backend is 'cpu', which does not work here: the C backend is unavailable "
            f"({found}). Use backend='{other}'."
        )
    return not isinstance(found, str)


def assign(
    cost: Tensor, slots: Tensor | None, inputs: Tensor | None, *, maximize: bool
) -> tuple[Tensor, Tensor]:
    """The input of each slot (batch, m), -1 for none, and which elements have finite costs.

    Args:
        cost: ``(batch, m, n)``, float64.
        slots: ``(batch, m)``, True where a slot is real, or None.
        inputs: ``(batch, n)``, True where an input is real, or None.
        maximize: Maximise the total cost.
    """
    partner = cost.new_empty(cost.shape[:2], dtype=torch.int64)
    masks = {"slots": slots, "inputs": inputs}
    return partner, _call("assign", cost, maximize=maximize, partner=partner, **masks)


def transport(cost: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Plan, u and v of costs (batch, m, n) and masses, all float64, and which are optimal.

    The potentials of elements without mass are 0.
    """
    plan, u, v = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (cost, a, b))
    return plan, u, v, _call("transport", cost, a=a, b=b, plan=plan, u=u, v=v)


def _call(name: str, cost: Tensor, **rest: Any) -> Tensor:
    size, m, n = cost.shape
    fine = cost.new_empty(size, dtype=torch.bool)
    threads = max(1, min(torch.get_num_threads(), size, cost.numel() // GRAIN))
    parallel = torch_threads(os.getpid()) if threads > 1 else None
    # Keep references until the end. Only what is read may have to be copied.
    given = {k: x.contiguous() if isinstance(x, Tensor) else x for k, x in rest.items()}
    given |= {"cost": cost.contiguous(), "fine": fine}
    values = {k: x.data_ptr() if isinstance(x, Tensor) else x for k, x in given.items()}
    job = _ExactJob(NativeJob(batch=size, m=m, n=n, threads=threads, parallel=parallel), **values)
    function: Any = getattr(load(), name)
    if function(ctypes.byref(job)):
        raise MemoryError(f"not enough memory for {threads} costs of {m} x {n}")
    return fine
