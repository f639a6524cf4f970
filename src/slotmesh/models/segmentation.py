"""Segment images of any size and kind with a trained model, and show what was found."""

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from slotmesh.models.feature_colours import feature_colours
from slotmesh.models.merging import check_tolerance, merged, same_picture
from slotmesh.palette import slot_colour
from slotmesh.readers import photos

Square = Literal["crop", "squeeze"]
_SIDE = 192
_GAP = 4
_OVERLAY = 0.5


@dataclass(frozen=True)
class Segmentation:
    """The segments of an image, at the size of the image; displayed as a picture in a notebook.

    For a video, all tensors have a leading dimension of frames.
    """

    image: Tensor
    """uint8 ``(3, H, W)``: the image, or its central square."""
    masks: Tensor
    """float32 ``(m, H, W)``: the share of each slot in each pixel; sums to 1 over slots."""
    slots: Tensor
    """``(m, slot_dim)``."""
    attention: Tensor
    """``(m, rows, columns)``: over the cells of the encoder's grid."""
    reconstruction: Tensor
    """uint8 ``(3, h, w)``, at the resolution of the model; for a model that reconstructs features,
    their principal components, with one pixel per patch."""

    @property
    def labels(self) -> Tensor:
        """int64 ``(H, W)``: the slot with the largest mask at each pixel, from 0."""
        # On a CPU, several times as fast as argmax over a dimension that is not the last.
        return self.masks.max(-3).indices

    def overlay(self) -> Image.Image:
        """The image with every pixel tinted in the colour of its slot; frames side by side."""
        return _beside([_tinted(i, n) for i, n in zip(*self._frames(), strict=True)])

    def indexed(self) -> list[Image.Image]:
        """One palette image per frame, whose indices are the labels, as mask files are.

        Raises:
            ValueError: If there are labels above 255, which a palette does not have.
        """
        return [_indexed(labels) for labels in self._frames()[1]]

    def picture(self) -> Image.Image:
        """The image, the overlay, and the image multiplied by each mask; one row per frame.

        Masks are scaled so that their brightest pixel is fully visible, by a factor of at most m.
        """
        rows: list[Image.Image] = []
        masks = self.masks if self.masks.ndim == 4 else self.masks[None]
        for image, labels, shares in zip(*self._frames(), masks, strict=True):
            height, width = image.shape[-2:]
            scale = _SIDE / max(height, width)
            size = (max(1, round(scale * width)), max(1, round(scale * height)))
            shown = [_to_pil(image), _tinted(image, labels)]
            seen, lit = _shrunk(image, size), visible(_shrunk(shares, size))
            shown += [_to_pil((seen * share).round().to(torch.uint8)) for share in lit]
            rows.append(_beside([one.resize(size, _kernel(one, size)) for one in shown]))
        return _below(rows)

    def __repr__(self) -> str:
        shapes = (f"{name} {tuple(value.shape)}" for name, value in vars(self).items())
        return f"Segmentation({', '.join(shapes)})"

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.picture().save(buffer, format="PNG")
        return buffer.getvalue()

    def _frames(self) -> tuple[Tensor, Tensor]:
        if self.image.ndim == 4:
            return self.image, self.labels
        return self.image[None], self.labels[None]


def segment_image(
    model: Any,
    image: object,
    *,
    seed: int,
    square: Square,
    n_slots: int | None,
    merge: float | None = None,
) -> Segmentation:
    """:meth:`ObjectDiscovery.segment`."""
    if merge is not None:
        check_tolerance("segment: merge", merge)
    pixels = read_image("segment", image)
    shown, small = _squared(pixels[None], model, square)
    out = _run(model, small, seed, n_slots)
    found = Segmentation(
        image=shown[0],
        masks=_enlarged(out.masks, shown)[0],
        slots=out.slots[0],
        attention=out.attention[0].unflatten(-1, model.encoder.out_grid),
        reconstruction=_shown(out, model.encoder.out_grid),
    )
    if merge is None:
        return found
    return _merged(found, out.masks[0], same_picture(out.rgb[0], out.masks[0], merge))


def segment_video(
    model: Any,
    video: object,
    *,
    seed: int,
    square: Square,
    n_slots: int | None,
    merge: float | None = None,
) -> Segmentation:
    """:meth:`VideoObjectDiscovery.segment`."""
    if merge is not None:
        check_tolerance("segment: merge", merge)
    whole = isinstance(video, Tensor | np.ndarray)
    if (not whole and not isinstance(video, Sequence)) or isinstance(video, str):
        raise ValueError(
            f"segment: the video is a {type(video).__name__}, expected a list of images, or a "
            "tensor (T, 3, H, W)."
        )
    frames = [read_image("segment", frame) for frame in video]  # pyright: ignore
    if not frames or len({frame.shape for frame in frames}) > 1:
        sizes = " and ".join(sorted({f"{f.shape[2]} x {f.shape[1]}" for f in frames})[:2])
        raise ValueError(
            f"segment: the video has frames of {sizes or 'no'} pixels, expected at least one, all "
            "of one size."
        )
    shown, small = _squared(torch.stack(frames), model, square)
    out = _run(model, small[None], seed, n_slots)
    found = Segmentation(
        image=shown,
        masks=_enlarged(out.masks[0], shown),
        slots=out.slots[0],
        attention=out.attention[0].unflatten(-1, model.encoder.out_grid),
        reconstruction=to_bytes(out.reconstruction[0]),
    )
    if merge is None:
        return found
    # A slot stands for one thing in all frames, so they are treated as one tall picture.
    rgb = out.rgb[0].movedim(0, -3).flatten(-3, -2)
    masks = out.masks[0].movedim(0, -3).flatten(-3, -2)
    return _merged(found, out.masks[0], same_picture(rgb, masks, merge))


def _merged(found: Segmentation, masks: Tensor, group: Tensor) -> Segmentation:
    """A segmentation with one slot per group: the largest one, with the group's total mask."""
    mass = masks.mean((-2, -1))
    mass = mass if mass.ndim == 1 else mass.mean(0)
    leads = [
        max((k for k in range(len(group)) if group[k] == g), key=lambda k: float(mass[k]))
        for g in range(int(group.max()) + 1)
    ]
    return replace(
        found,
        masks=merged(found.masks, group),
        attention=merged(found.attention, group),
        slots=found.slots[..., leads, :],
    )


def visible(masks: Tensor) -> Tensor:
    """Scale masks ``(m, H, W)`` to a maximum of 1, by a factor of at most m."""
    values = masks.detach().float()
    return values / values.amax((-2, -1), keepdim=True).clamp(min=1 / len(values))


def read_image(op: str, image: object) -> Tensor:
    """Convert an image of any kind to uint8 ``(3, H, W)``.

    Args:
        op: Name of the caller, for error messages.
        image: A path; a Pillow image; a tensor ``(3, H, W)``, or an array ``(H, W, 3)`` or
            ``(H, W)``, of uint8 or of floats from 0 to 1.

    Raises:
        ValueError: If it is anything else.
    """
    if isinstance(image, str | Path):
        return _first(photos.load_photo(Path(image)))
    if isinstance(image, Image.Image):
        return _first(np.asarray(photos.to_rgb(image)))
    if isinstance(image, np.ndarray):
        pixels = torch.from_numpy(np.array(image))
        pixels = pixels[..., None] if pixels.ndim == 2 else pixels
        pixels = pixels.movedim(-1, 0) if pixels.ndim == 3 else pixels
        expected = "(H, W, 3) or (H, W)"
    elif isinstance(image, Tensor):
        pixels, expected = image.detach().cpu(), "(3, H, W)"
    else:
        raise ValueError(
            f"{op}: the image is a {type(image).__name__}, expected a path, a Pillow image, an "
            "array or a tensor."
        )
    if pixels.ndim != 3 or pixels.shape[0] not in (1, 3) or 0 in pixels.shape:
        raise ValueError(
            f"{op}: the image has shape {tuple(image.shape)}, expected {expected}. "
            f"{_shape_fix(image)}"
        )
    pixels = pixels.expand(3, -1, -1)
    if pixels.dtype == torch.uint8:
        return pixels
    # torch has no minimum of unsigned integers of more than 8 bits.
    numbers = pixels if pixels.is_floating_point() else pixels.long()
    low, high = (float(x) for x in numbers.aminmax())
    if not pixels.is_floating_point() or not (low >= -0.01 and high <= 1.01):
        raise ValueError(
            f"{op}: the image is {pixels.dtype} with values from {low:.4g} to {high:.4g}, expected "
            "uint8, or floats from 0 to 1. Pass pixels from 0 to 255 as uint8, and those from -1 "
            "to 1 as (image + 1) / 2."
        )
    return (255 * pixels).round().clamp(0, 255).to(torch.uint8)


def _shape_fix(image: Tensor | np.ndarray) -> str:
    """How to give an image the right shape."""
    if image.ndim == 3 and isinstance(image, Tensor) and image.shape[-1] in (1, 3):
        return "Channels come first in a tensor: use image.movedim(-1, -3)."
    if image.ndim == 3 and isinstance(image, np.ndarray) and image.shape[0] in (1, 3):
        return "Channels come last in an array: use np.moveaxis(image, 0, -1)."
    if image.ndim == 3:
        return "Keep three channels, or one."
    return "Pass one image at a time."


@torch.no_grad()
def _run(model: Any, image: Tensor, seed: int, n_slots: int | None) -> Any:
    """The model's output on the CPU, in evaluation mode."""
    modes = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        place = next(model.parameters()).device
        out = model(image.to(place), seed=seed, n_slots=n_slots)
    finally:
        # Submodules that the caller put in evaluation mode stay in it.
        for part, training in modes:
            part.training = training
    parts = ("reconstruction", "rgb", "masks", "slots", "attention")
    return type(out)._make(
        value.float().cpu() if name in parts else value
        for name, value in zip(out._fields, out, strict=True)
    )


def _squared(frames: Tensor, model: Any, square: Square) -> tuple[Tensor, Tensor]:
    """Frames ``(T, 3, H, W)`` as they are shown, and as the model gets them."""
    if square not in ("crop", "squeeze"):
        raise ValueError(f"segment: square is {square!r}, expected 'crop' or 'squeeze'.")
    height, width = frames.shape[-2:]
    if square == "crop":
        side = min(height, width)
        top, left = (height - side) // 2, (width - side) // 2
        frames = frames[..., top : top + side, left : left + side]
    rows, columns = model.encoder.resolution
    small = [
        np.asarray(_to_pil(frame).resize((columns, rows), Image.Resampling.BILINEAR))
        for frame in frames
    ]
    return frames, torch.stack([_first(one) for one in small])


def _enlarged(masks: Tensor, frames: Tensor) -> Tensor:
    """Masks ``(T, m, h, w)`` at the size of the frames; they still sum to 1."""
    size = tuple(frames.shape[-2:])
    return F.interpolate(masks, size=size, mode="bilinear", align_corners=False)


def _shrunk(planes: Tensor, size: tuple[int, int]) -> Tensor:
    """Shrink planes ``(k, H, W)`` to at most this width and height."""
    if planes.shape[-1] <= size[0]:
        return planes
    return F.interpolate(planes[None], size=size[::-1], mode="bilinear", antialias=True)[0]


def _first(pixels: Any) -> Tensor:
    """``(H, W, 3)`` with the channels first."""
    return torch.from_numpy(np.array(pixels)).movedim(-1, 0)


def _shown(out: Any, grid: tuple[int, int]) -> Tensor:
    """The reconstruction of one image; for features, a picture of their principal components."""
    if out.reconstruction.ndim == 4:
        return to_bytes(out.reconstruction[0])
    return feature_colours(out.features[0], out.reconstruction[0], grid)[1]


def to_bytes(unit: Tensor) -> Tensor:
    """Pixels from -1 to 1, which models reconstruct, as uint8."""
    return ((unit + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)


def _to_pil(image: Tensor) -> Image.Image:
    return Image.fromarray(np.ascontiguousarray(image.movedim(0, -1).numpy()))


def _tinted(image: Tensor, labels: Tensor) -> Image.Image:
    colours = [slot_colour(k) for k in range(int(labels.max()) + 1)]
    tint = torch.tensor(colours, dtype=torch.uint8)[labels]
    return Image.blend(_to_pil(image), Image.fromarray(tint.numpy()), _OVERLAY)


def _indexed(labels: Tensor) -> Image.Image:
    if int(labels.max()) > 255:
        raise ValueError(
            f"indexed: there are labels up to {int(labels.max())}, expected at most 255, which is "
            "all that a palette image has. Save the labels with numpy.save."
        )
    found = Image.fromarray(labels.to(torch.uint8).numpy())
    found.putpalette([value for slot in range(256) for value in slot_colour(slot)])
    return found


def _kernel(image: Image.Image, size: tuple[int, int]) -> Image.Resampling:
    """Small images are shown pixel by pixel."""
    return Image.Resampling.NEAREST if image.width < size[0] else Image.Resampling.BILINEAR


def _beside(images: list[Image.Image]) -> Image.Image:
    width = sum(one.width for one in images) + _GAP * (len(images) - 1)
    sheet = Image.new("RGB", (width, max(one.height for one in images)), "white")
    x = 0
    for one in images:
        sheet.paste(one, (x, 0))
        x += one.width + _GAP
    return sheet


def _below(images: list[Image.Image]) -> Image.Image:
    height = sum(one.height for one in images) + _GAP * (len(images) - 1)
    sheet = Image.new("RGB", (max(one.width for one in images), height), "white")
    y = 0
    for one in images:
        sheet.paste(one, (0, y))
        y += one.height + _GAP
    return sheet
