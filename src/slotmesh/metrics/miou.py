"""Foreground mean intersection over union."""

from typing import Any, Literal, overload

from torch import Tensor

from slotmesh.metrics._contingency import Masks
from slotmesh.metrics._mean import MeanOverImages
from slotmesh.metrics.matching import Matching, match
from slotmesh.ops import checks


@overload
def fg_miou(
    predicted: Masks,
    truth: Masks,
    *,
    n_slots: int,
    n_objects: int,
    present: Masks | None = None,
    return_matching: Literal[False] = False,
) -> Tensor: ...
@overload
def fg_miou(
    predicted: Masks,
    truth: Masks,
    *,
    n_slots: int,
    n_objects: int,
    present: Masks | None = None,
    return_matching: Literal[True],
) -> tuple[Tensor, Matching]: ...
def fg_miou(
    predicted: Masks,
    truth: Masks,
    *,
    n_slots: int,
    n_objects: int,
    present: Masks | None = None,
    return_matching: bool = False,
) -> Tensor | tuple[Tensor, Matching]:
    """Mean intersection over union of objects and the slots matched with them.

    Slots and objects are matched one to one so that the mean is maximal. All pixels of a slot
    count, including those in the background. An object without a slot counts as 0.

    Args:
        predicted: Integers ``(..., H, W)``, the slot of each pixel (argmax of the slots' masks).
        truth: Integers ``(..., H, W)``, 0 the background, ``i + 1`` object ``i``.
        n_slots: Number of slots.
        n_objects: Largest number of objects in an image; may be more than slots.
        present: ``(..., n_objects)``, True for objects that count; default all. Objects without a
            pixel never count.
        return_matching: Also return the :class:`Matching`.

    Returns:
        float64 ``(...)``, NaN for an image without objects.

    Example:
        >>> import torch
        >>> from slotmesh.metrics import fg_miou
        >>> truth = torch.tensor([[0, 0, 1, 1, 2, 2]])
        >>> fg_miou(torch.tensor([[0, 0, 3, 0, 1, 1]]), truth, n_slots=4, n_objects=2)
        tensor(0.7500, dtype=torch.float64)
    """
    matching = match("fg_miou", predicted, truth, n_slots, n_objects, present)
    mean = matching.iou.sum(-1) / matching.real.sum(-1)
    return (mean, matching) if return_matching else mean


class ForegroundMIoU(MeanOverImages):
    """Mean of :func:`fg_miou` over the images (or frames) of a dataset.

    Images without objects are left out; ``n_undefined`` is their number after ``compute()``.

    Args:
        n_slots: Number of slots.
        n_objects: Largest number of objects in an image.
        **kwargs: Arguments of :class:`torchmetrics.Metric`.

    Example:
        >>> import torch
        >>> from slotmesh.metrics import ForegroundMIoU
        >>> metric = ForegroundMIoU(n_slots=4, n_objects=2)
        >>> metric.update(torch.tensor([[[0, 3, 1, 1]]]), torch.tensor([[[1, 1, 2, 2]]]))
        >>> metric.compute()
        tensor(0.7500, dtype=torch.float64)
    """

    def __init__(self, n_slots: int, n_objects: int, **kwargs: Any) -> None:
        super().__init__("fg_miou", **kwargs)
        self.n_slots = checks.as_count(type(self).__name__, "n_slots", n_slots, 1)
        self.n_objects = checks.as_count(type(self).__name__, "n_objects", n_objects, 1)

    def per_image(self, predicted: Masks, truth: Masks, present: Masks | None = None) -> Tensor:
        """The value of each image, float64 ``(...)``; the state does not change."""
        return fg_miou(
            predicted, truth, n_slots=self.n_slots, n_objects=self.n_objects, present=present
        )

    def update(self, predicted: Masks, truth: Masks, present: Masks | None = None) -> None:
        """Add images: integers ``(..., H, W)``, and which objects count ``(..., n_objects)``."""
        self.add(self.per_image(predicted, truth, present))
