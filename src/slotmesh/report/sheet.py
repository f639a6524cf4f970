"""Sheets of samples: pictures, masks in distinct colours, and what the objects are."""

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray
from torch import Tensor

from slotmesh.files import write_whole
from slotmesh.worlds import Sample, VectorSample

MASK_COLOURS = (
    "#2b2f36",
    "#d1495b",
    "#2f7fb8",
    "#3a9d5d",
    "#e0a11b",
    "#8f5bb5",
    "#1fa6a6",
    "#b5651d",
    "#e07fb0",
    "#7a9c1e",
    "#5468c4",
)
"""The background, then one colour an object; they repeat after ten objects."""

Classes = Mapping[str, Sequence[str]]
NO_CLASSES: Classes = MappingProxyType({})

_DPI = 100
_PICTURE = 128  # Width of a picture on the sheet in pixels, as far as whole multiples go.
_LETTER = 5.2
_LINE = 13
_GAP = 12
_CAPTION = 18
_MOST_FRAMES = 6
_FONT: dict[Any, Any] = {"font.family": "DejaVu Sans", "image.interpolation": "nearest"}


def write_sheet(
    sample: Sample | VectorSample,
    path: Path | str,
    *,
    title: str = "",
    classes: Classes = NO_CLASSES,
) -> None:
    """Write a sheet of samples as PNG; it appears only when it is whole.

    Args:
        sample: What to show.
        path: The file.
        title: A line at the top.
        classes: For columns of the table that hold numbers of classes, the names of the classes.
    """
    path = Path(path)
    if path.suffix.lower() != ".png":
        raise ValueError(f"{path}: expected a name that ends in .png.")
    figure = draw_sheet(sample, title=title, classes=classes)
    picture = io.BytesIO()
    with mpl.rc_context(_FONT):
        figure.savefig(picture, format="png", dpi=_DPI)
    try:
        write_whole(path, picture.getbuffer())
    except OSError as error:
        raise ValueError(
            f"{path} could not be written: {error.strerror or error}. Choose a folder that exists "
            "and can be written to."
        ) from error


def draw_sheet(
    sample: Sample | VectorSample, *, title: str = "", classes: Classes = NO_CLASSES
) -> Figure:
    """The sheet as a figure; of long videos, a few frames."""
    with mpl.rc_context(_FONT):
        if isinstance(sample, VectorSample):
            return _vector_sheet(sample, title)
        return _picture_sheet(sample.to("cpu"), title, classes)


def describe(sample: Sample, i: int, classes: Classes) -> list[str]:
    """A line for each object of sample ``i``: its classes, its scale, the pixels seen of it."""
    mask = sample.mask[i]
    present = sample.present[i]
    lines: list[str] = []
    for row in range(present.shape[-1]):
        if not bool(present[..., row].any()):
            lines.append("")
            continue
        words: list[str] = []
        # The order in which one would say them: large red metal cube.
        for name in ("size", "color", "material", "shape"):
            if name in classes and name in sample.objects:
                words.append(classes[name][int(sample.objects[name][i, row])])
        if "scale" in sample.objects:
            words.append(f"{float(sample.objects['scale'][i, row]):.1f}")
        pixels = (mask == row + 1).flatten(-2).sum(-1).flatten().tolist()
        lines.append(" ".join(words) + f" ({', '.join(str(p) for p in pixels)} px)")
    return lines


def colour_mask(mask: Tensor) -> NDArray[np.uint8]:
    """A mask ``(..., H, W)`` in distinct colours, ``(..., H, W, 3)``."""
    colours = np.array([to_rgb(c) for c in MASK_COLOURS]) * 255
    table = np.vstack([colours[:1], *[colours[1:]] * 26]).round().astype(np.uint8)
    return table[mask.cpu().numpy()]


def _picture_sheet(sample: Sample, title: str, classes: Classes) -> Figure:
    n = len(sample)
    video = sample.image.ndim == 5
    times = _frames(sample.image.shape[1]) if video else [0]
    down, across = (2, len(times)) if video else (1, 2)
    height, width = sample.image.shape[-2:]
    zoom = max(1, round(_PICTURE / width))
    picture = (zoom * width, zoom * height)
    labels = [describe(sample, i, classes) for i in range(n)]
    letters = max(len(line) for lines in labels for line in lines)
    rows = max(sum(line != "" for line in lines) for lines in labels)
    cell = (
        across * (picture[0] + 4) + 20 + round(_LETTER * letters),
        max(down * (picture[1] + 4), _LINE * rows) + _CAPTION,
    )
    page = _Page(n, max(1, min(n, 1300 // (cell[0] + _GAP))), cell, title)
    for i in range(n):
        x, y = page.corner(i)
        page.text(x, y, f"sample {int(sample.index[i])}", size=8, weight="bold")
        y += _CAPTION
        for k, t in enumerate(times):
            image = sample.image[i, t] if video else sample.image[i]
            mask = sample.mask[i, t] if video else sample.mask[i]
            left = x + k * (picture[0] + 4)
            page.picture(left, y, picture, image.movedim(0, -1).numpy())
            # The mask stands below its frame, or beside a single picture.
            at = (left, y + picture[1] + 4) if video else (x + picture[0] + 4, y)
            page.picture(*at, picture, colour_mask(mask))
        left = x + across * (picture[0] + 4) + 4
        lines = [(k, line) for k, line in enumerate(labels[i]) if line]
        for row, (k, line) in enumerate(lines):
            colour = MASK_COLOURS[1 + k % (len(MASK_COLOURS) - 1)]
            page.block(left, y + _LINE * row + 2, 8, colour)
            page.text(left + 12, y + _LINE * row, line, size=6.5)
    return page.figure


def _vector_sheet(sample: VectorSample, title: str) -> Figure:
    """Inputs as heat maps: elements down, dimensions across."""
    inputs = sample.inputs.cpu()
    most = float(inputs.abs().max())
    n, elements, dim = inputs.shape
    # A few zeros say as much as a hundred.
    shown = min(elements, sample.targets.shape[1] + 5)
    picture = (max(160, 6 * dim), 12 * shown)
    page = _Page(n, max(1, 1300 // (picture[0] + _GAP)), (picture[0], picture[1] + _CAPTION), title)
    for i in range(n):
        x, y = page.corner(i)
        caption = f"sample {int(sample.index[i])}: {shown} of {elements} elements"
        page.text(x, y, caption, size=8, weight="bold")
        axes = page.axes(x, y + _CAPTION, picture)
        axes.imshow(inputs[i, :shown].numpy(), cmap="RdBu", vmin=-most, vmax=most, aspect="auto")
    return page.figure


class _Page:
    """A figure measured in pixels from its upper left corner, with cells in rows."""

    def __init__(self, n: int, columns: int, cell: tuple[int, int], title: str) -> None:
        self.columns = columns
        self.cell = (cell[0] + _GAP, cell[1] + _GAP)
        self.top = _GAP + (26 if title else 0)
        self.width = columns * self.cell[0] + _GAP
        self.height = math.ceil(n / columns) * self.cell[1] + self.top
        self.figure = Figure(figsize=(self.width / _DPI, self.height / _DPI), facecolor="white")
        if title:
            self.text(_GAP, 8, title, size=11, weight="bold")

    def corner(self, i: int) -> tuple[int, int]:
        down, across = divmod(i, self.columns)
        return _GAP + across * self.cell[0], self.top + down * self.cell[1]

    def axes(self, x: float, y: float, size: tuple[float, float]) -> Axes:
        box = (
            x / self.width,
            1 - (y + size[1]) / self.height,
            size[0] / self.width,
            size[1] / self.height,
        )
        axes = self.figure.add_axes(box)
        axes.set_axis_off()
        return axes

    def picture(self, x: float, y: float, size: tuple[int, int], image: NDArray[np.uint8]) -> None:
        self.axes(x, y, size).imshow(image, aspect="auto")

    def block(self, x: float, y: float, side: float, colour: str) -> None:
        self.axes(x, y, (side, side)).add_patch(Rectangle((0, 0), 1, 1, color=colour))

    def text(self, x: float, y: float, words: str, *, size: float, weight: str = "normal") -> None:
        self.figure.text(
            x / self.width,
            1 - y / self.height,
            words,
            fontsize=size,
            fontweight=weight,
            color="#22262c",
            va="top",
        )


def _frames(n: int) -> list[int]:
    """All frames, or a few evenly spaced ones with the first and the last."""
    return torch.linspace(0, n - 1, min(n, _MOST_FRAMES)).round().to(torch.int64).tolist()
