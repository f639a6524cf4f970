"""When the CPU's path, in C, can be used."""

import functools
import warnings
from typing import Any

import torch
from torch import Tensor

from slotmesh.ops._fused import DTYPES
from slotmesh.ops._native import unavailable
from slotmesh.ops._native.library import REMEDY, SWITCH, SWITCHED_OFF

_C: Any = torch._C  # pyright: ignore


def use_c(op: str, backend: str, beyond: str | None, cost: Tensor, *others: object) -> bool:
    """Whether to compute in C; a ValueError where that was asked for and cannot be.

    Args:
        op: The name of the operation, for the error.
        backend: What the caller asked for.
        beyond: An option in use that only the torch path knows, in words, or None.
        cost: ``(..., m, n)``, checked to be a matrix.
        others: The other arguments that may be tensors.
    """
    if backend not in ("auto", "cpu"):
        return False
    reason = beyond or _unfit(cost, *others)
    missing = unavailable() if reason is None else None
    if missing is not None:
        reason = f"its C is not available ({missing})"
        if backend == "auto" and missing != SWITCHED_OFF:
            _warn_once(missing)
    if reason is not None and backend == "cpu":
        raise ValueError(
            f"{op}: backend is 'cpu', which does not work here: {reason}. "
            "Use backend='auto' to choose what fits, or backend='torch'."
        )
    return reason is None


def _unfit(cost: Tensor, *others: object) -> str | None:
    """Why C cannot be used, or None."""
    if torch.compiler.is_compiling():
        return "this is being compiled, and it chooses its way by values"
    if cost.device.type != "cpu":
        return f"cost is on {cost.device}"
    if cost.dtype not in DTYPES:
        return f"cost has dtype {cost.dtype}, and it computes in float32"
    for x in (cost, *others):
        if isinstance(x, Tensor) and type(x) not in (Tensor, torch.nn.Parameter):
            return f"a {type(x).__name__} came, whose values it cannot read"
    if in_a_transform():
        return "this is inside a transform of torch.func, which it does not know"
    if torch.autograd.forward_ad._current_level >= 0:  # pyright: ignore
        return "forward-mode derivatives are on, which it does not have"
    return None


@functools.cache
def _warn_once(missing: str) -> None:
    """In a process; where warnings are errors, every time."""
    warnings.warn(
        "sinkhorn and mesh run in plain torch on the CPU, several times slower than in C, which is "
        f"not available: {missing}. {REMEDY}; {SWITCH}=0 in the environment chooses torch without "
        "this warning.",
        UserWarning,
        stacklevel=4,  # who called mesh or sinkhorn
    )


def in_a_transform(*tensors: Tensor | None) -> bool:
    """Whether a transform of torch.func is at work, or a batched backward pass on these tensors."""
    if _C._functorch.peek_interpreter_stack() is not None:
        return True
    return any(x is not None and _C._functorch.is_legacy_batchedtensor(x) for x in tensors)
