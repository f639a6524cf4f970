"""Sheets of samples: images, masks in distinct colours, and what the objects are."""

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch
from matplotlib.colors import to_rgb
from PIL import Image, ImageDraw
from torch import Tensor

from slotmesh.files import is_full, write_whole
from slotmesh.palette import MASK_COLOURS, object_colour
from slotmesh.report.drawing import PICTURE, Pixels, heat, length, pixels, rgb, write, zoomed
from slotmesh.worlds import Sample, VectorSample

Classes = Mapping[str, Sequence[str]]
NO_CLASSES: Classes = MappingProxyType({})

# In pixels.
_WIDTH = 1300
_LINE = 13
_SMALL = 9
_GAP = 12
_CAPTION = 18
_MOST_FRAMES = 6


def write_sheet(
    sample: Sample | VectorSample,
    path: Path | str,
    *,
    title: str = "",
    classes: Classes = NO_CLASSES,
) -> None:
    """Write a sheet of samples as PNG, atomically.

    Args:
        sample: What to show.
        path: The file.
        title: A line at the top.
        classes: Names of the classes, by the columns of the table of objects that hold their
            numbers.
    """
    path = Path(path)
    if path.suffix.lower() != ".png":
        raise ValueError(f"{path}: expected a name that ends in .png.")
    picture = io.BytesIO()
    draw_sheet(sample, title=title, classes=classes).save(picture, format="PNG")
    try:
        write_whole(path, picture.getbuffer())
    except OSError as error:
        fix = "Free some space, or choose" if is_full(error) else "Choose"
        raise ValueError(
            f"{path} could not be written: {error.strerror or error}. {fix} a folder that exists "
            "and can be written to."
        ) from error


def draw_sheet(
    sample: Sample | VectorSample, *, title: str = "", classes: Classes = NO_CLASSES
) -> Image.Image:
    """Draw the sheet; of long videos, a few frames."""
    if isinstance(sample, VectorSample):
        return _vector_sheet(sample, title)
    return _picture_sheet(sample.to("cpu"), title, classes)


def describe(sample: Sample, i: int, classes: Classes) -> list[str]:
    """One line per object of sample ``i``: its classes, its scale, its visible pixels."""
    mask = sample.mask[i]
    present = sample.present[i]
    lines: list[str] = []
    for row in range(present.shape[-1]):
        if not bool(present[..., row].any()):
            lines.append("")
            continue
        words: list[str] = []
        # In the order in which one would say them: large red metal cube.
        for name in ("size", "color", "material", "shape"):
            if name in classes and name in sample.objects:
                words.append(classes[name][int(sample.objects[name][i, row])])
        if "scale" in sample.objects:
            words.append(f"{float(sample.objects['scale'][i, row]):.1f}")
        pixels = (mask == row + 1).flatten(-2).sum(-1).flatten().tolist()
        lines.append(" ".join(words) + f" ({', '.join(str(p) for p in pixels)} px)")
    return lines


def colour_mask(mask: Tensor) -> Pixels:
    """A mask ``(..., H, W)`` in distinct colours, ``(..., H, W, 3)``."""
    colours = np.array([to_rgb(c) for c in MASK_COLOURS]) * 255
    table = np.vstack([colours[:1], *[colours[1:]] * 26]).round().astype(np.uint8)
    return table[mask.cpu().numpy()]


def _picture_sheet(sample: Sample, title: str, classes: Classes) -> Image.Image:
    n = len(sample)
    video = sample.image.ndim == 5
    times = _frames(sample.image.shape[1]) if video else [0]
    down, across = (2, len(times)) if video else (1, 2)
    height, width = sample.image.shape[-2:]
    zoom = max(1, round(PICTURE / width))
    right, below = zoom * width + 4, zoom * height + 4
    labels = [describe(sample, i, classes) for i in range(n)]
    rows = max(sum(line != "" for line in lines) for lines in labels)
    words = max(length(line, _SMALL) for lines in labels for line in lines)
    cell = (across * right + 20 + words, max(down * below, _LINE * rows) + _CAPTION)
    sheet, corners = _page(n, cell, title)
    pen = ImageDraw.Draw(sheet)
    for i, (x, y) in enumerate(corners):
        write(pen, (x, y), f"sample {int(sample.index[i])}", bold=True)
        y += _CAPTION
        for k, t in enumerate(times):
            at = (i, t) if video else i
            left = x + k * right
            sheet.paste(zoomed(pixels(sample.image[at]), zoom), (left, y))
            # The mask stands below its frame, or beside a single picture.
            place = (left, y + below) if video else (x + right, y)
            sheet.paste(zoomed(colour_mask(sample.mask[at]), zoom), place)
        left = x + across * right + 4
        lines = [(k, line) for k, line in enumerate(labels[i]) if line]
        for row, (k, line) in enumerate(lines):
            top = y + _LINE * row
            colour = rgb(object_colour(k + 1))
            pen.rectangle(((left, top + 2), (left + 7, top + 9)), fill=colour)
            write(pen, (left + 12, top), line, size=_SMALL)
    return sheet


def _vector_sheet(sample: VectorSample, title: str) -> Image.Image:
    """Inputs as heat maps: elements down, dimensions across."""
    inputs = sample.inputs.cpu()
    n, elements, dim = inputs.shape
    # A few zeros are as informative as a hundred.
    shown = min(elements, sample.targets.shape[1] + 5)
    captions = [f"sample {int(i)}: {shown} of {elements} elements" for i in sample.index]
    side = max(2, min(10, 288 // dim))
    wide = max(dim * side, *map(length, captions))
    sheet, corners = _page(n, (wide, shown * side + _CAPTION), title)
    pen = ImageDraw.Draw(sheet)
    for (x, y), caption, values in zip(corners, captions, inputs[:, :shown], strict=True):
        write(pen, (x, y), caption, bold=True)
        sheet.paste(zoomed(heat(values, float(inputs.abs().max())), side), (x, y + _CAPTION))
    return sheet


def _page(n: int, cell: tuple[int, int], title: str) -> tuple[Image.Image, list[tuple[int, int]]]:
    """A white page with a title, and the upper left corners of its ``n`` cells."""
    wide, tall = cell[0] + _GAP, cell[1] + _GAP
    columns = max(1, min(n, _WIDTH // wide))
    top = _GAP + (26 if title else 0)
    sheet = Image.new("RGB", (columns * wide + _GAP, -(-n // columns) * tall + top), "white")
    write(ImageDraw.Draw(sheet), (_GAP, 8), title, size=15, bold=True)
    return sheet, [(_GAP + i % columns * wide, top + i // columns * tall) for i in range(n)]


def _frames(n: int) -> list[int]:
    """All frames, or a few evenly spaced ones with the first and the last."""
    return torch.linspace(0, n - 1, min(n, _MOST_FRAMES)).round().to(torch.int64).tolist()
