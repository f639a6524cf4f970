"""Load images in common formats, and masks in any coding."""

import io
import struct
import threading
import warnings
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from PIL.TiffImagePlugin import TiffImageFile

from slotmesh.readers import _images, _untrusted
from slotmesh.readers._images import Pixels
from slotmesh.readers.errors import BadRecord

ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".gif")
OTHER_ENDINGS = (".heic", ".heif", ".avif", ".jxl", ".jp2", ".dng", ".cr2", ".nef", ".arw", ".svg")
"""Endings of images that cannot be read."""
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "TIFF", "GIF")
KINDS = "PNG, JPEG, WebP, BMP, TIFF or GIF"
MOST_OBJECTS = 255
"""Most objects in an image: masks have one byte per pixel."""

_MOST_BYTES = 1 << 28
_MOST_PIXELS = 1 << 26
_ORIENTATION = 0x0112
_WIDTH, _HEIGHT = 256, 257
# Bit depths of cameras, whose TIFF files often use more bits.
_DEPTHS = (8, 10, 12, 14, 16, 32)
# Pillow reports damage by any of these.
_DAMAGE = (OSError, ValueError, SyntaxError, EOFError, IndexError, KeyError, struct.error)
# Warning filters belong to the process, not to the thread.
_HEADERS = threading.Lock()


def load_photo(path: Path, least: int | None = None) -> Pixels:
    """Load an image as RGB, the way it is shown: uint8 ``(H, W, 3)``.

    It is rotated according to its EXIF orientation, transparent pixels are laid over white, and
    grey, palette, CMYK and 16-bit images are converted. If there are several frames or pages, the
    first is used.

    Args:
        path: A PNG, JPEG, WebP, BMP, TIFF or GIF file.
        least: A JPEG may be decoded at a smaller scale whose sides still have this many pixels,
            which is several times faster; None for the full size.

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
            return np.asarray(to_rgb(image))
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
            width, height = image.size
            if isinstance(image, TiffImageFile):
                # Some versions of Pillow rotate the size of these, others only the pixels.
                width, height = image.tag_v2[_WIDTH], image.tag_v2[_HEIGHT]
            turned = image.getexif().get(_ORIENTATION, 1) in (5, 6, 7, 8)
            return (width, height) if turned else (height, width)
    except BadRecord:
        raise
    except _DAMAGE as error:
        with _untrusted.open_file(path) as file:
            what = _what(file.read(4))
        raise BadRecord(path, None, _reason(what, error)) from error


def load_codes(path: Path) -> NDArray[np.int64]:
    """Load a mask as it is coded: int64 ``(H, W)``.

    Indices of a palette, grey levels (8 or 16 bits), or colours as ``65536 R + 256 G + B``, without
    the alpha channel; of ``.npy`` files, the integers.

    Raises:
        BadRecord: If it is neither PNG nor ``.npy``, is damaged, or has too many pixels.
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
    """Number the codes of a mask: 0 stays the background, the others become 1, 2, ... in order.

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
    """Convert an image ``(H, W, 3)`` or a mask ``(H, W)`` to a square of ``side`` pixels.

    Args:
        pixels: The image or mask.
        side: Width and height of the result.
        crop: Whether to keep the central square; otherwise, the whole image is squeezed.
    """
    if crop:
        pixels = _images.centre_crop(pixels, min(pixels.shape[:2]))
    if pixels.ndim == 2:
        return _images.resize_mask(pixels, (side, side))
    return _images.resize(pixels, (side, side), antialias=True)


def _opened(file: IO[bytes], formats: tuple[str, ...], most: int = _MOST_PIXELS) -> Image.Image:
    """Read the header of an image, and refuse one whose pixels would fill the memory."""
    with _HEADERS, warnings.catch_warnings():
        # Damage to a TIFF file raises an exception or is harmless, so warnings are not needed.
        warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")
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
    """An intact image with too many pixels."""


def _reason(what: str, error: Exception) -> str:
    """Describe what is wrong with a file, with Pillow's message only if it says more."""
    if isinstance(error, _TooLargeError):
        return str(error)
    # Pillow names the object in memory that it could not identify.
    return what if isinstance(error, UnidentifiedImageError) else f"{what}: {error}"


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert an image of any mode, and rotate it according to its EXIF orientation.

    Transparent pixels are laid over white. In images with more than 8 bits, 0 is black. White is
    65535 or, in a TIFF file, the largest value of the smallest bit depth (8, 10, 12, 14 or 16) that
    covers all of its pixels.
    """
    camera = image.format == "TIFF"
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I") or image.mode == "F":
        values = np.asarray(image).astype(np.float64)
        most = values.max(initial=0.0, where=np.isfinite(values))
        values = values * 255.0 / _white(image.mode, most, camera=camera)
        values = np.nan_to_num(values.round().clip(0, 255))
        return Image.fromarray(values.astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, (255, 255, 255, 255))
        return Image.alpha_composite(white, image).convert("RGB")
    return image.convert("RGB")


def _white(mode: str, most: float, *, camera: bool) -> float:
    """The value of white in an image with values up to ``most``."""
    if mode == "F" and most <= 1:
        # As for arrays.
        return 1.0
    if camera:
        return next((2.0**bits - 1 for bits in _DEPTHS if most < 2**bits), most)
    # Numbers of 32 bits may be pixels from 0 to 255.
    return 255.0 if mode == "F" or (mode == "I" and most <= 255) else 65535.0


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
    """Describe what is wrong with a file that begins with these bytes."""
    if not data:
        return "it is empty"
    if data[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"):
        return "it is a kind of TIFF that cannot be read, or damaged. Save it as PNG"
    return f"it is not a {KINDS} image, or damaged"
