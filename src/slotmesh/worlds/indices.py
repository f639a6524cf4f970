"""Which samples: the indices that worlds and readers take."""

from typing import Any

import torch
from torch import Tensor


def as_indices(op: str, index: Any) -> Tensor:
    """Convert indices to int64 ``(batch)``, on their device.

    The values of a tensor on a GPU are not checked, since reading them would wait for the GPU.

    Args:
        op: Name of the caller, for error messages.
        index: A range, a sequence of whole numbers, an array or a tensor.

    Raises:
        ValueError: If they are not at least one whole number of at least 0 each.

    Example:
        >>> from slotmesh.worlds.indices import as_indices
        >>> as_indices("sample", range(3))
        tensor([0, 1, 2])
    """
    try:
        which = torch.as_tensor(index)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ValueError(
            f"{op}: the index is {_short(index)}, expected whole numbers from 0 to 2**63 - 1. Pass "
            "range(64), or a list."
        ) from error
    if which.ndim != 1 or len(which) == 0:
        raise ValueError(
            f"{op}: the index has shape {tuple(which.shape)}, expected at least one whole number "
            "of at least 0. Pass range(64), or a list."
        )
    if which.dtype == torch.bool:
        raise ValueError(
            f"{op}: the index is a mask of {len(which)} booleans, expected whole numbers. Pass "
            "mask.nonzero().squeeze(1)."
        )
    if which.is_floating_point() or which.is_complex():
        raise ValueError(
            f"{op}: the index has numbers of type {which.dtype}, such as {which[0].item()}, "
            "expected whole numbers. Convert them with .long()."
        )
    which = which.to(torch.int64)
    if which.device.type == "cpu" and bool((which < 0).any()):
        raise ValueError(
            f"{op}: the index has {int(which.min())}, expected whole numbers of at least 0. Count "
            "from the first sample."
        )
    return which


def _short(value: object) -> str:
    said = repr(value)
    return said if len(said) <= 60 else f"{said[:57]}..."
