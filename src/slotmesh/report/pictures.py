"""What trained models make of samples, as pictures: attention, masks, copies."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, Protocol

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.colors import to_rgb
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from torch.nn import functional as F

from slotmesh.report.sheet import MASK_COLOURS, colour_mask

Pixels = NDArray[np.uint8]

MOST_SAMPLES = 6
"""Samples on a sheet."""

# In pixels. A sheet stays within the width of a page where whole multiples of its images allow.
_WIDTH = 1180
_PICTURE = 128
_GAP = 4
_MARGIN = 10
_LETTERS = 12
_CAPTION = 18
_SHORTER = {"reconstruction": "rebuilt"}
_INK = (34, 38, 44)
_SOFT = (91, 102, 117)


class Discovered(Protocol):
    """What is drawn of an object discovery model's output; videos have a T after the batch."""

    @property
    def reconstruction(self) -> Tensor:
        """``(batch, 3, H, W)``, from -1 to 1."""
        ...

    @property
    def masks(self) -> Tensor:
        """``(batch, m, H, W)``."""
        ...

    @property
    def attention(self) -> Tensor:
        """``(batch, m, n)``."""
        ...

    @property
    def trace(self) -> Tensor | None:
        """``(batch, n_iters, m, n)``, or None."""
        ...


def discovery_sheet(
    image: Tensor, out: Discovered, grid: tuple[int, int], truth: Tensor | None = None
) -> Image.Image:
    """Images and what was found in them.

    For each sample: the image, its reconstruction, and in colours which slot has the largest mask
    where. Then for every slot, its attention (of every iteration, if ``out`` has the trace) and
    below it its mask, both multiplied with the image. In a video each frame comes below the last.

    Args:
        image: uint8 ``(batch, 3, H, W)``, or ``(batch, T, 3, H, W)`` for video.
        out: What the model returned.
        grid: Rows and columns that the ``n`` inputs of the attention lie in.
        truth: Objects' masks ``(batch, H, W)`` or ``(batch, T, H, W)``, to be shown beside.

    Returns:
        At most :data:`MOST_SAMPLES` samples below one another.

    Example:
        >>> import torch
        >>> from slotmesh.models import ObjectDiscovery
        >>> from slotmesh.report.pictures import discovery_sheet
        >>> image = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
        >>> model = ObjectDiscovery(4, resolution=(32, 32), channels=8)
        >>> discovery_sheet(image, model(image, trace=True), model.encoder.out_grid).mode
        'RGB'
    """
    video = image.ndim == 5
    trace = out.attention.unsqueeze(-3) if out.trace is None else out.trace
    blocks: list[_Block] = []
    for i in range(min(len(image), MOST_SAMPLES)):
        for t in range(image.shape[1]) if video else (None,):
            at = i if t is None else (i, t)
            shown = _pixels(image[at])
            left = [
                ("image" if t is None else f"frame {t + 1}", shown),
                ("reconstruction", _pixels(((out.reconstruction[at].float() + 1) * 127.5).round())),
                ("segments", colour_mask(out.masks[at].argmax(-3).cpu() + 1)),
            ]
            if truth is not None:
                left.insert(2, ("truth", colour_mask(truth[at].cpu())))
            lines = _attention_lines(shown, trace[at], grid)
            lines.append(("mask", _times(shown, out.masks[at])))
            blocks.append(_Block(left, lines))
    return _draw(blocks)


def attention_sheet(image: Tensor, attention: Tensor, grid: tuple[int, int]) -> Image.Image:
    """Images, and beside each the attention of every slot multiplied with it.

    Args:
        image: uint8 ``(batch, 3, H, W)``.
        attention: ``(batch, m, n)``, or ``(batch, n_iters, m, n)`` for every iteration.
        grid: Rows and columns that the ``n`` inputs lie in.

    Returns:
        At most :data:`MOST_SAMPLES` samples below one another.
    """
    trace = attention.unsqueeze(-3) if attention.ndim == 3 else attention
    blocks: list[_Block] = []
    for i in range(min(len(image), MOST_SAMPLES)):
        shown = _pixels(image[i])
        blocks.append(_Block([("image", shown)], _attention_lines(shown, trace[i], grid)))
    return _draw(blocks)


def vectors(targets: Tensor, copied: Tensor, most: float) -> Image.Image:
    """Sets of vectors, and below each its copies: vectors down, dimensions across.

    Args:
        targets: ``(batch, k, d)``.
        copied: ``(batch, k, d)``, in the order of the targets.
        most: The number that has the darkest colour: blue above 0, red below.

    Returns:
        At most :data:`MOST_SAMPLES` sets, three in a row.
    """
    k, d = targets.shape[1:]
    side = max(2, min(10, 288 // d))
    colours = mpl.colormaps["RdBu"]
    n = min(len(targets), MOST_SAMPLES)
    across = min(n, 3)
    label = round(_length("target")) + 2 * _GAP
    caption = _CAPTION if n > 1 else 0
    cell = (label + d * side + 3 * _GAP, caption + 2 * k * side + 3 * _GAP)
    size = (across * cell[0] + 2 * _MARGIN, -(-n // across) * cell[1] + 2 * _MARGIN)
    sheet = Image.new("RGB", size, "white")
    pen = ImageDraw.Draw(sheet)
    for i in range(n):
        x = _MARGIN + (i % across) * cell[0]
        y = _MARGIN + (i // across) * cell[1]
        if n > 1:
            _write(pen, (x + label, y), f"set {i + 1}", bold=True)
            y += _CAPTION
        for name, rows in (("target", targets[i]), ("copy", copied[i])):
            values = rows.detach().float().cpu().numpy() / (2 * most) + 0.5
            shown = (colours(values.clip(0, 1))[..., :3] * 255).round().astype(np.uint8)
            _write(pen, (x, y + (k * side - _LETTERS) // 2 - 1), name, _SOFT)
            sheet.paste(_zoomed(shown, side), (x + label, y))
            y += k * side + _GAP
    return sheet


@dataclass
class _Block:
    """One image: pictures on the left, two in a row, and lines with something of every slot."""

    left: list[tuple[str, Pixels]]
    lines: list[tuple[str, list[Pixels]]]


def _attention_lines(
    shown: Pixels, trace: Tensor, grid: tuple[int, int]
) -> list[tuple[str, list[Pixels]]]:
    """One line an iteration of ``(n_iters, m, n)``."""
    lines: list[tuple[str, list[Pixels]]] = []
    for t, attention in enumerate(trace):
        maps = attention.detach().float()
        # Slots differ by how much they take; where they take it is what can be seen.
        maps = maps / maps.amax(-1, keepdim=True).clamp(min=1e-30)
        cells = maps.unflatten(-1, grid).unsqueeze(0)
        whole = F.interpolate(cells, size=shown.shape[:2], mode="nearest-exact")[0]
        label = "attention" if len(trace) == 1 else f"iteration {t + 1}"
        lines.append((label, _times(shown, whole)))
    return lines


def _draw(blocks: list[_Block]) -> Image.Image:
    """All blocks below one another; they have pictures of one size, and as many slots."""
    _, pictures = blocks[0].lines[0]
    height, width = pictures[0].shape[:2]
    n_left, m = min(2, len(blocks[0].left)), len(pictures)
    label = round(max(_length(words) for words, _ in blocks[0].lines)) + 3 * _GAP
    fixed = 2 * _MARGIN + label + (n_left + m) * _GAP
    zoom = min((_WIDTH - fixed) // ((n_left + m) * width), _PICTURE // width)
    zoom = max(1, zoom)
    across, down = zoom * width + _GAP, zoom * height + _GAP
    n_lines = max(len(block.lines) for block in blocks)
    n_rows = max(-(-len(block.left) // n_left) for block in blocks)
    tall = max(_CAPTION + n_lines * down, n_rows * (_CAPTION + down)) + 2 * _GAP
    size = (fixed + (n_left + m) * zoom * width, len(blocks) * tall + 2 * _MARGIN - 3 * _GAP)
    sheet = Image.new("RGB", size, "white")
    pen = ImageDraw.Draw(sheet)
    slots_at = _MARGIN + n_left * across + label
    for i, block in enumerate(blocks):
        top = _MARGIN + i * tall
        for k, (caption, picture) in enumerate(block.left):
            x = _MARGIN + k % n_left * across
            y = top + k // n_left * (down + _CAPTION)
            _write(pen, (x, y), _fitting(caption, across))
            sheet.paste(_zoomed(picture, zoom), (x, y + _CAPTION))
        for k in range(m):
            at = (slots_at + k * across, top)
            words = f"slot {k + 1}" if _length("slot 00") < across else f"{k + 1}"
            _write(pen, at, words, _slot_colour(k), bold=True)
        for row, (words, pictures) in enumerate(block.lines):
            y = top + _CAPTION + row * down
            middle = (slots_at - 2 * _GAP, y + (down - _LETTERS) // 2 - 2)
            _write(pen, middle, words, _SOFT, to_the="left")
            for k, picture in enumerate(pictures):
                sheet.paste(_zoomed(picture, zoom), (slots_at + k * across, y))
    return sheet


def _pixels(image: Tensor) -> Pixels:
    """``(3, H, W)`` as ``(H, W, 3)``."""
    return image.detach().clamp(0, 255).to(torch.uint8).cpu().movedim(0, -1).numpy()


def _times(shown: Pixels, maps: Tensor) -> list[Pixels]:
    """An image ``(H, W, 3)`` multiplied with each of the maps ``(m, H, W)`` from 0 to 1."""
    values = maps.detach().float().clamp(0, 1).cpu().numpy()
    return list((shown * values[..., None]).round().astype(np.uint8))


def _zoomed(pixels: Pixels, zoom: int) -> Image.Image:
    return Image.fromarray(np.ascontiguousarray(pixels.repeat(zoom, 0).repeat(zoom, 1)))


def _slot_colour(k: int) -> tuple[int, int, int]:
    r, g, b = to_rgb(MASK_COLOURS[1 + k % (len(MASK_COLOURS) - 1)])
    return round(255 * r), round(255 * g), round(255 * b)


def _fitting(words: str, width: int) -> str:
    """The words, or shorter ones where there is no room."""
    return words if _length(words) < width else _SHORTER.get(words, words)


def _write(
    pen: ImageDraw.ImageDraw,
    at: tuple[int, int],
    words: str,
    colour: tuple[int, int, int] = _INK,
    *,
    bold: bool = False,
    to_the: Literal["left", "right"] = "right",
) -> None:
    """Write to the left or to the right of a place."""
    anchor = "la" if to_the == "right" else "ra"
    pen.text(at, words, fill=colour, font=_font(bold), anchor=anchor)


def _length(words: str) -> float:
    return _font().getlength(words)


@cache
def _font(bold: bool = False) -> ImageFont.FreeTypeFont:
    """The letters that matplotlib brings along, the same everywhere."""
    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    path = Path(mpl.get_data_path()) / "fonts" / "ttf" / name
    return ImageFont.truetype(str(path), _LETTERS, layout_engine=ImageFont.Layout.BASIC)
