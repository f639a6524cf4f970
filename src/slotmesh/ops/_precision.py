"""Computations that need more precision than they are given."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def full_precision(like: Tensor) -> AbstractContextManager[object]:
    """A context in which autocast is off on the device of ``like``."""
    kind = like.device.type
    # Autocast knows no meta device; asking torch which ones it knows cannot be compiled in 2.11.
    return nullcontext() if kind == "meta" else torch.autocast(kind, enabled=False)


def exact(x: Tensor) -> Tensor:
    """``x`` in float64: on its device, or on the CPU if it is on an Apple GPU, which has none."""
    return x.cpu().double() if x.device.type == "mps" else x.double()
