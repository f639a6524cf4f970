"""Average precision of predicted objects, for CLEVR."""

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from slotmesh.metrics import _detections as tables
from slotmesh.metrics.clevr_table import CLEVR_WIDTH
from slotmesh.ops import checks

APMode = Literal["pooled", "idspn"]

AP_THRESHOLDS = (float("inf"), 1.0, 0.5, 0.25, 0.125, 0.0625)
"""Distances in CLEVR's units; a detection has to be closer."""


def average_precision(
    predicted: Tensor,
    target: Tensor,
    *,
    thresholds: Sequence[float] = AP_THRESHOLDS,
    mode: APMode = "pooled",
) -> Tensor:
    """Average precision of detected objects over a set of images.

    Every row of ``predicted`` is a detection whose last number is its confidence. It can be correct
    if material, colour, shape and size (by argmax) are those of an object in its image, and if its
    distance to that object, in CLEVR's units, is below the threshold.

    ``"pooled"`` is the score of DSPN and Slot Attention: the detections of all images in one list,
    by decreasing confidence; a detection is assigned to the nearest object with its attributes,
    and is wrong if an earlier one was correct for that object. (DSPN also accepts a distance equal
    to the threshold.)

    ``"idspn"`` is the score of iDSPN: each image separately; a detection is assigned to the nearest
    object that is left, which is used up even if it is too far away; then the mean over images
    with objects. iDSPN's released code scores only the first image of each batch; this scores all.

    Precision is interpolated at every point. Detections of equal confidence are added at once, so
    the result does not depend on the order of the images.

    Args:
        predicted: ``(batch, n_slots, 19)``, see :data:`~slotmesh.metrics.CLEVR_COLUMNS`.
        target: ``(batch, n_objects, 19)``, from :func:`~slotmesh.metrics.encode_objects`.
        thresholds: Distances above 0.
        mode: ``"pooled"`` or ``"idspn"``.

    Returns:
        float64 ``(len(thresholds))``, NaN if there is no object at all.

    Example:
        >>> import torch
        >>> from slotmesh.metrics import average_precision, encode_objects
        >>> from slotmesh.worlds import Clevr
        >>> sample = Clevr().sample(range(2))
        >>> target = encode_objects(sample.objects, sample.present)
        >>> shifted = target.clone()
        >>> shifted[..., 0] += 0.2  # 0.6 in CLEVR's units
        >>> average_precision(shifted, target, thresholds=(1.0, 0.5))
        tensor([1., 0.], dtype=torch.float64)
    """
    near = _check(predicted, target, thresholds, mode)
    found = tables.compare(_array(predicted), _array(target))
    if mode == "pooled":
        score = tables.pooled(found, near)
    else:
        each = tables.by_image(found, near)[found.n_objects > 0]
        # Exact sums, independent of the order of images and so of processes.
        score = np.array([math.fsum(c) / len(each) if len(each) else math.nan for c in each.T])
    return torch.as_tensor(score, dtype=torch.float64, device=predicted.device)


def average_precision_per_image(
    predicted: Tensor,
    target: Tensor,
    *,
    thresholds: Sequence[float] = AP_THRESHOLDS,
    mode: APMode = "pooled",
) -> Tensor:
    """:func:`average_precision` of each image separately.

    With ``"idspn"`` their mean is the value of the dataset; with ``"pooled"`` it is not.

    Args:
        predicted: ``(batch, n_slots, 19)``.
        target: ``(batch, n_objects, 19)``.
        thresholds: Distances above 0.
        mode: ``"pooled"`` or ``"idspn"``.

    Returns:
        float64 ``(batch, len(thresholds))``, NaN for an image without objects.

    Example:
        >>> import torch
        >>> from slotmesh.metrics import average_precision_per_image, encode_objects
        >>> from slotmesh.worlds import Clevr
        >>> sample = Clevr().sample(range(2))
        >>> target = encode_objects(sample.objects, sample.present)
        >>> average_precision_per_image(target, target, thresholds=(1.0, 0.5))
        tensor([[1., 1.],
                [1., 1.]], dtype=torch.float64)
    """
    near = _check(predicted, target, thresholds, mode)
    found = tables.compare(_array(predicted), _array(target))
    score = (tables.each_pooled if mode == "pooled" else tables.by_image)(found, near)
    return torch.as_tensor(score, dtype=torch.float64, device=predicted.device)


class AveragePrecision(Metric):
    """:func:`average_precision` over a dataset.

    ``compute()`` returns ``{"ap_inf": ..., "ap_1": ..., "ap_0.5": ..., ...}``, one per threshold.
    All tables are kept until then, 1.5 kB per image.

    Args:
        n_slots: Detections per image.
        n_objects: Rows of the targets.
        thresholds: Distances above 0.
        mode: ``"pooled"`` or ``"idspn"``, as in :func:`average_precision`.
        **kwargs: Arguments of :class:`torchmetrics.Metric`.

    Example:
        >>> from slotmesh.metrics import AveragePrecision, encode_objects
        >>> from slotmesh.worlds import Clevr
        >>> metric = AveragePrecision(thresholds=(float("inf"), 0.5))
        >>> sample = Clevr().sample(range(2))
        >>> target = encode_objects(sample.objects, sample.present)
        >>> metric.update(target, target)
        >>> {name: float(value) for name, value in metric.compute().items()}
        {'ap_inf': 1.0, 'ap_0.5': 1.0}
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False
    ap_predicted: list[Tensor] | Tensor
    ap_target: list[Tensor] | Tensor
    n_undefined: Tensor | None
    """Number of images without objects that ``"idspn"`` left out, of all processes, as of the last
    ``compute()``; None before. ``"pooled"`` leaves none out: their detections count as wrong."""

    def __init__(
        self,
        n_slots: int = 10,
        n_objects: int = 10,
        *,
        thresholds: Sequence[float] = AP_THRESHOLDS,
        mode: APMode = "pooled",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.n_slots = checks.as_count("AveragePrecision", "n_slots", n_slots, 1)
        self.n_objects = checks.as_count("AveragePrecision", "n_objects", n_objects, 1)
        self.thresholds = tuple(_check_settings(thresholds, mode))
        self.mode: APMode = mode
        self.n_undefined = None
        # One-dimensional and float32, as torchmetrics assumes for a process that saw no image.
        self.add_state("ap_predicted", [], dist_reduce_fx="cat")
        self.add_state("ap_target", [], dist_reduce_fx="cat")

    @property
    def names(self) -> list[str]:
        """The keys of ``compute()``, one per threshold."""
        return [f"ap_{threshold:g}" for threshold in self.thresholds]

    def per_image(self, predicted: Tensor, target: Tensor) -> dict[str, Tensor]:
        """The value of each image, ``(batch)`` per threshold; the state does not change."""
        values = average_precision_per_image(
            predicted, target, thresholds=self.thresholds, mode=self.mode
        )
        return dict(zip(self.names, values.unbind(-1), strict=True))

    def update(self, predicted: Tensor, target: Tensor) -> None:
        """Add images: ``(batch, n_slots, 19)`` and ``(batch, n_objects, 19)``."""
        _check(predicted, target, self.thresholds, self.mode)
        if predicted.shape[1] != self.n_slots or target.shape[1] != self.n_objects:
            raise ValueError(
                f"AveragePrecision: predicted has shape {tuple(predicted.shape)} and target "
                f"{tuple(target.shape)}, expected {self.n_slots} and {self.n_objects} rows. Make "
                f"it AveragePrecision(n_slots={predicted.shape[1]}, n_objects={target.shape[1]})."
            )
        assert isinstance(self.ap_predicted, list)
        assert isinstance(self.ap_target, list)
        self.ap_predicted.append(predicted.detach().float().flatten())
        self.ap_target.append(target.detach().float().flatten())

    def compute(self) -> dict[str, Tensor]:
        """The value over all images of all processes, float64, one per threshold."""
        if isinstance(self.ap_predicted, list) and not self.ap_predicted:
            predicted = torch.zeros(0, device=self.device)
            target = predicted
        else:
            predicted, target = dim_zero_cat(self.ap_predicted), dim_zero_cat(self.ap_target)
        predicted = predicted.view(-1, self.n_slots, CLEVR_WIDTH)
        target = target.view(-1, self.n_objects, CLEVR_WIDTH)
        empty = (target[..., -1] <= 0.5).all(-1).sum()
        self.n_undefined = empty if self.mode == "idspn" else torch.zeros_like(empty)
        values = average_precision(predicted, target, thresholds=self.thresholds, mode=self.mode)
        return dict(zip(self.names, values.unbind(), strict=True))

    def reset(self) -> None:
        """Forget all images."""
        super().reset()
        self.n_undefined = None


def _array(table: Tensor) -> Any:
    return table.detach().to("cpu", torch.float32).numpy()


def _check(
    predicted: Tensor, target: Tensor, thresholds: Sequence[float], mode: str
) -> list[float]:
    for name, value in (("predicted", predicted), ("target", target)):
        if not isinstance(value, Tensor) or value.ndim != 3 or value.shape[-1] != CLEVR_WIDTH:
            got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(
                f"average_precision: {name} is {got}, expected a tensor (batch, n, "
                f"{CLEVR_WIDTH}). Make targets with encode_objects."
            )
    if len(predicted) != len(target):
        raise ValueError(
            f"average_precision: got {len(predicted)} images in predicted and {len(target)} in "
            "target, expected the same number."
        )
    return _check_settings(thresholds, mode)


def _check_settings(thresholds: Sequence[float], mode: str) -> list[float]:
    checks.check_choice("average_precision", "mode", mode, ("pooled", "idspn"))
    try:
        near = [float(threshold) for threshold in thresholds]
    except (TypeError, ValueError):
        near = []
    if not near or not all(threshold > 0 for threshold in near):
        raise ValueError(
            f"average_precision: thresholds is {thresholds!r}, expected distances above 0, such as "
            "(float('inf'), 1.0, 0.5)."
        )
    return near
