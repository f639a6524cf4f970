"""An object of CLEVR as 19 numbers: the target of a property predictor.

The layout is that of iDSPN: position / 3, then material, colour, shape and size as one-hot vectors,
and whether the object is real. The order of the labels inside a vector is that of our tables.
"""

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from slotmesh.ops import checks
from slotmesh.worlds.clevr import CLEVR_COLOURS, CLEVR_MATERIALS, CLEVR_SHAPES, CLEVR_SIZES

POSITION_SCALE = 3.0
"""Positions are divided by this; x and y are then from -1 to 1."""

CLEVR_LABELS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "material": CLEVR_MATERIALS,
        "color": CLEVR_COLOURS,
        "shape": CLEVR_SHAPES,
        "size": CLEVR_SIZES,
    }
)
"""Attributes in the order of their columns, with their labels."""


def _columns() -> dict[str, slice]:
    widths = {"position": 3, **{k: len(v) for k, v in CLEVR_LABELS.items()}, "real": 1}
    columns: dict[str, slice] = {}
    start = 0
    for name, width in widths.items():
        columns[name] = slice(start, start + width)
        start += width
    return columns


CLEVR_COLUMNS: Mapping[str, slice] = MappingProxyType(_columns())
"""Position of each property in the 19 numbers; ``real`` is also the confidence of a detection."""

CLEVR_WIDTH = CLEVR_COLUMNS["real"].stop
"""Numbers per object: 19."""


def encode_objects(objects: Mapping[str, Tensor], present: Tensor) -> Tensor:
    """Encode tables of objects as targets of a property predictor.

    Args:
        objects: Columns ``position`` ``(..., n, 3)`` and ``material``, ``color``, ``shape`` and
            ``size`` ``(..., n)``: the table of a sample of the CLEVR world or reader.
        present: bool ``(..., n)``, True where an object is real.

    Returns:
        float32 ``(..., n, 19)``, laid out by :data:`CLEVR_COLUMNS`; padded rows are zero.

    Example:
        >>> from slotmesh.metrics import CLEVR_COLUMNS, encode_objects
        >>> from slotmesh.worlds import Clevr
        >>> sample = Clevr().sample(range(2))
        >>> target = encode_objects(sample.objects, sample.present)
        >>> target.shape
        torch.Size([2, 10, 19])
        >>> bool((target[..., CLEVR_COLUMNS["color"]].sum(-1) == sample.present).all())
        True
    """
    needed = ("position", *CLEVR_LABELS)
    if missing := [name for name in needed if name not in objects]:
        raise ValueError(
            f"encode_objects: the table has no column {', '.join(missing)} (it has "
            f"{', '.join(objects)}), expected {', '.join(needed)}. Pass a sample of CLEVR."
        )
    for name, value in {"present": present, **{f"column {k}": objects[k] for k in needed}}.items():
        if not isinstance(value, Tensor):
            raise ValueError(
                f"encode_objects: {name} is a {type(value).__name__}, expected a tensor. Convert "
                "it with torch.as_tensor."
            )
    if present.dtype != torch.bool:
        raise ValueError(
            f"encode_objects: present has dtype {present.dtype}, expected torch.bool, True where "
            "an object is real. Use present.bool()."
        )
    for name in needed:
        if name != "position" and objects[name].is_floating_point():
            raise ValueError(
                f"encode_objects: column {name} has dtype {objects[name].dtype}, expected integers:"
                " indices of its labels. Convert it with .long()."
            )
        expected = (*present.shape, 3) if name == "position" else tuple(present.shape)
        if tuple(objects[name].shape) != expected:
            raise ValueError(
                f"encode_objects: column {name} has shape {tuple(objects[name].shape)}, expected "
                f"{expected} to fit present of shape {tuple(present.shape)}."
            )
    parts = [objects["position"].to(torch.float32) / POSITION_SCALE]
    for name, labels in CLEVR_LABELS.items():
        column = objects[name]
        _check_labels(name, column, present, len(labels))
        parts.append(column.unsqueeze(-1) == torch.arange(len(labels), device=column.device))
    parts.append(present.unsqueeze(-1))
    table = torch.cat([part.to(torch.float32) for part in parts], dim=-1)
    return torch.where(present.unsqueeze(-1), table, 0.0)


def _check_labels(name: str, column: Tensor, present: Tensor, n: int) -> None:
    if not checks.can_read_values(column, present):
        return
    real = column[present]
    if bool(((real < 0) | (real >= n)).any()):
        raise ValueError(
            f"encode_objects: column {name} has labels from {int(real.min())} to "
            f"{int(real.max())}, expected 0 to {n - 1}. Pass a sample of CLEVR."
        )
