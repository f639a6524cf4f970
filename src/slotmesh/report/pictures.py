"""Pictures of the output of trained models: attention, masks, copies."""

from dataclasses import dataclass
from typing import Any, Protocol

from PIL import Image, ImageDraw
from torch import Tensor
from torch.nn import functional as F

from slotmesh.models.feature_colours import feature_colours
from slotmesh.models.segmentation import visible
from slotmesh.palette import object_colour
from slotmesh.report.drawing import (
    LETTERS,
    MARGIN,
    PICTURE,
    SOFT,
    Pixels,
    heat,
    length,
    masked,
    pixels,
    rgb,
    write,
    zoomed,
)
from slotmesh.report.sheet import colour_mask

MOST_SAMPLES = 6
"""Samples per sheet."""

# In pixels. Sheets are scaled by whole numbers to fit the width of a page.
_WIDTH = 1180
_GAP = 4
_CAPTION = 18
# Width of pictures that are shrunk.
_SMALL = 84
_SHORTER = {"reconstruction": "rebuilt"}


class Discovered(Protocol):
    """The parts of an object discovery model's output that are drawn; videos have T after batch."""

    @property
    def reconstruction(self) -> Tensor:
        """``(batch, 3, H, W)``, from -1 to 1; or ``(batch, n, dim)``, if there are ``features``."""
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


@dataclass
class Block:
    """One image: pictures on the left, two per row, and lines with one picture per slot.

    Each picture has a caption, each line a name; pictures are uint8 ``(H, W, 3)``.
    """

    left: list[tuple[str, Pixels]]
    lines: list[tuple[str, list[Pixels]]]


def discovery_sheet(
    image: Tensor, out: Discovered, grid: tuple[int, int], truth: Tensor | None = None
) -> Image.Image:
    """Draw images and the objects found in them.

    For each sample: the image, its reconstruction, and in colours the slot with the largest mask at
    each pixel. Then for every slot its attention (of every iteration, if ``out`` has the trace) and
    its mask, both multiplied by the image. The frames of a video are below each other. Features and
    their reconstruction are shown by their principal components; large images are shrunk.

    Attention maps are scaled so that their largest value is 1. Masks are scaled likewise, but by a
    factor of at most ``m``: if all slots have ``1 / m`` of every pixel, each shows the whole image.

    Args:
        image: uint8 ``(batch, 3, H, W)``, or ``(batch, T, 3, H, W)`` for video.
        out: Output of the model.
        grid: Rows and columns of the ``n`` inputs of the attention.
        truth: True masks ``(batch, H, W)`` or ``(batch, T, H, W)``, to be shown too.

    Returns:
        At most :data:`MOST_SAMPLES` samples below each other.

    Example:
        >>> import torch
        >>> from slotmesh.models import ObjectDiscovery
        >>> from slotmesh.report.pictures import discovery_sheet
        >>> image = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
        >>> model = ObjectDiscovery(4, resolution=(32, 32), channels=8)
        >>> discovery_sheet(image, model(image, trace=True), model.encoder.out_grid).mode
        'RGB'
    """
    return draw_blocks(discovery_blocks(image, out, grid, truth))


def discovery_blocks(
    image: Tensor, out: Discovered, grid: tuple[int, int], truth: Tensor | None = None
) -> list[Block]:
    """The parts of :func:`discovery_sheet`, one block per sample, or per frame of a video."""
    video = image.ndim == 5
    trace = out.attention.unsqueeze(-3) if out.trace is None else out.trace
    blocks: list[Block] = []
    for i in range(min(len(image), MOST_SAMPLES)):
        for t in range(image.shape[1]) if video else (None,):
            at = i if t is None else (i, t)
            shown = pixels(_shrunk(image[at].float()).round())
            left = [
                ("image" if t is None else f"frame {t + 1}", shown),
                *_rebuilt(out, at, grid, shown.shape[:2]),
                ("segments", colour_mask(_shrunk_labels(out.masks[at].argmax(-3)) + 1)),
            ]
            if truth is not None:
                left.insert(-1, ("truth", colour_mask(_shrunk_labels(truth[at]))))
            lines = _attention_lines(shown, trace[at], grid)
            lines.append(("mask", masked(shown, visible(_shrunk(out.masks[at].float())))))
            blocks.append(Block(left, lines))
    return blocks


def attention_sheet(image: Tensor, attention: Tensor, grid: tuple[int, int]) -> Image.Image:
    """Draw images, and beside each the attention of every slot multiplied by it.

    Args:
        image: uint8 ``(batch, 3, H, W)``.
        attention: ``(batch, m, n)``, or ``(batch, n_iters, m, n)`` for every iteration.
        grid: Rows and columns of the ``n`` inputs.

    Returns:
        At most :data:`MOST_SAMPLES` samples below each other.
    """
    return draw_blocks(attention_blocks(image, attention, grid))


def attention_blocks(image: Tensor, attention: Tensor, grid: tuple[int, int]) -> list[Block]:
    """The parts of :func:`attention_sheet`, one block per sample."""
    trace = attention.unsqueeze(-3) if attention.ndim == 3 else attention
    blocks: list[Block] = []
    for i in range(min(len(image), MOST_SAMPLES)):
        shown = pixels(image[i])
        blocks.append(Block([("image", shown)], _attention_lines(shown, trace[i], grid)))
    return blocks


def vectors(targets: Tensor, copied: Tensor, most: float) -> Image.Image:
    """Draw sets of vectors, and below each its copies: vectors down, dimensions across.

    Args:
        targets: ``(batch, k, d)``.
        copied: ``(batch, k, d)``, in the order of the targets.
        most: The number with the darkest colour: blue above 0, red below.

    Returns:
        At most :data:`MOST_SAMPLES` sets, three in a row.
    """
    k, d = targets.shape[1:]
    side = max(2, min(10, 288 // d))
    n = min(len(targets), MOST_SAMPLES)
    across = min(n, 3)
    label = length("target") + 2 * _GAP
    caption = _CAPTION if n > 1 else 0
    cell = (label + d * side + 3 * _GAP, caption + 2 * k * side + 3 * _GAP)
    size = (across * cell[0] + 2 * MARGIN, -(-n // across) * cell[1] + 2 * MARGIN)
    sheet = Image.new("RGB", size, "white")
    pen = ImageDraw.Draw(sheet)
    for i in range(n):
        x = MARGIN + (i % across) * cell[0]
        y = MARGIN + (i // across) * cell[1]
        if n > 1:
            write(pen, (x + label, y), f"set {i + 1}", bold=True)
            y += _CAPTION
        for name, rows in (("target", targets[i]), ("copy", copied[i])):
            write(pen, (x, y + (k * side - LETTERS) // 2 - 1), name, SOFT)
            sheet.paste(zoomed(heat(rows, most), side), (x + label, y))
            y += k * side + _GAP
    return sheet


def _rebuilt(
    out: Any, at: int | tuple[int, int], grid: tuple[int, int], size: tuple[int, ...]
) -> list[tuple[str, Pixels]]:
    """The reconstruction; of features, both they and their reconstruction."""
    if not hasattr(out, "features"):
        unit = out.reconstruction[at].float()
        return [("reconstruction", pixels(_shrunk((unit + 1) * 127.5).round()))]
    both = feature_colours(out.features[at], out.reconstruction[at], grid)
    large = [F.interpolate(x[None].float(), size=size, mode="nearest-exact")[0] for x in both]
    return [("features", pixels(large[0])), ("reconstruction", pixels(large[1]))]


def _shrunk(values: Tensor) -> Tensor:
    """Maps ``(k, H, W)`` small enough for a row of them."""
    if values.shape[-1] <= PICTURE:
        return values
    size = (max(1, round(values.shape[-2] * _SMALL / values.shape[-1])), _SMALL)
    return F.interpolate(values[None].float(), size=size, mode="area")[0]


def _shrunk_labels(labels: Tensor) -> Tensor:
    """Labels ``(H, W)`` of the same size."""
    if labels.shape[-1] <= PICTURE:
        return labels.cpu()
    size = (max(1, round(labels.shape[-2] * _SMALL / labels.shape[-1])), _SMALL)
    whole = F.interpolate(labels[None, None].float(), size=size, mode="nearest-exact")
    return whole[0, 0].to(labels.dtype).cpu()


def _attention_lines(
    shown: Pixels, trace: Tensor, grid: tuple[int, int]
) -> list[tuple[str, list[Pixels]]]:
    """One line per iteration of ``(n_iters, m, n)``."""
    lines: list[tuple[str, list[Pixels]]] = []
    for t, attention in enumerate(trace):
        maps = attention.detach().float()
        # Slots differ in how much mass they take; the picture shows where they take it from.
        maps = maps / maps.amax(-1, keepdim=True).clamp(min=1e-30)
        cells = maps.unflatten(-1, grid).unsqueeze(0)
        whole = F.interpolate(cells, size=shown.shape[:2], mode="nearest-exact")[0]
        label = "attention" if len(trace) == 1 else f"iteration {t + 1}"
        lines.append((label, masked(shown, whole)))
    return lines


def draw_blocks(blocks: list[Block]) -> Image.Image:
    """Draw all blocks below each other; all have pictures of one size and as many slots."""
    _, pictures = blocks[0].lines[0]
    height, width = pictures[0].shape[:2]
    n_left, m = min(2, len(blocks[0].left)), len(pictures)
    label = max(length(words) for words, _ in blocks[0].lines) + 3 * _GAP
    fixed = 2 * MARGIN + label + (n_left + m) * _GAP
    zoom = min((_WIDTH - fixed) // ((n_left + m) * width), PICTURE // width)
    zoom = max(1, zoom)
    across, down = zoom * width + _GAP, zoom * height + _GAP
    n_lines = max(len(block.lines) for block in blocks)
    n_rows = max(-(-len(block.left) // n_left) for block in blocks)
    tall = max(_CAPTION + n_lines * down, n_rows * (_CAPTION + down)) + 2 * _GAP
    size = (fixed + (n_left + m) * zoom * width, len(blocks) * tall + 2 * MARGIN - 3 * _GAP)
    sheet = Image.new("RGB", size, "white")
    pen = ImageDraw.Draw(sheet)
    slots_at = MARGIN + n_left * across + label
    for i, block in enumerate(blocks):
        top = MARGIN + i * tall
        for k, (caption, picture) in enumerate(block.left):
            x = MARGIN + k % n_left * across
            y = top + k // n_left * (down + _CAPTION)
            write(pen, (x, y), _fitting(caption, across))
            sheet.paste(zoomed(picture, zoom), (x, y + _CAPTION))
        for k in range(m):
            at = (slots_at + k * across, top)
            words = f"slot {k + 1}" if length("slot 00") < across else f"{k + 1}"
            write(pen, at, words, rgb(object_colour(k + 1)), bold=True)
        for row, (words, pictures) in enumerate(block.lines):
            y = top + _CAPTION + row * down
            middle = (slots_at - 2 * _GAP, y + (down - LETTERS) // 2 - 2)
            write(pen, middle, words, SOFT, to_the="left")
            for k, picture in enumerate(pictures):
                sheet.paste(zoomed(picture, zoom), (slots_at + k * across, y))
    return sheet


def _fitting(words: str, width: int) -> str:
    """The text, shortened if there is not enough room."""
    return words if length(words) < width else _SHORTER.get(words, words)
