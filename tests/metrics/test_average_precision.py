"""Average precision against loops and cases worked out by hand."""

import math
import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slotmesh.metrics import (
    AP_THRESHOLDS,
    AveragePrecision,
    average_precision,
    average_precision_per_image,
)

from . import _loops
from ._data import tables

LOOPS = {"pooled": _loops.pooled, "idspn": _loops.idspn}
INF = math.inf


def row(confidence: float, x: float, color: int = 0) -> list[float]:
    """Something at x of CLEVR's units."""
    attributes = [0.0] * 15
    for first in (0, 2 + color, 10, 13):
        attributes[first] = 1.0
    return [x / 3, 0.0, 0.0, *attributes, confidence]


def score(detections, objects, *thresholds, mode="pooled"):
    """Of one image, or of several where lists are nested once more."""
    predicted, target = torch.tensor(detections), torch.tensor(objects)
    if predicted.ndim == 2:
        predicted, target = predicted[None], target[None]
    return average_precision(predicted, target, thresholds=thresholds, mode=mode).tolist()


@pytest.mark.parametrize("mode", LOOPS)
@given(seed=st.integers(0, 10**6), n_images=st.integers(1, 12))
def test_is_that_of_the_loop(mode, seed, n_images):
    predicted, target = tables(seed, n_images)
    target[0, 0, -1] = 1  # at least one object
    values = average_precision(predicted, target, mode=mode)
    assert values.dtype == torch.float64
    for value, threshold in zip(values, AP_THRESHOLDS, strict=True):
        expected = LOOPS[mode](predicted.numpy(), target.numpy(), threshold)
        assert value.item() == pytest.approx(expected, abs=1e-12)


def test_random_tables_are_neither_all_right_nor_all_wrong():
    """Or the test above would say little."""
    for mode in LOOPS:
        values = average_precision(*tables(0, 200), mode=mode)
        assert values[0] > 0.3
        assert values[-1] < 0.2
        assert (values.diff() < -0.01).all()
    both = [average_precision(*tables(0, 200), mode=mode) for mode in LOOPS]
    assert (both[0] - both[1]).abs().min() > 0.01


@pytest.mark.parametrize("mode", LOOPS)
def test_by_hand(mode):
    """Right, wrong kind, right: precision 1, 1/2, 2/3 at recall 1/2, 1/2, 1."""
    objects = [row(1, 0), row(1, 2, color=3)]
    detections = [row(0.7, 2.1, color=3), row(0.9, 0.1), row(0.8, 0.0, color=5)]
    expected = 0.5 * 1 + 0.5 * 2 / 3
    assert score(detections, objects, INF, 0.5, mode=mode) == pytest.approx([expected] * 2)
    # Found with less confidence than a mistake, and one object never found.
    assert score(detections[1:], objects, INF, mode=mode) == [0.5]
    assert score([row(0.5, 0), row(0.6, 0, color=1)], objects, 1.0, mode=mode) == [0.25]
    assert score(objects, objects, *AP_THRESHOLDS, mode=mode) == [1.0] * 6


def test_a_second_detection_of_an_object():
    """Pooled it is wrong; iDSPN gives it the object that is left, at distance 1.8."""
    objects = [row(1, 0), row(1, 2)]
    detections = [row(0.9, 0.1), row(0.8, 0.2)]
    assert score(detections, objects, INF, 1.0) == [0.5, 0.5]
    assert score(detections, objects, INF, 1.0, mode="idspn") == [1.0, 0.5]


def test_a_detection_that_is_too_far():
    """Pooled it leaves the object to the next; iDSPN uses the object up."""
    objects, detections = [row(1, 0)], [row(0.9, 0.6), row(0.8, 0.1)]
    assert score(detections, objects, 1.0, 0.5) == [1.0, 0.5]
    assert score(detections, objects, 1.0, 0.5, mode="idspn") == [1.0, 0.0]


def test_images_are_pooled_or_averaged():
    """A confident mistake in one image costs the other only where they share a list."""
    objects = [[row(1, 0)], [row(1, 0)]]
    detections = [[row(0.9, 0, color=1)], [row(0.5, 0)]]
    assert score(detections, objects, INF) == [0.25]
    assert score(detections, objects, INF, mode="idspn") == [0.5]


@pytest.mark.parametrize("mode", LOOPS)
def test_the_threshold_itself_is_too_far(mode):
    objects, detections = [row(1, 0)], [row(0.9, 0.75)]
    beyond = float(np.nextafter(0.75, 1))
    assert score(detections, objects, 0.75, beyond, mode=mode) == [0.0, 1.0]


def test_padding_is_never_found():
    """Zero rows are all of the first kind, at the middle of the table."""
    padding = [[0.0] * 19]
    assert score([row(0.9, 0), row(0.8, 1)], [row(1, 1), *padding], INF, 0.5) == [1.0, 0.5]
    assert np.isnan(score([row(0.9, 0)], padding, INF)).all()
    assert np.isnan(score([row(0.9, 0)], padding, INF, mode="idspn")).all()
    # An image without objects: mistakes where detections are pooled, left out where not.
    two = [[row(1, 0)], padding], [[row(0.5, 0)], [row(0.9, 0)]]
    assert score(two[1], two[0], INF) == [0.5]
    assert score(two[1], two[0], INF, mode="idspn") == [1.0]


@pytest.mark.parametrize("mode", LOOPS)
def test_equal_confidences_have_no_order(mode):
    objects = [row(1, 0)]
    right, wrong = row(0.5, 0), row(0.5, 0, color=1)
    assert score([right, wrong], objects, INF, mode=mode) == [0.5]
    assert score([wrong, right], objects, INF, mode=mode) == [0.5]


@pytest.mark.parametrize("mode", LOOPS)
@given(seed=st.integers(0, 10**6), ties=st.booleans())
def test_order_of_images_slots_and_objects_does_not_matter(mode, seed, ties):
    predicted, target = tables(seed, 8, ties=ties)
    value = average_precision(predicted, target, mode=mode)
    rng = torch.Generator().manual_seed(seed)
    images = torch.randperm(8, generator=rng)
    slots, objects = torch.randperm(6, generator=rng), torch.randperm(5, generator=rng)
    moved = average_precision(predicted[images][:, slots], target[images][:, objects], mode=mode)
    assert torch.equal(value, moved)


@pytest.mark.parametrize("mode", LOOPS)
@given(seed=st.integers(0, 10**6), ties=st.booleans())
def test_each_image_by_itself(mode, seed, ties):
    predicted, target = tables(seed, 5, ties=ties)
    target[0] = 0
    each = average_precision_per_image(predicted, target, mode=mode)
    assert each.shape == (5, 6)
    assert each[0].isnan().all()
    alone = [
        average_precision(predicted[i : i + 1], target[i : i + 1], mode=mode) for i in range(5)
    ]
    torch.testing.assert_close(each, torch.stack(alone), rtol=0, atol=1e-12, equal_nan=True)
    if mode == "idspn":
        mean = average_precision(predicted, target, mode=mode)
        torch.testing.assert_close(each.nanmean(0), mean, rtol=0, atol=1e-12)


@pytest.mark.parametrize("mode", LOOPS)
def test_predictions_that_are_not_numbers_are_wrong(mode):
    objects, good = [row(1, 0), row(1, 1, color=2)], row(0.3, 0)
    for bad in (row(0.9, math.nan), row(0.9, INF)):
        assert score([bad, good], objects, INF, mode=mode) == [0.25]
    # Without a confidence it comes last.
    assert score([row(math.nan, 0, color=5), good], objects, INF, mode=mode) == [0.5]
    assert score([row(math.nan, 1, color=2), good], objects, INF, mode=mode) == [1.0]


@pytest.mark.parametrize("mode", LOOPS)
def test_the_class_gives_the_value_of_all_batches(mode):
    predicted, target = tables(1, 11, ties=True)
    target[3] = 0
    metric = AveragePrecision(n_slots=6, n_objects=5, mode=mode)
    for part in (slice(0, 2), slice(2, 9), slice(9, 11)):
        metric.update(predicted[part], target[part])
    values = metric.compute()
    assert list(values) == ["ap_inf", "ap_1", "ap_0.5", "ap_0.25", "ap_0.125", "ap_0.0625"]
    assert torch.equal(
        torch.stack([*values.values()]), average_precision(predicted, target, mode=mode)
    )
    assert metric.n_undefined == (mode == "idspn")
    each = metric.per_image(predicted, target)
    assert list(each) == list(values)
    assert each["ap_1"].shape == (11,)


def test_half_precision_is_taken():
    predicted, target = tables(2, 4)
    metric = AveragePrecision(n_slots=6, n_objects=5)
    metric.update(predicted.bfloat16(), target)
    expected = average_precision(predicted.bfloat16().float(), target)
    assert torch.equal(torch.stack([*metric.compute().values()]), expected)


def test_fifteen_thousand_images_take_a_moment():
    predicted, target = tables(3, 15_000, n_slots=10, n_objects=10)
    for mode in LOOPS:
        start = time.process_time()
        average_precision(predicted, target, mode=mode)
        assert time.process_time() - start < 5
