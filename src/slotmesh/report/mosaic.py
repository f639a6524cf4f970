"""Pictures of samples for pages: tiles and a matrix of slots, with captions that are text."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image
from torch import Tensor

from slotmesh.palette import object_colour
from slotmesh.report.drawing import Colour, Pixels, heat, rgb
from slotmesh.report.pictures import Block


@dataclass(frozen=True)
class Tile:
    """One picture, in its own pixels; a page enlarges it."""

    caption: str
    uri: str
    width: int
    height: int


@dataclass(frozen=True)
class Line:
    """A row of the matrix."""

    name: str
    note: str = ""
    """A few words beside the name."""


@dataclass(frozen=True)
class Mosaic:
    """The pictures of one sample: tiles, and next to them one picture with a row per line."""

    tiles: list[Tile]
    lines: list[Line]
    columns: list[tuple[str, str]]
    """A caption and a colour per column; none has no colour."""
    matrix: Tile | None


def slot_mosaic(block: Block) -> Mosaic:
    """The pictures of a block; the matrix has one column per slot.

    Example:
        >>> import numpy as np
        >>> from slotmesh.report.mosaic import slot_mosaic
        >>> from slotmesh.report.pictures import Block
        >>> picture = np.zeros((8, 8, 3), np.uint8)
        >>> found = slot_mosaic(Block([("image", picture)], [("mask", [picture] * 3)]))
        >>> [name for name, _ in found.columns], found.tiles[0].width
        (['1', '2', '3'], 8)
    """
    tiles = [tile(caption, Image.fromarray(picture)) for caption, picture in block.left]
    if not block.lines:
        return Mosaic(tiles, [], [], None)
    n = len(block.lines[0][1])
    columns = [(str(k + 1), object_colour(k + 1)) for k in range(n)]
    matrix = joined([pictures for _, pictures in block.lines])
    return Mosaic(tiles, [Line(name) for name, _ in block.lines], columns, tile("", matrix))


def vector_mosaic(targets: Tensor, copied: Tensor, most: float) -> Mosaic:
    """Vectors ``(k, d)`` and their copies in the same order: dimensions across, blue above 0."""
    pictures = (("target", targets), ("copy", copied))
    return Mosaic(
        [tile(name, Image.fromarray(heat(rows, most))) for name, rows in pictures], [], [], None
    )


def joined(
    lines: Sequence[Sequence[Pixels]], frames: Sequence[Sequence[Colour | None]] | None = None
) -> Image.Image:
    """Join pictures of one size in rows, with transparent gaps.

    Args:
        lines: Pictures ``(H, W, 3)``, row by row.
        frames: A colour around each of them, or None.
    """
    height, width = lines[0][0].shape[:2]
    gap = max(1, width // 20)
    down, across = height + 2 * gap, width + 2 * gap
    whole = np.zeros((down * len(lines), across * max(map(len, lines)), 4), np.uint8)
    for i, line in enumerate(lines):
        for k, picture in enumerate(line):
            y, x = i * down, k * across
            colour = None if frames is None else frames[i][k]
            if colour is not None:
                # Half of the gap, so that frames do not touch.
                edge = (gap + 1) // 2
                inner = gap - edge
                box = (slice(y + inner, y + down - inner), slice(x + inner, x + across - inner))
                whole[box] = (*colour, 255)
            box = (slice(y + gap, y + gap + height), slice(x + gap, x + gap + width))
            whole[(*box, slice(0, 3))] = picture
            whole[(*box, 3)] = 255
    return Image.fromarray(whole)


def frame_colour(label: int) -> Colour:
    """The colour of an object: 0 is the background."""
    return rgb(object_colour(label))


def tile(caption: str, picture: Image.Image) -> Tile:
    """A picture that a page can hold, without loss."""
    return Tile(caption, picture_uri(picture), picture.width, picture.height)


def picture_uri(picture: Image.Image) -> str:
    """Encode a picture as a data URI for ``<img>``, as PNG."""
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
