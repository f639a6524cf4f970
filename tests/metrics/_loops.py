"""The two scores of detections as loops, straight from their descriptions."""

import math

import numpy as np

BLOCKS = [slice(3, 5), slice(5, 13), slice(13, 16), slice(16, 18)]


def kind(row: np.ndarray) -> tuple[int, ...]:
    return tuple(int(row[block].argmax()) for block in BLOCKS)


def distance(a: np.ndarray, b: np.ndarray) -> float:
    return 3 * math.dist(a[:3].tolist(), b[:3].tolist())


def interpolated(hits: list[bool], n_objects: int) -> float:
    """Sum over the steps of recall of the best precision from there on."""
    curve = []
    for n in range(1, len(hits) + 1):
        right = sum(hits[:n])
        curve.append((right / n_objects, right / n))
    area = before = 0.0
    for i, (recall, _) in enumerate(curve):
        area += (recall - before) * max(precision for _, precision in curve[i:])
        before = recall
    return area


def pooled(predicted: np.ndarray, target: np.ndarray, threshold: float) -> float:
    detections = [(row[-1], image, row) for image, rows in enumerate(predicted) for row in rows]
    detections.sort(key=lambda d: -d[0])
    used, hits = set(), []
    for _, image, row in detections:
        best, nearest = math.inf, None
        for k, thing in enumerate(target[image]):
            if thing[-1] == 1 and kind(thing) == kind(row) and distance(thing, row) < best:
                best, nearest = distance(thing, row), (image, k)
        hit = nearest is not None and best < threshold and nearest not in used
        if hit:
            used.add(nearest)
        hits.append(hit)
    return interpolated(hits, int(target[..., -1].sum()))


def idspn(predicted: np.ndarray, target: np.ndarray, threshold: float) -> float:
    scores = []
    for rows, things in zip(predicted, target, strict=True):
        left = [thing for thing in things if thing[-1] == 1]
        n_objects = len(left)
        if n_objects == 0:
            continue
        hits = []
        for row in sorted(rows, key=lambda r: -r[-1]):
            alike = [k for k, thing in enumerate(left) if kind(thing) == kind(row)]
            if not alike:
                hits.append(False)
                continue
            nearest = min(alike, key=lambda k: distance(left[k], row))
            hits.append(distance(left.pop(nearest), row) < threshold)
        scores.append(interpolated(hits, n_objects))
    return sum(scores) / len(scores)
