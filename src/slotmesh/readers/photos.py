"""Load images of any common kind, and masks however they are coded."""

import io
import struct
import threading
import warnings
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from slotmesh.readers import _images, _untrusted
from slotmesh.readers._images import Pixels
from slotmesh.readers.errors import BadRecord

ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
FORMATS = ("PNG", "JPEG", "WEBP", "BMP")
KINDS = "PNG, JPEG, WebP or BMP"
MOST_OBJECTS = 255
"""In an image; masks have one byte per pixel."""

_MOST_BYTES = 1 << 28
_MOST_PIXELS = 1 << 26
_ORIENTATION = 0x0112
# Pillow reports damage by any of these.
_DAMAGE = (OSError, ValueError, SyntaxError, EOFError, IndexError, KeyError, struct.error)
# Filters of warnings belong to the process, not to the thread.
_HEADERS = threading.Lock()


def load_photo(path: Path, least: int | None = None) -> Pixels:
    """Load an image as RGB, the way it is shown: uint8 ``(H, W, 3)``.

    It is turned as its EXIF orientation says; transparent pixels are laid over white; gray,
    palette, CMYK and 16-bit images are converted. Of an animation it is the first frame.

    Args:
        path: A PNG, JPEG, WebP or BMP file.
        least: A JPEG may be decoded at a smaller scale whose sides still have this many pixels,
            which is several times faster; None for the full one.

    Raises:
        BadRecord: If it cannot be read, is damaged, or has too many pixels.
    """
    data = _untrusted.read_file(path, most=_MOST_BYTES)
    try:
        with _opened(io.BytesIO(data), FORMATS) as image:
            if image.format == "PNG":
                # Loading skips the checksums of the pixels; verifying them consumes the image.
                image.verify()
        with _opened(io.BytesIO(data), FORMATS) as image:
            if least is not None:
                image.draft(None, (least, least))
            image.load()
            return np.asarray(to_rgb(ImageOps.exif_transpose(image)))
    except _DAMAGE as error:
        raise BadRecord(path, None, _reason(_what(data), error)) from error


def photo_size(path: Path, most: int = _MOST_PIXELS) -> tuple[int, int]:
    """Height and width of an image as it is shown, from its header alone.

    Raises:
        BadRecord: If it cannot be read, is damaged, or has more than ``most`` pixels.
    """
    try:
        with (
            _untrusted.open_file(path, most=_MOST_BYTES) as file,
            _opened(file, FORMATS, most) as image,
        ):
            turned = image.getexif().get(_ORIENTATION, 1) in (5, 6, 7, 8)
            return (image.width, image.height) if turned else (image.height, image.width)
    except BadRecord:
        raise
    except _DAMAGE as error:
        what = f"it is not a {KINDS} image, or damaged"
        raise BadRecord(path, None, _reason(what, error)) from error


def load_codes(path: Path) -> NDArray[np.int64]:
    """Load a mask as it is coded: int64 ``(H, W)``.

    Indices of a palette, levels of gray (8 or 16 bits), or colours as ``65536 R + 256 G + B``,
    without the alpha channel; of ``.npy`` files, the integers.

    Raises:
        BadRecord: If it is neither PNG nor ``.npy``, damaged, or has too many pixels.
    """
    if path.suffix.lower() == ".npy":
        return _load_npy(path)
    data = _untrusted.read_file(path, most=_MOST_BYTES)
    try:
        with _opened(io.BytesIO(data), ("PNG",)) as image:
            image.verify()
        with _opened(io.BytesIO(data), ("PNG",)) as image:
            image.load()
            if image.mode in ("RGB", "RGBA"):
                rgb = np.asarray(image.convert("RGB")).astype(np.int64)
                return rgb @ np.array([65536, 256, 1])
            plain = image.convert("L") if image.mode in ("1", "LA") else image
            return np.asarray(plain).astype(np.int64)
    except _DAMAGE as error:
        what = "it is not a PNG mask, or damaged"
        raise BadRecord(path, None, _reason(what, error)) from error


def to_labels(codes: NDArray[np.int64], path: Path) -> Pixels:
    """Number the codes of a mask: 0 stays the background, others are 1, 2, ... in their order.

    Raises:
        BadRecord: If there are more than 255 objects, as in an image that is no mask.
    """
    values, numbers = np.unique(codes, return_inverse=True)
    if codes.size and values[0] != 0:
        numbers, values = numbers + 1, np.concatenate([[0], values])
    if len(values) > MOST_OBJECTS + 1:
        n = len(values) - 1
        reason = f"it has {n} different values, expected a mask of at most {MOST_OBJECTS} objects"
        raise BadRecord(path, None, reason)
    return numbers.reshape(codes.shape).astype(np.uint8)


def to_square(pixels: Pixels, side: int, *, crop: bool) -> Pixels:
    """Make an image ``(H, W, 3)``, or a mask ``(H, W)``, a square of ``side`` pixels.

    Args:
        pixels: The image or mask.
        side: Width and height of the result.
        crop: Take the middle square; or squeeze the whole image.
    """
    if crop:
        pixels = _images.centre_crop(pixels, min(pixels.shape[:2]))
    if pixels.ndim == 2:
        return _images.resize_mask(pixels, (side, side))
    return _images.resize(pixels, (side, side), antialias=True)


def _opened(file: IO[bytes], formats: tuple[str, ...], most: int = _MOST_PIXELS) -> Image.Image:
    """Read the header of an image, and refuse one whose pixels would fill the memory."""
    with _HEADERS, warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            image = Image.open(file, formats=formats)
        except (Image.DecompressionBombWarning, Image.DecompressionBombError):
            raise _TooLargeError(f"it has more than {most:,} pixels. Shrink it") from None
    if image.width * image.height > most:
        size = f"{image.width:,} x {image.height:,}"
        raise _TooLargeError(f"it has {size} pixels, expected at most {most:,}. Shrink it")
    return image


class _TooLargeError(ValueError):
    """An image that is whole, but has too many pixels."""


def _reason(what: str, error: Exception) -> str:
    """What is wrong with a file; Pillow's words only where they say more."""
    if isinstance(error, _TooLargeError):
        return str(error)
    # Pillow names the object in memory that it could not identify.
    return what if isinstance(error, UnidentifiedImageError) else f"{what}: {error}"


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert an image of any mode; transparent pixels are laid over white."""
    if image.mode.startswith("I") or image.mode == "F":
        values = np.asarray(image).astype(np.float64)
        most = values.max(initial=0.0)
        if image.mode == "F":
            # From 0 to 1, as in arrays, or to 255.
            values = values * 255.0 if most <= 1 else values
        elif image.mode != "I" or most > 255:
            # 16 bits, as in PNG. Numbers of 32 bits may be pixels from 0 to 255.
            values = values / 257.0
        return Image.fromarray(values.round().clip(0, 255).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, image).convert("RGB")
    return image.convert("RGB")


def _load_npy(path: Path) -> NDArray[np.int64]:
    file = io.BytesIO(_untrusted.read_file(path, most=_MOST_BYTES))
    try:
        version = np.lib.format.read_magic(file)
        heads = {(1, 0): np.lib.format.read_array_header_1_0}
        heads[2, 0] = np.lib.format.read_array_header_2_0
        shape, by_column, dtype = heads[version](file)
        if dtype.kind not in "iub" or len(shape) != 2:
            raise ValueError(f"it holds {dtype} {shape}, expected integers (H, W)")
        # The file may claim any shape; numpy's own loader would allocate it first.
        found = np.frombuffer(file.read(), dtype)
        found = found.reshape(shape, order="F" if by_column else "C")
    except (OSError, ValueError, EOFError, KeyError) as error:
        raise BadRecord(path, None, f"it is not a mask in an .npy file: {error}") from error
    return found.astype(np.int64)


def _what(data: bytes) -> str:
    return "it is empty" if not data else f"it is not a {KINDS} image, or damaged"
