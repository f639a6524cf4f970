"""Scenes side by side: whose colour a slot gets, and what is drawn where."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_rgb
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from slotmesh.report.sheet import MASK_COLOURS
from slotmesh.report.side_by_side import SegmentedScene, label_slots, side_by_side


def one_hot(seen: Tensor, m: int) -> Tensor:
    return (seen == torch.arange(m)[:, None, None]).float()


@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(1, 5))
def test_the_labels_fit_best(seed: int, m: int, n: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    truth = torch.randint(0, n, (5, 6), generator=rng)
    seen = torch.randint(0, m, (5, 6), generator=rng)
    labels = label_slots(one_hot(seen, m), truth)
    assert len(set(labels)) == m
    n = int(truth.max()) + 1

    def iou(slot: int, label: int) -> float:
        a, b = (seen == slot).numpy(), (truth == label).numpy()
        return float((a & b).sum() / max(1, (a | b).sum()))

    table = np.array([[iou(slot, label) for label in range(n)] for slot in range(m)])
    best = table[linear_sum_assignment(table, maximize=True)].sum()
    found = sum(iou(slot, label) for slot, label in enumerate(labels) if label < n)
    assert found == pytest.approx(best)
    assert sum(label < n for label in labels) == min(m, n)


def test_a_scene_that_is_understood_looks_like_the_truth() -> None:
    rng = torch.Generator().manual_seed(0)
    image = torch.randint(1, 256, (3, 32, 32), generator=rng, dtype=torch.uint8)
    truth = torch.zeros(32, 32, dtype=torch.int64)
    truth[4:12, 4:12], truth[20:28, 10:30] = 1, 2
    order = torch.tensor([2, 0, 3])
    right, wrong = one_hot(order[truth], 4), one_hot(torch.arange(32).expand(32, 32) % 4, 4)
    notes = {"SA": "worse", "SA-MESH": "better"}
    sheet = np.asarray(
        side_by_side([SegmentedScene(image, truth, {"SA": wrong, "SA-MESH": right}, notes)])
    )
    expected = np.array([to_rgb(colour) for colour in MASK_COLOURS])[truth.numpy()] * 255
    big = expected.round().astype(np.uint8).repeat(4, 0).repeat(4, 1)
    places = find(sheet, big)
    # The truth, and beside it, 8 pixels apart, the segments of the model that is right.
    assert [(x1 - x0, y1 - y0) for (x0, y0), (x1, y1) in [places]] == [(128 + 8, 0)]
    shown = image.movedim(0, -1).numpy()
    for label in (0, 1, 2):
        part = (shown * (truth.numpy() == label)[..., None]).repeat(4, 0).repeat(4, 1)
        [(x, y)] = find(sheet, part)
        frame = np.array(to_rgb(MASK_COLOURS[label])) * 255
        assert np.abs(sheet[y - 1, x] - frame).max() < 1
        assert np.abs(sheet[y + 128, x + 128] - frame).max() < 1


def find(sheet: np.ndarray, picture: np.ndarray) -> list[tuple[int, int]]:
    """Where a picture is on a sheet, as (x, y), from left to right."""
    h, w = picture.shape[:2]
    found: list[tuple[int, int]] = []
    for y, x in np.argwhere((sheet[: 1 - h, : 1 - w] == picture[0, 0]).all(-1)):
        if (sheet[y : y + h, x : x + w] == picture).all():
            found.append((int(x), int(y)))
    return sorted(found)
