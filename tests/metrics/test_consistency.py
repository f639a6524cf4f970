"""Temporal consistency against all matchings tried out, and its corner cases."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from slotmesh.metrics import TemporalConsistency, temporal_consistency
from slotmesh.worlds import Clevrer

from ._data import best_matchings, masks, overlaps


def expected(predicted, truth, present, n_slots):
    """Of one video; rejects the example where the match is not the only best one."""
    frames = []
    for slots, objects, there in zip(predicted, truth, present, strict=True):
        iou = overlaps(slots, objects, n_slots, len(there))
        rows = [k for k in range(len(there)) if there[k] and (objects == k + 1).any()]
        if not rows:
            frames.append({})
            continue
        found = best_matchings(iou, rows)
        assume(len(found) == 1)
        frames.append(found[0])
    same = shared = 0
    for now, then in pairwise(frames):
        for k in now.keys() & then.keys():
            shared += 1
            same += now[k] == then[k] >= 0
    return same / shared if shared else np.nan


@given(
    seed=st.integers(0, 10**6),
    n_frames=st.integers(2, 3),
    n_slots=st.integers(1, 4),
    noise=st.sampled_from([0.1, 0.4]),
)
def test_is_the_share_of_objects_that_keep_their_slot(seed, n_frames, n_slots, noise):
    predicted, truth = masks(seed, 2, n_frames, n_slots=n_slots, noise=noise)
    present = torch.rand(2, n_frames, 3, generator=torch.Generator().manual_seed(seed)) < 0.8
    values = temporal_consistency(predicted, truth, present, n_slots=n_slots)
    for i in range(2):
        arrays = (x[i].numpy() for x in (predicted, truth, present))
        np.testing.assert_allclose(values[i].numpy(), expected(*arrays, n_slots))


def video(*frames: tuple[int, ...]) -> torch.Tensor:
    return torch.tensor(frames).unsqueeze(-2)


def test_only_objects_in_both_frames_count():
    """Object 1 keeps its slot, 2 changes it, 3 comes and 4 goes."""
    truth = video((1, 1, 2, 2, 4, 4), (1, 1, 2, 2, 3, 3))
    predicted = video((0, 0, 1, 1, 2, 2), (0, 0, 3, 3, 2, 2))
    present = torch.tensor([[True, True, False, True], [True, True, True, False]])
    assert temporal_consistency(predicted, truth, present, n_slots=4) == 0.5
    present[1, 1] = False
    assert temporal_consistency(predicted, truth, present, n_slots=4) == 1.0
    present[0, 0] = False
    assert temporal_consistency(predicted, truth, present, n_slots=4).isnan()


def test_an_object_that_shows_no_pixel_does_not_count():
    truth, predicted = video((1, 1, 2, 2), (1, 1, 1, 1)), video((0, 0, 1, 1), (0, 0, 0, 0))
    assert temporal_consistency(predicted, truth, torch.ones(2, 2).bool(), n_slots=2) == 1.0


def test_a_slot_that_shares_no_pixel_holds_an_object_only_if_asked():
    """Both objects are in slot 3: one is left with a free slot, the same in both frames."""
    truth = video((1, 1, 1, 2, 2), (1, 1, 1, 2, 2))
    predicted = torch.full_like(truth, 3)
    present = torch.ones(2, 2).bool()
    assert temporal_consistency(predicted, truth, present, n_slots=4) == 0.5
    value = temporal_consistency(predicted, truth, present, n_slots=4, zero_overlap=True)
    assert value == 1.0
    # Objects that have no slot at all are never held by the same one.
    none = temporal_consistency(predicted % 1, truth, present, n_slots=1, zero_overlap=True)
    assert none == 0.5


def test_a_perfect_model_of_a_real_video_is_consistent_and_a_shuffled_one_is_not():
    sample = Clevrer(frames=(0, 16, 40), size=32).sample(range(4))
    metric = TemporalConsistency(n_slots=8)
    metric.update(sample.mask, sample.mask, sample.present)
    assert metric.compute() == 1.0
    shuffled = sample.mask.clone()
    shuffled[:, 1] = (shuffled[:, 1] + 1) % 8
    metric.update(shuffled, sample.mask, sample.present)
    assert metric.compute() == 0.5


@given(seed=st.integers(0, 10**6))
def test_names_of_slots_and_objects_do_not_matter(seed):
    predicted, truth = masks(seed, 1, 2, noise=0.2)
    present = torch.ones(1, 2, 3).bool()
    expected(predicted[0].numpy(), truth[0].numpy(), present[0].numpy(), 4)
    value = temporal_consistency(predicted, truth, present, n_slots=4)
    rng = torch.Generator().manual_seed(seed)
    slots = torch.randperm(4, generator=rng)[predicted]
    objects = torch.cat((torch.zeros(1).long(), 1 + torch.randperm(3, generator=rng)))
    renamed = temporal_consistency(slots, objects[truth.long()], present, n_slots=4)
    torch.testing.assert_close(value, renamed, equal_nan=True)


def test_one_frame_is_no_video():
    frames = torch.ones(1, 1, 2, 2).long()
    with pytest.raises(ValueError, match="at least two frames"):
        temporal_consistency(frames, frames, torch.ones(1, 1, 1).bool(), n_slots=2)
