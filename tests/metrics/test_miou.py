"""FG-mIoU against scipy, and what it matches."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from slotmesh.metrics import fg_miou, match_objects

from ._data import masks, overlaps


@given(
    seed=st.integers(0, 10**6),
    n_slots=st.integers(1, 6),
    n_objects=st.integers(1, 6),
    noise=st.sampled_from([0.0, 0.3, 1.0]),
    hide=st.booleans(),
)
def test_is_the_best_match_of_scipy(seed, n_slots, n_objects, noise, hide):
    """Also with more objects than slots, and with rows that do not count."""
    predicted, truth = masks(seed, 3, n_slots=n_slots, n_objects=n_objects, noise=noise)
    rng = torch.Generator().manual_seed(seed)
    present = torch.rand(3, n_objects, generator=rng) < 0.7 if hide else None
    values = fg_miou(predicted, truth, n_slots=n_slots, n_objects=n_objects, present=present)
    for i in range(3):
        rows = [
            k
            for k in range(n_objects)
            if (truth[i] == k + 1).any() and (present is None or present[i, k])
        ]
        if not rows:
            assert values[i].isnan()
            continue
        iou = overlaps(predicted[i].numpy(), truth[i].numpy(), n_slots, n_objects)[rows]
        row, column = linear_sum_assignment(iou, maximize=True)
        assert values[i].item() == pytest.approx(iou[row, column].sum() / len(rows), abs=1e-12)


@given(seed=st.integers(0, 10**6), n_slots=st.integers(1, 6))
def test_the_matching_is_one_to_one_and_gives_the_value(seed, n_slots):
    predicted, truth = masks(seed, 3, n_slots=n_slots, n_objects=4)
    value, match = fg_miou(predicted, truth, n_slots=n_slots, n_objects=4, return_matching=True)
    assert torch.equal((match.iou.sum(-1) / match.real.sum(-1)).nan_to_num(9), value.nan_to_num(9))
    for i in range(3):
        slots = match.slot[i][match.slot[i] >= 0].tolist()
        assert len(slots) == len(set(slots)) == min(n_slots, int(match.real[i].sum()))
        iou = overlaps(predicted[i].numpy(), truth[i].numpy(), n_slots, 4)
        for k in range(4):
            slot = int(match.slot[i, k])
            assert slot < 0 or match.real[i, k]
            assert match.iou[i, k].item() == pytest.approx(iou[k, slot] if slot >= 0 else 0.0)
            assert bool(match.real[i, k]) == bool((truth[i] == k + 1).any())


def test_objects_without_a_slot_count_nothing():
    truth = torch.tensor([[1, 1, 2, 2, 3, 3]])
    predicted = torch.zeros(1, 6, dtype=torch.int64)
    value, match = fg_miou(predicted, truth, n_slots=1, n_objects=5, return_matching=True)
    assert value.item() == pytest.approx(1 / 3 / 3)
    assert (match.slot >= 0).sum() == 1


def test_all_pixels_of_a_slot_count():
    """Unlike FG-ARI, it notices that a slot takes background."""
    truth = torch.tensor([[0, 0, 1, 1]])
    assert fg_miou(torch.tensor([[0, 0, 1, 1]]), truth, n_slots=2, n_objects=1) == 1.0
    assert fg_miou(torch.tensor([[1, 1, 1, 1]]), truth, n_slots=2, n_objects=1) == 0.5


def test_padding_takes_no_slot_of_an_object():
    """Rows that do not count come first, have pixels, and there are fewer slots than rows."""
    truth = torch.tensor([[1, 1, 2, 2, 3]])
    predicted = torch.tensor([[0, 0, 1, 1, 1]])
    present = torch.tensor([False, True, True])
    match = match_objects(predicted, truth, n_slots=2, n_objects=3, present=present)
    assert match.slot.tolist() == [-1, 1, 0]
    assert match.real.tolist() == [False, True, True]


def test_no_object_is_undefined():
    truth = torch.tensor([[[0, 0]], [[1, 1]], [[1, 1]]])
    present = torch.tensor([[True], [False], [True]])
    value = fg_miou(torch.zeros_like(truth), truth, n_slots=2, n_objects=1, present=present)
    np.testing.assert_equal(value.numpy(), [np.nan, np.nan, 1.0])


@given(seed=st.integers(0, 10**6))
def test_names_of_slots_and_objects_do_not_matter(seed):
    predicted, truth = masks(seed, 4)
    value = fg_miou(predicted, truth, n_slots=4, n_objects=3)
    rng = torch.Generator().manual_seed(seed)
    slots = torch.randperm(4, generator=rng)[predicted]
    objects = torch.cat((torch.zeros(1).long(), 1 + torch.randperm(3, generator=rng)))
    renamed = fg_miou(slots, objects[truth.long()], n_slots=4, n_objects=3)
    torch.testing.assert_close(value, renamed, rtol=0, atol=1e-12, equal_nan=True)
