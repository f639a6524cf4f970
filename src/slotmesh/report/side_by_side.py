"""Compare what several models find in the same scenes, in the colours of the true objects."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from PIL import Image
from torch import Tensor

from slotmesh.ops import assign
from slotmesh.report.drawing import Colour, Pixels, masked, pixels
from slotmesh.report.mosaic import Line, Mosaic, frame_colour, joined, tile
from slotmesh.report.sheet import colour_mask


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


def side_by_side(scene: SegmentedScene) -> Mosaic:
    """Image and truth as tiles, and a row per model: its segments, then the mask of every slot.

    Segments have the colours of the objects they match. Masks are multiplied by the image and
    framed in the colour of their segment, those of objects first.

    Example:
        >>> import torch
        >>> from slotmesh.report.side_by_side import SegmentedScene, side_by_side
        >>> image, truth = torch.zeros(3, 8, 8, dtype=torch.uint8), torch.eye(8, dtype=torch.int64)
        >>> masks = torch.rand(3, 8, 8).softmax(0)
        >>> found = side_by_side(SegmentedScene(image, truth, {"SA": masks}, {"SA": "of nothing"}))
        >>> found.lines, len(found.columns)
        ([Line(name='SA', note='of nothing')], 4)
    """
    shown = pixels(scene.image)
    lines: list[list[Pixels]] = []
    frames: list[list[Colour | None]] = []
    for masks in scene.masks.values():
        labels = label_slots(masks, scene.truth)
        segments = torch.tensor(labels)[masks.argmax(0).cpu()]
        pictures = masked(shown, masks)
        order = sorted(range(len(masks)), key=lambda slot: (labels[slot] == 0, labels[slot]))
        lines.append([colour_mask(segments), *(pictures[slot] for slot in order)])
        frames.append([None, *(frame_colour(labels[slot]) for slot in order)])
    m = len(lines[0]) - 1
    return Mosaic(
        [
            tile("image", Image.fromarray(shown)),
            tile("truth", Image.fromarray(colour_mask(scene.truth))),
        ],
        [Line(name, scene.notes[name]) for name in scene.masks],
        [("segments", ""), *(("", "") for _ in range(m))],
        tile("", joined(lines, frames)),
    )
