"""Mean best overlap, mIoU and ARI with background against implementations of others."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import adjusted_rand_score, jaccard_score

from slotmesh.metrics import (
    AdjustedRandIndex,
    MeanBestOverlap,
    MeanIoU,
    ari,
    class_mask,
    fg_miou,
    mbo,
    miou,
)

from ._data import masks

SIZES = {"n_slots": st.integers(1, 6), "n_objects": st.integers(1, 6)}


def overlap(a: np.ndarray, b: np.ndarray) -> float:
    """Intersection over union of two binary masks, by scikit-learn."""
    return float(jaccard_score(a.ravel(), b.ravel(), zero_division=0.0))


@given(seed=st.integers(0, 10**6), noise=st.sampled_from([0.0, 0.3, 1.0]), **SIZES)
def test_best_overlap_is_that_of_scikit_learn(seed, noise, n_slots, n_objects):
    predicted, truth = masks(seed, 3, n_slots=n_slots, n_objects=n_objects, noise=noise)
    values = mbo(predicted, truth, n_slots=n_slots, n_objects=n_objects)
    for i in range(3):
        p, t = predicted[i].numpy(), truth[i].numpy()
        best = [
            max(overlap(p == s, t == k + 1) for s in range(n_slots))
            for k in range(n_objects)
            if (t == k + 1).any()
        ]
        if best:
            assert values[i].item() == pytest.approx(np.mean(best), abs=1e-12)
        else:
            assert values[i].isnan()


@given(seed=st.integers(0, 10**6), noise=st.sampled_from([0.0, 0.3, 1.0]), **SIZES)
def test_miou_is_the_match_of_scipy_with_the_background(seed, noise, n_slots, n_objects):
    predicted, truth = masks(seed, 3, n_slots=n_slots, n_objects=n_objects, noise=noise)
    values = miou(predicted, truth, n_slots=n_slots, n_objects=n_objects)
    for i in range(3):
        p, t = predicted[i].numpy(), truth[i].numpy()
        real = np.unique(t)
        iou = np.array([[overlap(p == s, t == k) for s in range(n_slots)] for k in real])
        row, column = linear_sum_assignment(iou, maximize=True)
        assert values[i].item() == pytest.approx(iou[row, column].sum() / len(real), abs=1e-12)


@given(seed=st.integers(0, 10**6), noise=st.sampled_from([0.0, 0.3, 1.0]), **SIZES)
def test_ari_is_that_of_scikit_learn(seed, noise, n_slots, n_objects):
    predicted, truth = masks(seed, 3, n_slots=n_slots, n_objects=n_objects, noise=noise)
    values = ari(predicted, truth, n_slots=n_slots, n_objects=n_objects)
    for i in range(3):
        expected = adjusted_rand_score(truth[i].flatten().numpy(), predicted[i].flatten().numpy())
        assert values[i].item() == pytest.approx(expected, abs=1e-12)


@given(seed=st.integers(0, 10**6), **SIZES)
def test_best_overlap_is_no_less_than_matched(seed, n_slots, n_objects):
    """A matching is one of the choices that each object has."""
    sizes = {"n_slots": n_slots, "n_objects": n_objects}
    predicted, truth = masks(seed, 3, **sizes)
    best, matched = mbo(predicted, truth, **sizes), fg_miou(predicted, truth, **sizes)
    assert bool(((best >= matched - 1e-12) | best.isnan()).all())


def test_classes_of_instances():
    truth = torch.tensor([[[0, 1], [2, 3]], [[3, 3], [0, 1]]])
    classes = torch.tensor([[0, 2, 0], [1, 1, 4]])
    assert class_mask(truth, classes).tolist() == [[[0, 1], [3, 1]], [[5, 5], [0, 2]]]
    # Two objects of one class in one slot are one thing.
    predicted = torch.tensor([[[0, 1], [2, 1]]])
    merged = class_mask(truth[:1], classes[:1])
    assert mbo(predicted, merged, n_slots=3, n_objects=3).item() == 1.0
    assert mbo(predicted, truth[:1], n_slots=3, n_objects=3).item() < 1.0


@pytest.mark.parametrize(
    ("truth", "classes", "said"),
    [
        (torch.zeros(2, 4, 4).long(), torch.zeros(3, 2).long(), "same batch"),
        (torch.full((4, 4), 3), torch.zeros(2).long(), "object 3, but classes has only 2"),
        (torch.ones(4, 4).long(), torch.tensor([-1]), "expected classes from 0"),
    ],
)
def test_classes_that_do_not_fit(truth, classes, said):
    with pytest.raises(ValueError, match=said):
        class_mask(truth, classes)


@pytest.mark.parametrize("kind", [AdjustedRandIndex, MeanBestOverlap, MeanIoU])
def test_a_dataset_is_the_mean_of_its_images(kind):
    predicted, truth = masks(3, 7, n_slots=4, n_objects=3)
    metric = kind(n_slots=4, n_objects=3)
    for part in (slice(0, 2), slice(2, 7)):
        metric.update(predicted[part], truth[part])
    values = metric.per_image(predicted, truth)
    assert metric.compute().item() == pytest.approx(values.nanmean().item(), abs=1e-9)


@pytest.mark.parametrize("metric", [mbo, miou, ari])
def test_labels_out_of_range_are_an_error(metric):
    good, bad = torch.zeros(4, 4).long(), torch.full((4, 4), 9)
    with pytest.raises(ValueError, match=f"{metric.__name__}: truth has values from 9 to 9"):
        metric(good, bad, n_slots=2, n_objects=2)
    with pytest.raises(ValueError, match=f"{metric.__name__}: predicted has values"):
        metric(bad, good, n_slots=2, n_objects=2)


def test_a_label_below_the_background_is_named() -> None:
    with pytest.raises(ValueError, match="truth has the label -1, expected 0 for the background"):
        class_mask(torch.tensor([[0, -1]]), torch.tensor([4]))
