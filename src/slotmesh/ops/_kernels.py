"""When the kernels of the exact solvers can be used."""

import importlib.util
import os

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)

_HAS_TRITON = importlib.util.find_spec("triton") is not None


def use_solver(op: str, backend: str, cost: Tensor, most: tuple[int, int], other: str) -> bool:
    """Whether the kernel is to run; a ValueError where it was asked for by name and cannot.

    Args:
        op: The name of the operation, for the error.
        backend: What the caller asked for.
        cost: ``(..., m, n)``, checked to be a matrix.
        most: Largest m and n that the kernel takes.
        other: The backend that takes everything.
    """
    if backend == other or (backend == "auto" and not cost.is_cuda):
        return False
    reason = _unfit(cost, most)
    if reason is not None and backend == "triton":
        raise ValueError(
            f"{op}: backend is 'triton', which does not work here: {reason}. "
            f"Use backend='{other}', which takes everything."
        )
    return reason is None


def _unfit(cost: Tensor, most: tuple[int, int]) -> str | None:
    """Why the kernel cannot take this cost, or None."""
    m, n = cost.shape[-2:]
    if not _HAS_TRITON:
        return "triton is not installed (pip install triton)"
    if not cost.is_cuda and os.environ.get("TRITON_INTERPRET") != "1":
        return f"cost is on {cost.device}, and the kernel needs a CUDA device"
    if cost.dtype not in DTYPES:
        return f"cost has dtype {cost.dtype}, which the kernel cannot read"
    if m > most[0] or n > most[1]:
        return f"cost is {m} x {n}, and the kernel takes at most {most[0]} x {most[1]}"
    return None
