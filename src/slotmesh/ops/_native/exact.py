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


class _ExactJob(ctypes.Structure):
    """``exact_job`` of search.h."""

    _fields_ = (
        ("base", NativeJob),
        *((name, ctypes.c_void_p) for name in ("cost", "a", "b", "narrow", "slots", "inputs")),
        ("maximize", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("partner", "plan", "u", "v", "fine", "error")),
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
) -> tuple[Tensor, Tensor | None]:
    """The input of each slot (batch, m), -1 for none.

    Args:
        cost: ``(batch, m, n)``, float32 or float64.
        slots: ``(batch, m)``, True where a slot is real, or None.
        inputs: ``(batch, n)``, True where an input is real, or None.
        maximize: Maximise the total cost.

    Returns:
        The inputs, and which batch elements have finite costs, or None for all.
    """
    cost = cost.contiguous()
    slots = slots if slots is None else slots.contiguous()
    inputs = inputs if inputs is None else inputs.contiguous()
    size, m, _ = cost.shape
    partner = cost.new_empty((size, m), dtype=torch.int64)
    return partner, _call("assign", cost, None, None, slots, inputs, maximize, partner)


def transport(cost: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Plan, u and v, float64, of costs (batch, m, n), float32 or float64.

    The masses are float64. The potentials of elements without mass are 0. The last result says
    which are optimal, or is None for all.
    """
    plan, u, v = (cost.new_empty(x.shape, dtype=torch.float64) for x in (cost, a, b))
    cost, a, b = (x.contiguous() for x in (cost, a, b))
    fine = _call("transport", cost, a, b, None, None, False, None, plan, u, v)
    return plan, u, v, fine


def quick_transport(
    cost: Tensor, a: Tensor | None, b: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """Plan, u, v and marginal error, float64, of arguments with unchecked values.

    Masses (batch, m) and (batch, n), float64, may be missing both. The result is None if there is
    anything unusual: bad values, elements without mass, different totals, a problem not solved.
    """
    size, m, n = cost.shape
    shapes = ((size, m, n), (size, m), (size, n), (size,))
    plan, u, v, error = (cost.new_empty(shape, dtype=torch.float64) for shape in shapes)
    cost = cost.contiguous()
    a, b = (x if x is None else x.contiguous() for x in (a, b))
    fine = _call("transport", cost, a, b, None, None, False, None, plan, u, v, error)
    return (plan, u, v, error) if fine is None else None


def _call(
    name: str,
    cost: Tensor,
    a: Tensor | None,
    b: Tensor | None,
    slots: Tensor | None,
    inputs: Tensor | None,
    maximize: bool,
    partner: Tensor | None,
    *results: Tensor,
) -> Tensor | None:
    """Solve all problems, given contiguous; returns which are solved, or None for all.

    There is no more Python here than necessary: small problems take less time than it.
    """
    size, m, n = cost.shape
    threads = 1
    if size > 1 and cost.numel() >= 2 * GRAIN:
        threads = max(1, min(torch.get_num_threads(), size, cost.numel() // GRAIN))
    parallel = torch_threads(os.getpid()) if threads > 1 else None
    base = NativeJob(size, m, n, 0, 0, 0, threads, parallel)
    fine = ctypes.create_string_buffer(size)
    job = _ExactJob(base, maximize=maximize, fine=ctypes.addressof(fine))
    if cost.dtype == torch.float32:
        job.narrow = cost.data_ptr()
    else:
        job.cost = cost.data_ptr()
    if partner is not None:
        job.partner = partner.data_ptr()
    for field, x in zip(("plan", "u", "v", "error"), results, strict=False):
        setattr(job, field, x.data_ptr())
    if slots is not None:
        job.slots = slots.data_ptr()
    if inputs is not None:
        job.inputs = inputs.data_ptr()
    if a is not None and b is not None:
        job.a, job.b = a.data_ptr(), b.data_ptr()
    function: Any = getattr(load(), name)
    status = function(ctypes.byref(job))
    if status == 1:
        raise MemoryError(f"not enough memory for {threads} costs of {m} x {n}")
    return torch.frombuffer(fine, dtype=torch.bool).clone() if status else None
