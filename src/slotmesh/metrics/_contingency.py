"""Count the pixels that each slot shares with each object, the basis of all mask metrics."""

from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from slotmesh.ops import checks

Masks = Tensor | NDArray[Any]
"""What all functions of masks take."""

_WIDE = (torch.uint16, torch.uint32, torch.uint64)


@overload
def as_tensor(value: Masks) -> Tensor: ...
@overload
def as_tensor(value: None) -> None: ...
def as_tensor(value: Any) -> Any:
    """Convert NumPy arrays of numbers to tensors, and wide unsigned integers to int64.

    Everything else is returned unchanged, for the caller to reject.
    """
    # torch has few operations on unsigned integers of more than 8 bits.
    if isinstance(value, Tensor):
        return value.long() if value.dtype in _WIDE else value
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "biufc":
        return value
    if value.dtype.kind == "u" and value.dtype.itemsize > 1:
        return torch.from_numpy(value.astype(np.int64))
    # A copy, since torch warns of read-only arrays; and it has no other byte order.
    return torch.from_numpy(np.array(value, value.dtype.newbyteorder("=")))


def check_integers(op: str, name: str, value: Any, axes: str, fix: str) -> None:
    """Check for a tensor of integers."""
    if not isinstance(value, Tensor):
        got = type(value).__name__
        if isinstance(value, np.ndarray):
            got = f"NumPy array of dtype {value.dtype}"
        raise ValueError(
            f"{op}: {name} is a {got}, expected a tensor or array of integers {axes}. {fix}"
        )
    if value.is_floating_point() or value.is_complex() or value.dtype == torch.bool:
        raise ValueError(f"{op}: {name} has dtype {value.dtype}, expected integers {axes}. {fix}")


def contingency(op: str, predicted: Masks, truth: Masks, *, n_slots: int, n_objects: int) -> Tensor:
    """Count the pixels of each pair of a slot and an object.

    Args:
        op: Name of the caller, for error messages.
        predicted: Integers ``(..., H, W)``, the slot of each pixel.
        truth: Integers ``(..., H, W)``, 0 the background, ``i + 1`` object ``i``.
        n_slots: Number of slots m.
        n_objects: Largest number of objects in an image, k.

    Returns:
        int64 ``(..., m, k + 1)``; column 0 is the background.
    """
    predicted, truth = as_tensor(predicted), as_tensor(truth)
    n_slots = checks.as_count(op, "n_slots", n_slots, 1)
    n_objects = checks.as_count(op, "n_objects", n_objects, 1)
    _check(op, predicted, truth, n_slots, n_objects)
    slot, label = predicted.flatten(-2).long(), truth.flatten(-2).long()
    n_bins = n_slots * (n_objects + 1)
    inside = (slot >= 0) & (slot < n_slots) & (label >= 0) & (label <= n_objects)
    # On a GPU values are not checked: a bad one fails there, and never counts for another pair.
    code = torch.where(inside, slot * (n_objects + 1) + label, n_bins)
    counts = code.new_zeros(*code.shape[:-1], n_bins)
    counts = counts.scatter_add(-1, code, torch.ones_like(code))
    return counts.unflatten(-1, (n_slots, n_objects + 1))


def _check(op: str, predicted: Tensor, truth: Tensor, n_slots: int, n_objects: int) -> None:
    for name, value, fix in (
        ("predicted", predicted, "Take the argmax of the slots' masks over the slots."),
        ("truth", truth, "Pass the mask of a Sample."),
    ):
        check_integers(op, name, value, "(..., H, W)", fix)
    if predicted.ndim < 2 or predicted.shape != truth.shape:
        raise ValueError(
            f"{op}: predicted has shape {tuple(predicted.shape)} and truth {tuple(truth.shape)}, "
            "expected the same (..., H, W). Resize the masks to the size of the truth first."
        )
    if predicted.device != truth.device:
        raise ValueError(
            f"{op}: predicted is on {predicted.device} and truth on {truth.device}, expected one "
            "device. Move one of them with .to(device)."
        )
    if predicted.numel() == 0 or not checks.can_read_values(predicted, truth):
        return
    for name, value, most, say in (
        ("predicted", predicted, n_slots - 1, f"n_slots is {n_slots}"),
        ("truth", truth, n_objects, f"n_objects is {n_objects}, and 0 is the background"),
    ):
        low, high = (int(x) for x in value.aminmax())
        if low < 0 or high > most:
            raise ValueError(
                f"{op}: {name} has values from {low} to {high}, expected 0 to {most} ({say}). "
                "Raise the number, or look for an index that is off by one."
            )
