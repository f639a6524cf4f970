"""FG-ARI against scikit-learn, its degenerate cases and its invariances."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score

from slotmesh.metrics import ForegroundARI, fg_ari

from ._data import masks


def line(*values: int) -> torch.Tensor:
    return torch.tensor([values])


@given(
    seed=st.integers(0, 10**6),
    n_slots=st.integers(1, 7),
    n_objects=st.integers(1, 6),
    size=st.integers(3, 12),
    noise=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
)
def test_is_that_of_scikit_learn(seed, n_slots, n_objects, size, noise):
    predicted, truth = masks(
        seed, 2, 3, n_slots=n_slots, n_objects=n_objects, size=size, noise=noise
    )
    values = fg_ari(predicted, truth, n_slots=n_slots, n_objects=n_objects, empty=1.0)
    assert values.shape == (2, 3)
    assert values.dtype == torch.float64
    for i in np.ndindex(2, 3):
        seen = truth[i] > 0
        expected = adjusted_rand_score(truth[i][seen].numpy(), predicted[i][seen].numpy())
        assert values[i].item() == pytest.approx(expected, abs=1e-12)


@given(labels=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=6))
def test_is_that_of_scikit_learn_for_few_pixels(labels):
    slots, objects = (line(*column) for column in zip(*labels, strict=True))
    value = fg_ari(slots, objects, n_slots=3, n_objects=2, empty=1.0)
    seen = objects > 0
    expected = adjusted_rand_score(objects[seen].numpy(), slots[seen].numpy())
    assert value.item() == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("slots", "objects", "expected"),
    [
        pytest.param((0, 0, 0), (1, 1, 1), 1.0, id="one object in one slot"),
        pytest.param((0, 1, 1), (1, 1, 1), 0.0, id="one object split"),
        pytest.param((0, 0, 0), (1, 2, 2), 0.0, id="two objects in one slot"),
        pytest.param((0, 1, 1), (2, 1, 1), 1.0, id="two objects in two slots"),
        pytest.param((0, 1, 2), (0, 1, 1), 0.0, id="the background does not count"),
        pytest.param((2, 0, 1), (0, 0, 2), 1.0, id="a single pixel"),
        pytest.param((0, 1, 2), (1, 2, 3), 1.0, id="a pixel each"),
    ],
)
def test_degenerate_images(slots, objects, expected):
    assert fg_ari(line(*slots), line(*objects), n_slots=3, n_objects=3) == expected


def test_an_empty_foreground_is_undefined_or_what_the_caller_says():
    empty = torch.zeros(2, 4, 4, dtype=torch.uint8)
    slots = torch.arange(32).reshape(2, 4, 4) % 3
    assert fg_ari(slots, empty, n_slots=3, n_objects=2).isnan().all()
    assert fg_ari(slots, empty, n_slots=3, n_objects=2, empty=1.0).tolist() == [1.0, 1.0]


@pytest.mark.parametrize(("empty", "mean"), [(float("nan"), 0.0), (1.0, 2 / 3), (0.5, 1 / 3)])
def test_the_class_counts_empty_images_as_told(empty, mean):
    metric = ForegroundARI(n_slots=3, n_objects=2, empty=empty)
    slots = torch.tensor([[[0, 1]], [[0, 1]], [[2, 1]]])
    metric.update(slots, torch.tensor([[[0, 0]], [[1, 1]], [[0, 0]]]))
    assert metric.compute().item() == pytest.approx(mean, abs=1e-9)
    assert metric.n_undefined == 2
    each = metric.per_image(slots, torch.zeros_like(slots))
    np.testing.assert_equal(each.numpy(), np.full(3, empty))


@given(seed=st.integers(0, 10**6))
def test_names_of_slots_and_objects_do_not_matter(seed):
    predicted, truth = masks(seed, 4)
    value = fg_ari(predicted, truth, n_slots=4, n_objects=3)
    rng = torch.Generator().manual_seed(seed)
    slots = torch.randperm(4, generator=rng)[predicted]
    objects = torch.cat((torch.zeros(1).long(), 1 + torch.randperm(3, generator=rng)))
    renamed = fg_ari(slots, objects[truth.long()], n_slots=4, n_objects=3)
    assert torch.equal(value.nan_to_num(9), renamed.nan_to_num(9))


def test_the_background_does_not_count():
    predicted, truth = masks(0, 4)
    value = fg_ari(predicted, truth, n_slots=4, n_objects=3)
    elsewhere = torch.where(truth == 0, (predicted + 1) % 4, predicted)
    assert torch.equal(fg_ari(elsewhere, truth, n_slots=4, n_objects=3), value)


def test_large_images_do_not_overflow():
    """At 3 megapixels pairs of pairs leave int64."""
    truth = torch.ones(1500, 2000, dtype=torch.uint8)
    truth[:, 1000:] = 2
    predicted = truth.long() % 2
    predicted[:, 900:1000] = 0
    value = fg_ari(predicted, truth, n_slots=2, n_objects=2)
    expected = adjusted_rand_score(truth.flatten().numpy(), predicted.flatten().numpy())
    assert value.item() == pytest.approx(expected, abs=1e-9)
