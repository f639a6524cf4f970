"""Figures in the style of the project, as SVG or PNG."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from torch import Tensor

from slotmesh.files import write_whole

# Drawing a figure again gives the same bytes: no dates, and fixed ids.
_STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "slotmesh",
}


def svg_bytes(figure: Figure) -> bytes:
    """Render the figure as SVG, the same bytes every time."""
    buffer = io.BytesIO()
    with mpl.rc_context(_STYLE):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def save_figure(figure: Figure, path: Path, dpi: int = 150) -> None:
    """Write the figure as .svg or .png, by the name of the file, atomically."""
    if path.suffix == ".svg":
        picture = svg_bytes(figure)
    elif path.suffix == ".png":
        buffer = io.BytesIO()
        with mpl.rc_context(_STYLE):
            figure.savefig(buffer, format="png", dpi=dpi)
        picture = buffer.getvalue()
    else:
        raise ValueError(f"{path} ends in {path.suffix!r}, expected .svg or .png. Rename it.")
    write_whole(path, picture)


def shades(colour: str, n: int) -> list[str]:
    """``n`` shades of a colour from light to dark, for ordered curves."""
    base = np.array(to_rgb(colour))
    mixed: list[str] = []
    for i in range(n):
        # Through the colour itself: straight from light to dark, the middle would be grey.
        t = 2 * i / (n - 1) - 1 if n > 1 else 0.0
        r, g, b = (1 - abs(t)) * base + abs(t) * (0.5 * base + (0.5 if t < 0 else 0.0))
        mixed.append(to_hex((r, g, b)))
    return mixed


def panels(
    width: float, height: float, rows: int = 1, columns: int = 1, **options: Any
) -> tuple[Figure, list[list[Axes]]]:
    """Make an empty figure in the style of the project, in inches, and its axes row by row."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        return figure, figure.subplots(rows, columns, squeeze=False, **options).tolist()


def heat_map(
    axes: Axes,
    plan: Tensor,
    *,
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    most: float = 1.0,
    number: str = "{:.2f}",
    colours: str = "magma_r",
) -> None:
    """Draw a matrix ``(m, n)`` with its numbers: slots down, inputs across, dark for large."""
    values = plan.detach().float().cpu().numpy()
    axes.imshow(values, vmin=0, vmax=most, cmap=colours, aspect="equal")
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(True)
        spine.set_color("#c8ccd2")
    for i, row in enumerate(values):
        for j, value in enumerate(row):
            ink = "white" if value > 0.4 * most else "#333333"
            text = number.format(value)
            axes.text(j, i, text, ha="center", va="center", color=ink, fontsize=9)
