"""Small matrices as tables in colour, for pages."""

from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib as mpl
from torch import Tensor


@dataclass(frozen=True)
class HeatCell:
    """A number, and its colours."""

    text: str
    fill: str
    ink: str


@dataclass(frozen=True)
class HeatTable:
    """A matrix with its numbers: slots down, inputs across, dark for large."""

    title: str
    note: str
    columns: Sequence[str]
    rows: list[tuple[str, list[HeatCell]]]


def heat_table(
    title: str,
    values: Tensor,
    *,
    rows: Sequence[str],
    columns: Sequence[str],
    note: str = "",
    most: float = 1.0,
    number: str = "{:.2f}",
    colours: str = "magma_r",
) -> HeatTable:
    """Lay out a matrix ``(m, n)``; colours are those of matplotlib.

    Example:
        >>> import torch
        >>> from slotmesh.report.heat import heat_table
        >>> heat_table("plan", torch.eye(2), rows="xy", columns="ab").rows[0][1][1].text
        '0.00'
    """
    shades = mpl.colormaps[colours]
    made: list[tuple[str, list[HeatCell]]] = []
    for label, line in zip(rows, values.detach().float().cpu().tolist(), strict=True):
        cells: list[HeatCell] = []
        for value in line:
            r, g, b, _ = shades(min(1.0, max(0.0, value / most)))
            text = number.format(value + 0.0).replace("-0.00", "0.00")
            cells.append(HeatCell(text, _code(r, g, b), _ink(r, g, b)))
        made.append((label, cells))
    return HeatTable(title, note, columns, made)


def _code(*parts: float) -> str:
    return "#" + "".join(f"{round(255 * part):02x}" for part in parts)


def _ink(*parts: float) -> str:
    """Black or white, whichever is easier to read: one of them always has a contrast of 4.5."""
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    light = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return "#000" if (light + 0.05) ** 2 > 1.05 * 0.05 else "#fff"
