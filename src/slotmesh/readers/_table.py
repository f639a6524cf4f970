"""Stack single records into one padded batch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from slotmesh.readers._images import Pixels
from slotmesh.readers._json import Fields
from slotmesh.worlds.sample import Sample

Column = NDArray[np.int64] | NDArray[np.float32] | NDArray[np.bool_]


@dataclass(frozen=True)
class ArrayRecord:
    """One record, as numpy arrays: the fields of a Sample without the batch."""

    image: Pixels
    """uint8 ``(H, W, 3)``, or ``(T, H, W, 3)``."""
    mask: Pixels
    """uint8 ``(H, W)``, or ``(T, H, W)``."""
    objects: Mapping[str, Column]
    """Columns, padded to the rows of the table."""
    present: NDArray[np.bool_]
    """``(max_objects)``, or ``(T, max_objects)``."""


def stack(records: Sequence[ArrayRecord], index: Sequence[int], path: str) -> Sample:
    """Stack records into a batch; all images must have one size."""
    sizes = {r.image.shape for r in records}
    if len(sizes) > 1:
        shown = " and ".join(str(s) for s in sorted(sizes)[:2])
        raise ValueError(
            f"{path}: images of the shapes {shown} do not fit into one batch. Open the reader with "
            "a size, or read them one at a time."
        )
    image = torch.from_numpy(np.stack([r.image for r in records]))
    columns = {
        name: torch.from_numpy(np.stack([r.objects[name] for r in records]))
        for name in records[0].objects
    }
    return Sample(
        image=image.movedim(-1, -3).contiguous(),
        mask=torch.from_numpy(np.stack([r.mask for r in records])),
        objects=columns,
        present=torch.from_numpy(np.stack([r.present for r in records])),
        index=torch.tensor(index, dtype=torch.int64),
    )


def empty_table(
    classes: Mapping[str, Sequence[str]], k: int
) -> tuple[dict[str, NDArray[Any]], NDArray[np.bool_]]:
    """Columns of CLEVR and ClevrTex for ``k`` objects, all zero, and which are present: none."""
    columns: dict[str, NDArray[Any]] = {name: integers(k) for name in classes}
    columns |= {"position": floats(k, 3), "rotation": floats(k), "pixel": floats(k, 3)}
    return columns, np.zeros(k, dtype=np.bool_)


def read_object(
    columns: dict[str, NDArray[Any]],
    row: int,
    thing: Fields,
    classes: Mapping[str, Sequence[str]],
) -> None:
    """Put an object of a scene file into a row of the table."""
    for name, labels in classes.items():
        columns[name][row] = thing.label(name, labels)
    columns["position"][row] = thing.numbers("3d_coords", 3)
    columns["rotation"][row] = thing.number("rotation")
    columns["pixel"][row] = thing.numbers("pixel_coords", 3)


def integers(*shape: int) -> NDArray[np.int64]:
    """A column of class indices, all zero."""
    return np.zeros(shape, dtype=np.int64)


def floats(*shape: int) -> NDArray[np.float32]:
    """A column of numbers, all zero."""
    return np.zeros(shape, dtype=np.float32)
