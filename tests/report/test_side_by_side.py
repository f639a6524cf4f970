"""Scenes side by side: whose colour a slot gets, and what is drawn where."""

import base64
import io

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_rgb
from PIL import Image
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
    image = torch.randint(1, 256, (3, 40, 40), generator=rng, dtype=torch.uint8)
    truth = torch.zeros(40, 40, dtype=torch.int64)
    truth[4:12, 4:12], truth[20:28, 10:30] = 1, 2
    order = torch.tensor([2, 0, 3])
    right, wrong = one_hot(order[truth], 4), one_hot(torch.arange(40).expand(40, 40) % 4, 4)
    notes = {"SA": "worse", "SA-MESH": "better"}
    masks = {"SA": wrong, "SA-MESH": right}
    found = side_by_side(SegmentedScene(image, truth, masks, notes))
    assert [(line.name, line.note) for line in found.lines] == list(notes.items())
    assert [tile.caption for tile in found.tiles] == ["image", "truth"]
    shown = image.movedim(0, -1).numpy()
    colours = (np.array([to_rgb(colour) for colour in MASK_COLOURS]) * 255).round()
    expected = colours[truth.numpy()].astype(np.uint8)
    assert (read(found.tiles[0].uri) == shown).all()
    assert (read(found.tiles[1].uri) == expected).all()
    assert found.matrix is not None
    sheet = read(found.matrix.uri)
    # Cells of 40 pixels and a gap of 2 around each; the second row is right.
    cells = [sheet[44:, 44 * k : 44 * (k + 1)] for k in range(5)]
    assert (cells[0][2:-2, 2:-2, :3] == expected).all()
    assert cells[0][0, 0, 3] == 0
    for cell, label in zip(cells[1:], (1, 2, 3, 0), strict=True):
        part = shown * (truth.numpy() == label)[..., None]
        assert (cell[2:-2, 2:-2, :3] == part).all()
        assert (cell[1, 1, :3] == colours[label]).all()
        assert cell[0, 0, 3] == 0


def read(uri: str) -> np.ndarray:
    """The pixels of a picture on a page."""
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))))
