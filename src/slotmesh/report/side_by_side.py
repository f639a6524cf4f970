"""Compare what several models find in the same scenes, in the colours of the true objects."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from PIL import Image, ImageDraw
from torch import Tensor

from slotmesh.ops import assign
from slotmesh.palette import MASK_COLOURS
from slotmesh.report.drawing import INK, MARGIN, PICTURE, length, masked, pixels, rgb, write, zoomed
from slotmesh.report.figures import COLOURS
from slotmesh.report.sheet import colour_mask

_GAP = 8
_FRAME = 3
_CAPTION = 21


@dataclass(frozen=True)
class SegmentedScene:
    """One image, and the objects that models found in it."""

    image: Tensor
    """uint8 ``(3, H, W)``."""
    truth: Tensor
    """Integers ``(H, W)``: 0 for the background, then objects."""
    masks: Mapping[str, Tensor]
    """The slots' masks ``(m, H, W)`` of each model, all with as many slots."""
    notes: Mapping[str, str]
    """A few words about each model."""


def label_slots(masks: Tensor, truth: Tensor) -> list[int]:
    """Match each slot with a label of the truth; slots without a match get new labels.

    Slots and labels are matched one to one, maximising the sum of intersections over unions; each
    pixel belongs to the slot with the largest mask there.

    Args:
        masks: ``(m, H, W)``.
        truth: Integers ``(H, W)``: 0 for the background, then objects.

    Example:
        >>> import torch
        >>> from slotmesh.report.side_by_side import label_slots
        >>> truth = torch.tensor([[0, 1, 2, 2]])
        >>> seen = torch.tensor([[2, 3, 1, 1]])
        >>> label_slots((seen == torch.arange(4)[:, None, None]).float(), truth)
        [3, 2, 0, 1]
    """
    m, n = len(masks), int(truth.max()) + 1
    of_slot = masks.argmax(0) == torch.arange(m, device=masks.device)[:, None, None]
    of_label = truth == torch.arange(n, device=truth.device)[:, None, None]
    pairs = (of_slot.unsqueeze(1), of_label.unsqueeze(0))
    both = (pairs[0] & pairs[1]).sum((-2, -1))
    either = (pairs[0] | pairs[1]).sum((-2, -1)).clamp(min=1)
    labels: list[int] = assign(both / either, maximize=True).tolist()
    spare = iter(range(n, n + m))
    return [next(spare) if label < 0 else label for label in labels]


def side_by_side(scenes: Sequence[SegmentedScene]) -> Image.Image:
    """Draw scenes below each other: image and truth, and each model's segments and masks.

    Segments have the colours of the objects they match. Masks are multiplied by the image and
    framed in the colour of their segment.

    Example:
        >>> import torch
        >>> from slotmesh.report.side_by_side import SegmentedScene, side_by_side
        >>> image, truth = torch.zeros(3, 8, 8, dtype=torch.uint8), torch.eye(8, dtype=torch.int64)
        >>> masks = torch.rand(3, 8, 8).softmax(0)
        >>> side_by_side([SegmentedScene(image, truth, {"SA": masks}, {"SA": "of nothing"})]).mode
        'RGB'
    """
    first = next(iter(scenes[0].masks.values()))
    m, height, width = first.shape
    zoom = max(1, PICTURE // width)
    across, down = zoom * width + _GAP, zoom * height + _GAP
    lines = max(2, len(scenes[0].masks))
    tall = lines * (_CAPTION + down) + 2 * _GAP
    words = [f"{name}  {scene.notes[name]}" for scene in scenes for name in scene.masks]
    inner = max((m + 2) * across, across + max(map(length, words)))
    sheet = Image.new("RGB", (2 * MARGIN + inner, len(scenes) * tall - _GAP), "white")
    pen = ImageDraw.Draw(sheet)
    for i, scene in enumerate(scenes):
        top = MARGIN + i * tall
        shown = pixels(scene.image)
        left = (("image", shown), ("truth", colour_mask(scene.truth)))
        for k, (caption, picture) in enumerate(left):
            y = top + k * (_CAPTION + down)
            write(pen, (MARGIN, y), caption)
            sheet.paste(zoomed(picture, zoom), (MARGIN, y + _CAPTION))
        for k, (name, masks) in enumerate(scene.masks.items()):
            x, y = MARGIN + across, top + k * (_CAPTION + down)
            write(pen, (x, y), name, rgb(COLOURS[name]) if name in COLOURS else INK, bold=True)
            write(pen, (x + across, y), scene.notes[name])
            labels = label_slots(masks, scene.truth)
            segments = torch.tensor(labels)[masks.argmax(0).cpu()]
            sheet.paste(zoomed(colour_mask(segments), zoom), (x, y + _CAPTION))
            pictures = masked(shown, masks)
            for slot in sorted(range(m), key=lambda slot: (labels[slot] == 0, labels[slot])):
                x += across
                at = (x, y + _CAPTION)
                edge = (at[0] + zoom * width + _FRAME - 1, at[1] + zoom * height + _FRAME - 1)
                frame = ((at[0] - _FRAME, at[1] - _FRAME), edge)
                pen.rectangle(frame, fill=rgb(_mask_colour(labels[slot])))
                sheet.paste(zoomed(pictures[slot], zoom), at)
    return sheet


def _mask_colour(label: int) -> str:
    return MASK_COLOURS[0] if label == 0 else MASK_COLOURS[1 + (label - 1) % 10]
