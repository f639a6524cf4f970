"""Which slot holds which object: the one-to-one match with the highest overlap."""

from typing import NamedTuple

import torch
from torch import Tensor

from slotmesh.metrics._contingency import Masks, as_tensor, contingency
from slotmesh.ops import assign, checks


class Matching(NamedTuple):
    """Objects and the slots that were matched with them."""

    slot: Tensor
    """int64 ``(..., n_objects)``: the slot of each object, -1 for none."""
    iou: Tensor
    """float64 ``(..., n_objects)``: intersection over union with that slot, 0 for none."""
    real: Tensor
    """bool ``(..., n_objects)``: objects that count: those with at least one visible pixel."""


def match_objects(
    predicted: Masks,
    truth: Masks,
    *,
    n_slots: int,
    n_objects: int,
    present: Masks | None = None,
) -> Matching:
    """Match objects with slots one to one, maximising the sum of intersections over unions.

    An object may be matched with a slot with which it shares no pixel: its overlap is then 0, and
    the choice among the free slots is arbitrary. With more objects than slots, some get none.

    Args:
        predicted: Integers ``(..., H, W)``, the slot of each pixel (argmax of the slots' masks).
        truth: Integers ``(..., H, W)``, 0 the background, ``i + 1`` object ``i``.
        n_slots: Number of slots.
        n_objects: Largest number of objects in an image.
        present: ``(..., n_objects)``, True for objects that count; default all. Objects without a
            pixel never count.

    Returns:
        A :class:`Matching`.

    Example:
        >>> import torch
        >>> from slotmesh.metrics import match_objects
        >>> truth = torch.tensor([[0, 0, 1, 1, 2, 2]])
        >>> match = match_objects(
        ...     torch.tensor([[0, 0, 3, 0, 1, 1]]), truth, n_slots=4, n_objects=3
        ... )
        >>> match.slot, match.iou
        (tensor([ 3,  1, -1]), tensor([0.5000, 1.0000, 0.0000], dtype=torch.float64))
    """
    return match("match_objects", predicted, truth, n_slots, n_objects, present)


def match(
    op: str,
    predicted: Masks,
    truth: Masks,
    n_slots: int,
    n_objects: int,
    present: Masks | None,
) -> Matching:
    """:func:`match_objects`, with the name of the metric in its errors."""
    predicted, truth, present = as_tensor(predicted), as_tensor(truth), as_tensor(present)
    table = contingency(op, predicted, truth, n_slots=n_slots, n_objects=n_objects).mT
    shared, area = table[..., 1:, :], table[..., 1:, :].sum(-1)
    real = area > 0
    if present is not None:
        checks.check_vector(op, "present", present, n_objects, truth, of="truth", mask=True)
        if present.shape[:-1] != truth.shape[:-2]:
            raise ValueError(
                f"{op}: present has shape {tuple(present.shape)}, expected "
                f"{(*truth.shape[:-2], n_objects)} to fit truth of shape {tuple(truth.shape)}."
            )
        real = real & present
    union = area.unsqueeze(-1) + table.sum(-2).unsqueeze(-2) - shared
    iou = shared.double() / union.clamp(min=1)
    # Less than any real object, so that padding takes no slot from one.
    slot = assign(torch.where(real.unsqueeze(-1), iou, -1.0), maximize=True)
    slot = torch.where(real, slot, -1)
    held = iou.gather(-1, slot.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return Matching(slot, torch.where(slot >= 0, held, 0.0), real)
