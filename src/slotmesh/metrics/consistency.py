"""Temporal consistency: how often objects keep their slots from frame to frame."""

from typing import Any

from torch import Tensor

from slotmesh.metrics._contingency import Masks, as_tensor
from slotmesh.metrics._mean import MeanOverImages
from slotmesh.metrics.matching import match
from slotmesh.ops import checks


def temporal_consistency(
    predicted: Masks,
    truth: Masks,
    present: Masks,
    *,
    n_slots: int,
    zero_overlap: bool = False,
) -> Tensor:
    """Share of objects that stay in the same slot in two consecutive frames.

    Objects are matched with slots in each frame separately, as for
    :func:`~slotmesh.metrics.fg_miou`. Objects count if they are visible in both frames; for longer
    videos, all pairs of consecutive frames are pooled.

    Row ``i`` must be the same object in every frame. In the authors' files it is not: they identify
    objects by colour, material and shape, which is equivalent, since no two objects of a video are
    alike.

    Args:
        predicted: Integers ``(..., T, H, W)``, the slot of each pixel.
        truth: Integers ``(..., T, H, W)``, 0 the background, ``i + 1`` object ``i``.
        present: ``(..., T, n_objects)``, True where an object is in view. Objects without a pixel
            in a frame do not count there.
        n_slots: Number of slots.
        zero_overlap: Whether an object counts as held by a slot that it is matched with, but shares
            no pixel with, as in the authors' code. The solver's choice among the free slots then
            affects the result.

    Returns:
        float64 ``(...)``, NaN if no object is visible in two consecutive frames.

    Example:
        >>> import torch
        >>> from slotmesh.metrics import temporal_consistency
        >>> truth = torch.tensor([[[0, 1, 1, 2]], [[1, 1, 2, 2]]])
        >>> predicted = torch.tensor([[[0, 1, 1, 2]], [[1, 1, 0, 0]]])
        >>> temporal_consistency(predicted, truth, torch.ones(2, 2).bool(), n_slots=3)
        tensor(0.5000, dtype=torch.float64)
    """
    op = "temporal_consistency"
    present = as_tensor(present)
    if not isinstance(present, Tensor) or present.ndim < 2 or present.shape[-2] < 2:
        got = tuple(present.shape) if isinstance(present, Tensor) else type(present).__name__
        raise ValueError(
            f"{op}: present is {got}, expected a tensor (..., T, n_objects) with at least two "
            "frames. Pass sample.present of a video."
        )
    found = match(op, predicted, truth, n_slots, present.shape[-1], present)
    held = found.slot >= 0
    if not zero_overlap:
        held = held & (found.iou > 0)
    shared = found.real[..., :-1, :] & found.real[..., 1:, :]
    held = held[..., :-1, :] & held[..., 1:, :]
    same = shared & held & (found.slot[..., :-1, :] == found.slot[..., 1:, :])
    return same.sum((-2, -1)).double() / shared.sum((-2, -1))


class TemporalConsistency(MeanOverImages):
    """Mean of :func:`temporal_consistency` over the videos of a dataset.

    Videos without an object in two consecutive frames are left out; ``n_undefined`` is their number
    after ``compute()``.

    Args:
        n_slots: Number of slots.
        zero_overlap: As in :func:`temporal_consistency`.
        **kwargs: Arguments of :class:`torchmetrics.Metric`.

    Example:
        >>> import torch
        >>> from slotmesh.metrics import TemporalConsistency
        >>> metric = TemporalConsistency(n_slots=3)
        >>> masks = torch.tensor([[[[0, 1, 1, 2]], [[1, 1, 2, 2]]]])
        >>> metric.update(masks, masks, torch.ones(1, 2, 2).bool())
        >>> metric.compute()
        tensor(1., dtype=torch.float64)
    """

    def __init__(self, n_slots: int, *, zero_overlap: bool = False, **kwargs: Any) -> None:
        super().__init__("tc_zero_overlap" if zero_overlap else "tc", **kwargs)
        self.n_slots = checks.as_count(type(self).__name__, "n_slots", n_slots, 1)
        self.zero_overlap = zero_overlap

    def per_image(self, predicted: Masks, truth: Masks, present: Masks) -> Tensor:
        """The value of each video, float64 ``(...)``; the state does not change."""
        return temporal_consistency(
            predicted, truth, present, n_slots=self.n_slots, zero_overlap=self.zero_overlap
        )

    def update(self, predicted: Masks, truth: Masks, present: Masks) -> None:
        """Add videos: integers ``(..., T, H, W)``, and what is in view ``(..., T, n_objects)``."""
        self.add(self.per_image(predicted, truth, present))
