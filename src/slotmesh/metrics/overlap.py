"""Mean best overlap, and mean intersection over union with the background."""

from typing import Any

import torch
from torch import Tensor

from slotmesh.metrics._contingency import Masks, as_tensor, check_integers, contingency
from slotmesh.metrics._mean import MeanOverImages
from slotmesh.metrics.miou import fg_miou
from slotmesh.ops import checks


def mbo(predicted: Masks, truth: Masks, *, n_slots: int, n_objects: int) -> Tensor:
    """Mean best overlap: the overlap of each object with its best slot, averaged over objects.

    Unlike in :func:`fg_miou`, several objects may share a slot. With a mask of instances this is
    mBO_i; with a mask of classes (:func:`class_mask`) it is mBO_c.

    Args:
        predicted: Integers ``(..., H, W)``, the slot of each pixel (argmax of the slots' masks).
        truth: Integers ``(..., H, W)``, 0 the background, ``i + 1`` object (or class) ``i``.
        n_slots: Number of slots.
        n_objects: Most objects (or classes) that an image can have.

    Returns:
        float64 ``(...)``, NaN where an image has no object.

    Example:
        >>> import torch
        >>> from slotmesh.metrics import mbo
        >>> truth = torch.tensor([[0, 0, 1, 1, 2, 2]])
        >>> mbo(torch.tensor([[0, 0, 3, 3, 3, 3]]), truth, n_slots=4, n_objects=2)
        tensor(0.5000, dtype=torch.float64)
    """
    table = contingency("mbo", predicted, truth, n_slots=n_slots, n_objects=n_objects)
    shared = table[..., 1:].double()
    objects = table.sum(-2)[..., 1:]
    union = table.sum(-1).unsqueeze(-1) + objects.unsqueeze(-2) - shared
    best = (shared / union.clamp_min(1)).amax(-2)
    real = objects > 0
    return torch.where(real, best, 0.0).sum(-1) / real.sum(-1)


def miou(predicted: Masks, truth: Masks, *, n_slots: int, n_objects: int) -> Tensor:
    """Mean intersection over union, with the background as an additional object.

    Slots are matched one to one (Hungarian matching), as in :func:`fg_miou`.

    Args:
        predicted: Integers ``(..., H, W)``, the slot of each pixel.
        truth: Integers ``(..., H, W)``, 0 the background, ``i + 1`` object ``i``.
        n_slots: Number of slots.
        n_objects: Largest number of objects in an image, without the background.

    Returns:
        float64 ``(...)``.

    Example:
        >>> import torch
        >>> from slotmesh.metrics import miou
        >>> truth = torch.tensor([[0, 0, 1, 1]])
        >>> miou(torch.tensor([[2, 2, 3, 0]]), truth, n_slots=4, n_objects=1)
        tensor(0.7500, dtype=torch.float64)
    """
    # Checked as passed: a message about shifted labels would be misleading.
    predicted, truth = as_tensor(predicted), as_tensor(truth)
    contingency("miou", predicted, truth, n_slots=n_slots, n_objects=n_objects)
    return fg_miou(predicted, truth.long() + 1, n_slots=n_slots, n_objects=n_objects + 1)


def class_mask(truth: Masks, classes: Masks) -> Tensor:
    """Convert a mask of instances to a mask of classes.

    Args:
        truth: Integers ``(..., H, W)``, 0 the background, ``i + 1`` object ``i``.
        classes: Integers ``(..., n_objects)``, the class of each object, from 0.

    Returns:
        int64 ``(..., H, W)``, 0 the background, ``c + 1`` where an object is of class ``c``.

    Example:
        >>> import torch
        >>> from slotmesh.metrics import class_mask
        >>> class_mask(torch.tensor([[0, 1], [2, 3]]), torch.tensor([4, 4, 7]))
        tensor([[0, 5],
                [5, 8]])
    """
    truth, classes = as_tensor(truth), as_tensor(classes)
    check_integers("class_mask", "truth", truth, "(..., H, W)", "Pass the mask of a Sample.")
    fix = "Pass the class of every object, such as sample.objects['shape']."
    check_integers("class_mask", "classes", classes, "(..., n_objects)", fix)
    shapes = (tuple(truth.shape), tuple(classes.shape))
    if truth.ndim < 2 or classes.ndim != truth.ndim - 1 or shapes[0][:-2] != shapes[1][:-1]:
        raise ValueError(
            f"class_mask: truth has shape {shapes[0]} and classes {shapes[1]}, expected "
            "(..., H, W) and (..., n_objects) with the same batch dimensions."
        )
    if checks.can_read_values(truth, classes):
        _check_labels(truth, classes)
    labels = torch.nn.functional.pad(classes.long() + 1, (1, 0))
    return labels.gather(-1, truth.long().flatten(-2)).reshape(truth.shape)


def _check_labels(truth: Tensor, classes: Tensor) -> None:
    if truth.numel() and int(truth.min()) < 0:
        raise ValueError(
            f"class_mask: truth has the label {int(truth.min())}, expected 0 for the background "
            "and objects from 1 on. Label pixels to ignore as background."
        )
    if truth.numel() and int(truth.max()) > classes.shape[-1]:
        raise ValueError(
            f"class_mask: truth has the object {int(truth.max())}, but classes has only "
            f"{classes.shape[-1]} objects. Pass the class of every object."
        )
    if classes.numel() and int(classes.min()) < 0:
        raise ValueError(
            f"class_mask: classes has {int(classes.min())}, expected classes from 0 on."
        )


class MeanBestOverlap(MeanOverImages):
    """Mean of :func:`mbo` over the images (or frames) of a dataset.

    Args:
        n_slots: Number of slots.
        n_objects: Most objects (or classes) that an image can have.
        **kwargs: Arguments of :class:`torchmetrics.Metric`.

    Example:
        >>> import torch
        >>> from slotmesh.metrics import MeanBestOverlap
        >>> metric = MeanBestOverlap(n_slots=4, n_objects=2)
        >>> metric.update(torch.tensor([[[0, 3, 1, 1]]]), torch.tensor([[[1, 1, 2, 2]]]))
        >>> metric.compute()
        tensor(0.7500, dtype=torch.float64)
    """

    def __init__(self, n_slots: int, n_objects: int, **kwargs: Any) -> None:
        super().__init__("mbo", **kwargs)
        self.n_slots = checks.as_count(type(self).__name__, "n_slots", n_slots, 1)
        self.n_objects = checks.as_count(type(self).__name__, "n_objects", n_objects, 1)

    def per_image(self, predicted: Masks, truth: Masks) -> Tensor:
        """The value of each image, float64 ``(...)``; the state does not change."""
        return mbo(predicted, truth, n_slots=self.n_slots, n_objects=self.n_objects)

    def update(self, predicted: Masks, truth: Masks) -> None:
        """Add images: integers ``(..., H, W)``."""
        self.add(self.per_image(predicted, truth))


class MeanIoU(MeanOverImages):
    """Mean of :func:`miou` over the images (or frames) of a dataset.

    Args:
        n_slots: Number of slots.
        n_objects: Largest number of objects in an image, without the background.
        **kwargs: Arguments of :class:`torchmetrics.Metric`.
    """

    def __init__(self, n_slots: int, n_objects: int, **kwargs: Any) -> None:
        super().__init__("miou", **kwargs)
        self.n_slots = checks.as_count(type(self).__name__, "n_slots", n_slots, 1)
        self.n_objects = checks.as_count(type(self).__name__, "n_objects", n_objects, 1)

    def per_image(self, predicted: Masks, truth: Masks) -> Tensor:
        """The value of each image, float64 ``(...)``; the state does not change."""
        return miou(predicted, truth, n_slots=self.n_slots, n_objects=self.n_objects)

    def update(self, predicted: Masks, truth: Masks) -> None:
        """Add images: integers ``(..., H, W)``."""
        self.add(self.per_image(predicted, truth))
