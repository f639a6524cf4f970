"""Drawing pictures and captions on a sheet, in pixels."""

from functools import cache
from pathlib import Path
from typing import Literal

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.colors import to_rgb
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

Pixels = NDArray[np.uint8]
Colour = tuple[int, int, int]

PICTURE = 128
"""Approximate width of a picture, which is scaled by a whole number."""
MARGIN = 10
LETTERS = 12
INK: Colour = (34, 38, 44)
SOFT: Colour = (91, 102, 117)


def pixels(image: Tensor) -> Pixels:
    """``(3, H, W)`` from 0 to 255 as ``(H, W, 3)``."""
    return image.detach().clamp(0, 255).to(torch.uint8).cpu().movedim(0, -1).numpy()


def masked(shown: Pixels, maps: Tensor) -> list[Pixels]:
    """An image ``(H, W, 3)`` multiplied by each of the maps ``(m, H, W)`` from 0 to 1."""
    values = maps.detach().float().clamp(0, 1).cpu().numpy()
    return list((shown * values[..., None]).round().astype(np.uint8))


def zoomed(picture: Pixels, zoom: int) -> Image.Image:
    """Each pixel as a square of ``zoom`` by ``zoom``."""
    return Image.fromarray(np.ascontiguousarray(picture.repeat(zoom, 0).repeat(zoom, 1)))


def heat(values: Tensor, most: float) -> Pixels:
    """Colours ``(k, d, 3)`` of numbers ``(k, d)``: blue above 0, red below, darkest at ``most``."""
    shares = values.detach().float().cpu().numpy() / (2 * most) + 0.5
    return (mpl.colormaps["RdBu"](shares.clip(0, 1))[..., :3] * 255).round().astype(np.uint8)


def rgb(colour: str) -> Colour:
    """A colour of matplotlib as whole numbers from 0 to 255."""
    r, g, b = to_rgb(colour)
    return round(255 * r), round(255 * g), round(255 * b)


def write(
    pen: ImageDraw.ImageDraw,
    at: tuple[int, int],
    words: str,
    colour: Colour = INK,
    *,
    size: int = LETTERS,
    bold: bool = False,
    to_the: Literal["left", "right"] = "right",
) -> None:
    """Write to the left or to the right of a point."""
    anchor = "la" if to_the == "right" else "ra"
    pen.text(at, words, fill=colour, font=_font(size, bold), anchor=anchor)


def length(words: str, size: int = LETTERS) -> int:
    """Width of the words in pixels."""
    return round(_font(size).getlength(words))


@cache
def _font(size: int, bold: bool = False) -> ImageFont.FreeTypeFont:
    """The font that comes with matplotlib, the same on every machine."""
    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    path = Path(mpl.get_data_path()) / "fonts" / "ttf" / name
    return ImageFont.truetype(str(path), size, layout_engine=ImageFont.Layout.BASIC)
