"""The batch that every world and every reader returns."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slotmesh.worlds.record import TensorRecord


@dataclass(frozen=True)
class Sample(TensorRecord):
    """A batch of labelled images (or videos).

    Object ``i`` of the table occupies the pixels where ``mask == i + 1``; 0 is the background. A
    slice such as ``sample[:8]`` is a batch of these samples that shares memory with the original.
    """

    image: Tensor
    """uint8 ``(batch, 3, H, W)``, or ``(batch, T, 3, H, W)`` for video; RGB."""
    mask: Tensor
    """uint8 ``(batch, H, W)`` or ``(batch, T, H, W)``: 1 + the object's index, 0 for none."""
    objects: dict[str, Tensor]
    """Columns of the table of objects, each ``(batch, max_objects, ...)``; for video, columns that
    change over time are ``(batch, T, max_objects, ...)``. Padded with zeros."""
    present: Tensor
    """bool ``(batch, max_objects)``, or ``(batch, T, max_objects)`` for video: True where an
    object is real (and, in a video, visible in that frame)."""
    index: Tensor
    """int64 ``(batch)``: which samples these are."""

    @classmethod
    def join(cls, parts: Sequence["Sample"]) -> "Sample":
        """Concatenate batches."""
        return cls(
            torch.cat([p.image for p in parts]),
            torch.cat([p.mask for p in parts]),
            {k: torch.cat([p.objects[k] for p in parts]) for k in parts[0].objects},
            torch.cat([p.present for p in parts]),
            torch.cat([p.index for p in parts]),
        )
