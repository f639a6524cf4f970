"""Load images and masks, crop and resize them as the papers did.

There are two kinds of bilinear resizing. ``antialias=True`` is Pillow's, which averages over all
pixels that fall together (torchvision's Resize on a Pillow image, as iDSPN does for CLEVR).
``antialias=False`` is OpenCV's INTER_LINEAR, up to rounding, which uses four pixels however much
the image shrinks (the MESH authors, for ClevrTex and CLEVRER). Masks are resized to the nearest
pixel, as in OpenCV: pixel ``x`` of the result is ``floor(x * large / small)`` of the original.
"""

import io
import struct
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from slotmesh.ops import checks
from slotmesh.readers import _untrusted
from slotmesh.readers.errors import BadRecord

Pixels = NDArray[np.uint8]

# All datasets use PNG. Pillow would detect fifty other formats, one handled by Ghostscript.
_FORMATS = ("PNG",)
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_MOST_BYTES = 1 << 28
_MOST_PIXELS = 1 << 25


def load_rgb(path: Path, record: int | str | None = None) -> Pixels:
    """Load an image: uint8 ``(H, W, 3)``; an alpha channel is dropped."""
    return np.asarray(_load(path, record).convert("RGB"))


def load_palette(path: Path, record: int | str | None = None) -> Pixels:
    """Load the indices of a palette image (or grey levels): uint8 ``(H, W)``."""
    image = _load(path, record)
    if image.mode not in ("P", "L"):
        raise BadRecord(
            path,
            record,
            f"its mode is {image.mode}, expected P: a palette with one index per pixel",
        )
    return np.asarray(image)


def _load(path: Path, record: int | str | None) -> Image.Image:
    data = _untrusted.read_file(path, record, most=_MOST_BYTES)
    # In a PNG, width and height are always here.
    pixels = int.from_bytes(data[16:20], "big") * int.from_bytes(data[20:24], "big")
    try:
        if data.startswith(_SIGNATURE) and pixels > _MOST_PIXELS:
            raise ValueError(f"it claims {pixels:,} pixels, expected at most {_MOST_PIXELS:,}")
        # Loading skips the checksums of the pixels; verifying them consumes the image.
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            image.verify()
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            image.load()
            return image
    # Pillow reports damage by any of these.
    except (OSError, ValueError, SyntaxError, EOFError, IndexError, struct.error) as error:
        raise BadRecord(path, record, f"it is not a PNG image, or damaged: {error}") from error


def check_size(reader: str, size: int | tuple[int, int] | None) -> tuple[int, int] | None:
    """Check a size and return (height, width); None keeps images as they are."""
    if size is None:
        return None
    both = [checks.plain(s) for s in (size if isinstance(size, tuple | list) else (size, size))]
    if len(both) != 2 or any(type(s) is not int or s < 1 for s in both):
        raise ValueError(
            f"{reader}: size is {size!r}, expected a whole number of at least 1, (height, width) "
            "or None. Pass 64."
        )
    return both[0], both[1]


def centre_crop(pixels: Pixels, side: int) -> Pixels:
    """Crop the middle square of ``(H, W, ...)``."""
    top, left = (pixels.shape[0] - side) // 2, (pixels.shape[1] - side) // 2
    return pixels[top : top + side, left : left + side]


def resize(pixels: Pixels, size: tuple[int, int] | None, *, antialias: bool) -> Pixels:
    """Resize bilinearly: uint8 ``(H, W, 3)`` to ``(*size, 3)``."""
    if size is None or pixels.shape[:2] == size:
        return pixels
    if antialias:
        image = Image.fromarray(np.ascontiguousarray(pixels))
        return np.asarray(image.resize((size[1], size[0]), Image.Resampling.BILINEAR))
    planes = torch.from_numpy(pixels.astype(np.float32)).permute(2, 0, 1).unsqueeze(0)
    small = torch.nn.functional.interpolate(planes, size, mode="bilinear", align_corners=False)
    return small[0].permute(1, 2, 0).round().clamp(0, 255).to(torch.uint8).numpy()


def resize_mask(mask: Pixels, size: tuple[int, int] | None) -> Pixels:
    """Resize to the nearest pixel: uint8 ``(H, W)`` to ``size``."""
    if size is None or mask.shape == size:
        return mask
    rows = np.arange(size[0]) * mask.shape[0] // size[0]
    columns = np.arange(size[1]) * mask.shape[1] // size[1]
    return mask[rows[:, None], columns[None, :]]


def flatten_layers(layers: NDArray[np.bool_]) -> Pixels:
    """Merge masks ``(..., K, H, W)`` into ``(..., H, W)``: 1 + the first that is True, or 0."""
    k = layers.shape[-3]
    none = np.ones((*layers.shape[:-3], 1, *layers.shape[-2:]), dtype=bool)
    first = np.concatenate([layers, none], axis=-3).argmax(axis=-3)
    return np.where(first < k, first + 1, 0).astype(np.uint8)
