"""Objects of a video, identified by their attributes.

Detections are per frame, without a lasting name. In CLEVRER no two objects of a video are alike, so
colour, material and shape together are the identity. If a frame has the same three twice (an error
of the detector), the second gets a row of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slotmesh.readers._images import Pixels

Kind = tuple[int, int, int]
"""Colour, material and shape, as indices into the labels."""


@dataclass(frozen=True)
class Detection:
    """One object in one frame."""

    kind: Kind
    mask: Pixels
    """0 or 1: uint8 ``(H, W)``."""
    score: float
    """Where masks overlap, the higher score wins; of equal ones, the first."""


def join(
    frames: Sequence[Sequence[Detection]], known: Sequence[Kind], size: tuple[int, int]
) -> tuple[list[Kind], Pixels]:
    """Join detections into rows of the table and a mask, uint8 ``(T, H, W)``, ``i + 1`` for row i.

    Args:
        frames: The detections in each frame.
        known: The known objects of the video, which become the first rows, in this order.
        size: Height and width of the masks.
    """
    rows: list[tuple[Kind, int]] = []
    for kind in known:
        rows.append((kind, sum(k == kind for k, _ in rows)))
    # Wide enough for more rows than the caller accepts.
    mask = np.zeros((len(frames), *size), dtype=np.int32)
    for t, found in enumerate(frames):
        best_first = sorted(found, key=lambda d: -d.score)
        seen: list[Kind] = []
        numbers: list[int] = []
        for detection in best_first:
            row = (detection.kind, seen.count(detection.kind))
            seen.append(detection.kind)
            if row not in rows:
                rows.append(row)
            numbers.append(rows.index(row) + 1)
        # The best is painted last, on top.
        for detection, number in zip(reversed(best_first), reversed(numbers), strict=True):
            mask[t][detection.mask > 0] = number
    return [kind for kind, _ in rows], mask.astype(np.uint8)


def visible(mask: Pixels, max_objects: int) -> NDArray[np.bool_]:
    """Which objects have a pixel: bool ``(T, max_objects)``."""
    numbers = np.arange(1, max_objects + 1)
    return np.stack([np.isin(numbers, frame) for frame in mask])
