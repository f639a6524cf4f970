"""Adjusted Rand index, of the foreground or of all pixels."""

from typing import Any

import torch
from torch import Tensor

from slotmesh.metrics._contingency import Masks, contingency
from slotmesh.metrics._mean import MeanOverImages
from slotmesh.ops import checks

_NAN = float("nan")


def fg_ari(
    predicted: Masks, truth: Masks, *, n_slots: int, n_objects: int, empty: float = _NAN
) -> Tensor:
    """Adjusted Rand index of the pixels that belong to objects.

    1 if slots and objects partition the foreground in the same way, about 0 for a random partition.
    Background pixels do not count, so it does not matter how slots divide the background. An image
    with one object scores 1 if a single slot holds it, and 0 if several do.

    Args:
        predicted: Integers ``(..., H, W)``, the slot of each pixel (argmax of the slots' masks).
        truth: Integers ``(..., H, W)``, 0 the background, ``i + 1`` object ``i``.
        n_slots: Number of slots.
        n_objects: Largest number of objects in an image.
        empty: The value of an image without foreground; 1.0 in the authors' code.

    Returns:
        float64 ``(...)``.

    Example:
        >>> import torch
        >>> from slotmesh.metrics import fg_ari
        >>> truth = torch.tensor([[0, 0, 1, 1, 2, 2]])
        >>> fg_ari(torch.tensor([[0, 1, 3, 3, 0, 0]]), truth, n_slots=4, n_objects=2)
        tensor(1., dtype=torch.float64)
        >>> fg_ari(torch.tensor([[0, 0, 3, 0, 0, 3]]), truth, n_slots=4, n_objects=2)
        tensor(-0.5000, dtype=torch.float64)
    """
    table = contingency("fg_ari", predicted, truth, n_slots=n_slots, n_objects=n_objects)
    return _rand_index(table[..., 1:], empty)


def ari(predicted: Masks, truth: Masks, *, n_slots: int, n_objects: int) -> Tensor:
    """Adjusted Rand index of all pixels, with the background as an additional object.

    Unlike :func:`fg_ari`, it is lower if the background is split over several slots.

    Args:
        predicted: Integers ``(..., H, W)``, the slot of each pixel (argmax of the slots' masks).
        truth: Integers ``(..., H, W)``, 0 the background, ``i + 1`` object ``i``.
        n_slots: Number of slots.
        n_objects: Largest number of objects in an image.

    Returns:
        float64 ``(...)``.

    Example:
        >>> import torch
        >>> from slotmesh.metrics import ari
        >>> truth = torch.tensor([[0, 0, 0, 0, 1, 1]])
        >>> ari(torch.tensor([[2, 2, 2, 2, 0, 0]]), truth, n_slots=3, n_objects=1)
        tensor(1., dtype=torch.float64)
        >>> ari(torch.tensor([[2, 2, 1, 1, 0, 0]]), truth, n_slots=3, n_objects=1)
        tensor(0.4444, dtype=torch.float64)
    """
    return _rand_index(
        contingency("ari", predicted, truth, n_slots=n_slots, n_objects=n_objects), _NAN
    )


def _rand_index(table: Tensor, empty: float) -> Tensor:
    """The adjusted Rand index of a contingency table ``(..., m, k)``."""
    pixels = table.sum((-2, -1))
    # Ordered pairs of pixels, by whether slot and object agree on them; integers up to here.
    both = table.square().sum((-2, -1)) - pixels
    slot = table.sum(-1).square().sum(-1) - pixels
    label = table.sum(-2).square().sum(-1) - pixels
    everything = pixels * (pixels - 1)
    tp, fp, fn = both.double(), (slot - both).double(), (label - both).double()
    tn = (everything - slot - label + both).double()
    below = (tp + fn) * (fn + tn) + (tp + fp) * (fp + tn)
    alike = (fp == 0) & (fn == 0)
    index = torch.where(alike, 1.0, 2.0 * (tp * tn - fn * fp) / torch.where(alike, 1.0, below))
    return torch.where(pixels > 0, index, empty)


class ForegroundARI(MeanOverImages):
    """Mean of :func:`fg_ari` over the images (or frames) of a dataset.

    Images without foreground are left out; ``n_undefined`` is their number after ``compute()``.

    Args:
        n_slots: Number of slots.
        n_objects: Largest number of objects in an image.
        empty: The value of an image without foreground; NaN leaves it out. The authors' code uses
            1.0.
        **kwargs: Arguments of :class:`torchmetrics.Metric`.

    Example:
        >>> import torch
        >>> from slotmesh.metrics import ForegroundARI
        >>> metric = ForegroundARI(n_slots=2, n_objects=2)
        >>> truth = torch.tensor([[[1, 1], [2, 2]], [[0, 0], [0, 0]]])
        >>> metric.update(predicted=torch.tensor([[[0, 0], [1, 1]]] * 2), truth=truth)
        >>> metric.compute(), metric.n_undefined
        (tensor(1., dtype=torch.float64), tensor(1))
    """

    def __init__(self, n_slots: int, n_objects: int, *, empty: float = _NAN, **kwargs: Any) -> None:
        super().__init__("fg_ari", undefined=empty, **kwargs)
        self.n_slots = checks.as_count(type(self).__name__, "n_slots", n_slots, 1)
        self.n_objects = checks.as_count(type(self).__name__, "n_objects", n_objects, 1)
        self.empty = empty

    def per_image(self, predicted: Masks, truth: Masks) -> Tensor:
        """The value of each image, float64 ``(...)``; the state does not change."""
        return fg_ari(
            predicted, truth, n_slots=self.n_slots, n_objects=self.n_objects, empty=self.empty
        )

    def update(self, predicted: Masks, truth: Masks) -> None:
        """Add images: integers ``(..., H, W)``."""
        self.add(fg_ari(predicted, truth, n_slots=self.n_slots, n_objects=self.n_objects))


class AdjustedRandIndex(MeanOverImages):
    """Mean of :func:`ari` over the images (or frames) of a dataset.

    Args:
        n_slots: Number of slots.
        n_objects: Largest number of objects in an image.
        **kwargs: Arguments of :class:`torchmetrics.Metric`.
    """

    def __init__(self, n_slots: int, n_objects: int, **kwargs: Any) -> None:
        super().__init__("ari", **kwargs)
        self.n_slots = checks.as_count(type(self).__name__, "n_slots", n_slots, 1)
        self.n_objects = checks.as_count(type(self).__name__, "n_objects", n_objects, 1)

    def per_image(self, predicted: Masks, truth: Masks) -> Tensor:
        """The value of each image, float64 ``(...)``; the state does not change."""
        return ari(predicted, truth, n_slots=self.n_slots, n_objects=self.n_objects)

    def update(self, predicted: Masks, truth: Masks) -> None:
        """Add images: integers ``(..., H, W)``."""
        self.add(self.per_image(predicted, truth))
