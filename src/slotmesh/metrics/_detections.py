"""Average precision of tables of detections, in numpy, without a loop over images."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slotmesh.metrics.clevr_table import CLEVR_COLUMNS, CLEVR_LABELS, POSITION_SCALE

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Integers = NDArray[np.int64]


class Detections(NamedTuple):
    """Confidences and distances that the scores are computed from."""

    confidence: Floats  # (images, detections)
    distance: Floats  # (images, detections, objects), inf where attributes differ or padded
    n_objects: Integers  # (images)


def compare(predicted: NDArray[np.float32], target: NDArray[np.float32]) -> Detections:
    """Compare tables (images, detections, 19) and (images, objects, 19)."""
    real = target[..., CLEVR_COLUMNS["real"].start] > 0.5
    place = CLEVR_COLUMNS["position"]
    alike = _kind(predicted)[:, :, None] == _kind(target)[:, None, :]
    apart = predicted[:, :, None, place].astype(np.float64) - target[:, None, :, place]
    distance = POSITION_SCALE * np.sqrt(np.square(apart).sum(-1))
    distance[~(alike & real[:, None, :])] = np.inf
    if distance.shape[-1] == 0:
        # The nearest object needs a column, even if there is none.
        distance = np.full((*distance.shape[:2], 1), np.inf)
    confidence = predicted[..., CLEVR_COLUMNS["real"].start].astype(np.float64)
    # NaN confidence comes last; a NaN distance is never below a threshold anyway.
    confidence = np.where(np.isnan(confidence), -np.inf, confidence)
    return Detections(confidence, distance, real.sum(-1))


def _kind(table: NDArray[np.float32]) -> Integers:
    """One number per combination of attributes, (images, rows)."""
    kind = np.zeros(table.shape[:-1], dtype=np.int64)
    for name, labels in CLEVR_LABELS.items():
        kind = kind * len(labels) + table[..., CLEVR_COLUMNS[name]].argmax(-1)
    return kind


def pooled(detections: Detections, thresholds: list[float]) -> Floats:
    """Score of DSPN and Slot Attention: all detections of the dataset pooled, (thresholds,)."""
    n_objects = detections.distance.shape[-1]
    # The nearest object with the same attributes, whether or not another detection has it.
    nearest = detections.distance.argmin(-1)
    best = detections.distance.min(-1).ravel()
    taken = (np.arange(len(nearest))[:, None] * n_objects + nearest).ravel()
    confidence = detections.confidence.ravel()
    order = np.argsort(-confidence, kind="stable")
    best, taken, confidence = best[order], taken[order], confidence[order]
    positive = np.zeros((len(thresholds), len(order)), dtype=np.bool_)
    for row, threshold in zip(positive, thresholds, strict=True):
        near = np.flatnonzero(best < threshold)
        # Only the first detection of an object counts as correct.
        row[near[np.unique(taken[near], return_index=True)[1]]] = True
    return _interpolate(positive, _ends(confidence), detections.n_objects.sum())


def by_image(detections: Detections, thresholds: list[float]) -> Floats:
    """Score of iDSPN: per image; objects are used up at any distance, (images, thresholds)."""
    distance = detections.distance.copy()
    # Among equal confidences the nearest comes first: a rule that does not depend on slot order.
    order = np.lexsort((distance.min(-1), -detections.confidence), axis=-1)
    found = np.empty(order.shape)
    image = np.arange(len(order))
    for rank in range(order.shape[1]):
        candidates = distance[image, order[:, rank]]
        nearest = candidates.argmin(-1)
        found[:, rank] = candidates[image, nearest]
        hit = image[np.isfinite(found[:, rank])]
        distance[hit, :, nearest[hit]] = np.inf
    positive = found[:, None, :] < np.array(thresholds)[:, None]
    ends = _ends(np.take_along_axis(detections.confidence, order, -1))
    return _interpolate(positive, ends[:, None, :], detections.n_objects[:, None])


def each_pooled(detections: Detections, thresholds: list[float]) -> Floats:
    """:func:`pooled` of each image as a dataset of its own, (images, thresholds)."""
    order = np.argsort(-detections.confidence, axis=-1, kind="stable")
    distance = np.take_along_axis(detections.distance, order[..., None], 1)
    nearest, best = distance.argmin(-1), distance.min(-1)
    same = nearest[:, :, None] == nearest[:, None, :]
    earlier = np.tri(order.shape[1], k=-1, dtype=np.bool_)
    near = best[:, None, :] < np.array(thresholds)[:, None]
    used = ((same & earlier)[:, None] & near[:, :, None, :]).any(-1)
    ends = _ends(np.take_along_axis(detections.confidence, order, -1))
    return _interpolate(near & ~used, ends[:, None, :], detections.n_objects[:, None])


def _ends(confidence: Floats) -> Bools:
    """Where a run of equal confidences ends: the curve is defined only there."""
    last = np.ones((*confidence.shape[:-1], 1), dtype=np.bool_)
    return np.concatenate([confidence[..., 1:] != confidence[..., :-1], last], axis=-1)


def _interpolate(positive: Bools, ends: Bools, n_objects: Integers | np.int64) -> Floats:
    """Area under the precision-recall curve, with every-point interpolation.

    Args:
        positive: ``(..., detections)``, which are correct, by decreasing confidence.
        ends: ``(..., detections)``, from :func:`_ends`.
        n_objects: ``(...)``, number of real objects.

    Returns:
        ``(...)``, NaN where there is no object.
    """
    right = np.cumsum(positive, axis=-1)
    precision = np.where(ends, right / np.arange(1, positive.shape[-1] + 1), 0.0)
    envelope = np.maximum.accumulate(precision[..., ::-1], axis=-1)[..., ::-1]
    so_far = np.maximum.accumulate(np.where(ends, right, 0), axis=-1)
    gain = np.diff(so_far, axis=-1, prepend=0)
    with np.errstate(invalid="ignore"):
        return (gain * envelope).sum(-1) / n_objects
