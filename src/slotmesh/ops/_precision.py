"""Keeping autocast out of computations that need their full precision."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def full_precision(like: Tensor) -> AbstractContextManager[object]:
    """A context in which autocast is off on the device of ``like``."""
    kind = like.device.type
    # Autocast knows no meta device; asking torch which ones it knows cannot be compiled in 2.11.
    return nullcontext() if kind == "meta" else torch.autocast(kind, enabled=False)
