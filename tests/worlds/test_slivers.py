"""Objects that show too few pixels become background."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from slotmesh.worlds import Clevr, Clevrer, ClevrTex
from slotmesh.worlds._slivers import drop_slivers, visible_pixels

N = 4
masks = arrays.arrays(
    np.uint8,
    arrays.array_shapes(min_dims=3, max_dims=4, max_side=6),
    elements=st.integers(0, N),
)


@given(masks, st.integers(1, 5))
def test_only_objects_with_enough_pixels_are_left(mask: np.ndarray, least: int) -> None:
    found, present, visible = drop_slivers(torch.from_numpy(mask), N, least)
    assert found.dtype == torch.uint8
    expected = mask.copy()
    for place in np.ndindex(mask.shape[:-2]):
        counts = np.bincount(mask[place].ravel(), minlength=N + 1)
        assert visible_pixels(torch.from_numpy(mask), N)[place].tolist() == counts[1:].tolist()
        for number in range(1, N + 1):
            kept = counts[number] >= least
            assert present[place][number - 1] == kept
            assert visible[place][number - 1] == kept * counts[number]
            if not kept:
                expected[place][mask[place] == number] = 0
    assert np.array_equal(found.numpy(), expected)


def test_the_minimum_grows_with_the_image() -> None:
    for kind in (Clevr, ClevrTex, Clevrer):
        least = [kind(size=size).min_pixels for size in (1, 32, 64, 100, 128)]
        assert least == [1, 1, 4, 10, 16]
