"""Images for the page: scenes of worlds, uploads, and how they get into HTML."""

import base64
import hashlib
import io
import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from slotmesh.readers import BadRecord, photos
from slotmesh.worlds import Sample, make_world

MOST_BYTES = 10_000_000
"""Largest size of an uploaded file."""
MOST_PIXELS = 16_000_000
"""Largest number of pixels of an uploaded image."""
MOST_SCENE = 999_999
"""Number of the last scene that can be requested."""
WORLDS = ("multi-dsprites", "clevr", "clevrtex")
"""Worlds of single images."""

# Far from the seeds of training, validation and test, and of the demo.
_SEED = 2_000
_SIZES = {"multi-dsprites": 64}
_SIZE = 128


@dataclass(frozen=True)
class ShownImage:
    """An image, and what is known about it."""

    name: str
    """A short description."""
    pixels: Tensor
    """uint8 ``(3, H, W)``."""
    sample: Sample | None = None
    """A batch of one with its true objects, if it comes from a world."""

    @property
    def key(self) -> str:
        """A string that differs between images."""
        shape = repr(tuple(self.pixels.shape)).encode()
        return hashlib.sha256(shape + self.pixels.numpy().tobytes()).hexdigest()

    @property
    def truth(self) -> Tensor | None:
        """True mask ``(H, W)``, int64."""
        return None if self.sample is None else self.sample.mask[0].to(torch.int64)


@lru_cache(maxsize=32)
def world_scene(world: str, number: int, size: int | None = None) -> ShownImage:
    """A scene of a world that no model was trained or tested on.

    Args:
        world: One of :data:`WORLDS`.
        number: Number of the scene, from 0.
        size: Height and width in pixels; default 64 for Multi-dSprites and 128 for the others.

    Raises:
        ValueError: If there is no such world or scene.

    Example:
        >>> from slotmesh.app.pictures import world_scene
        >>> scene = world_scene("multi-dsprites", 7)
        >>> scene.name, scene.pixels.shape
        ('multi-dsprites, scene 7', torch.Size([3, 64, 64]))
    """
    if world not in WORLDS:
        raise ValueError(f"There is no world {world!r} here, expected one of {', '.join(WORLDS)}.")
    if not 0 <= number <= MOST_SCENE:
        raise ValueError(f"The scene is {number}, expected 0 to {MOST_SCENE:,}.")
    size = _SIZES.get(world, _SIZE) if size is None else size
    made = make_world(world, seed=_SEED, size=size).sample([number])
    assert isinstance(made, Sample)
    return ShownImage(f"{world}, scene {number}", made.image[0], made)


def load_upload(path: Path | str) -> ShownImage:
    """Load an uploaded image.

    Raises:
        ValueError: If it is too large or not an image; says in one line what to do.

    Example:
        >>> from pathlib import Path
        >>> from slotmesh.app.pictures import load_upload
        >>> _ = Path("note.png").write_text("no image")
        >>> load_upload("note.png")
        Traceback (most recent call last):
        ...
        ValueError: note.png cannot be used: it is not a PNG, JPEG, WebP, BMP, TIFF or GIF image...
        >>> Path("note.png").unlink()
    """
    path = Path(path)
    n_bytes = path.stat().st_size
    if n_bytes > MOST_BYTES:
        raise ValueError(
            # Rounded up: 10.0 MB would seem to be within the limit.
            f"{path.name} cannot be used: it has {math.ceil(n_bytes / 1e5) / 10} MB, expected at "
            f"most {MOST_BYTES / 1e6:.0f} MB. Shrink it."
        )
    try:
        photos.photo_size(path, MOST_PIXELS)
        pixels = photos.load_photo(path)
    except BadRecord as error:
        reason = error.reason.rstrip(".")
        raise ValueError(f"{path.name} cannot be used: {reason}.") from error
    return ShownImage(path.name, torch.from_numpy(np.array(pixels)).movedim(-1, 0).contiguous())


def to_square(pixels: Tensor, size: tuple[int, int], *, crop: bool) -> Tensor:
    """Fit an image ``(3, H, W)`` to the size of a model, ``(3, *size)``, like ``model.segment``."""
    height, width = pixels.shape[-2:]
    if crop:
        side = min(height, width)
        top, left = (height - side) // 2, (width - side) // 2
        pixels = pixels[:, top : top + side, left : left + side]
    if tuple(pixels.shape[-2:]) == size:
        return pixels
    shrunk = as_image(pixels).resize((size[1], size[0]), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(shrunk)).movedim(-1, 0)


def as_image(pixels: Tensor) -> Image.Image:
    """uint8 ``(3, H, W)`` as a Pillow image."""
    return Image.fromarray(np.ascontiguousarray(pixels.movedim(0, -1).numpy()))


def data_uri(image: Image.Image) -> str:
    """A PNG for the ``src`` of an ``<img>``."""
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", compress_level=1)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
