from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotmesh.readers._rle import MalformedMaskError, decode


def slow_encode(mask: np.ndarray) -> str:
    """Column by column, pixel by pixel, then number by number, as maskApi.c describes it."""
    runs, value, length = [], 0, 0
    for x in range(mask.shape[1]):
        for y in range(mask.shape[0]):
            if mask[y, x] != value:
                runs.append(length)
                value, length = 1 - value, 0
            length += 1
    runs.append(length)
    text = ""
    for i, run in enumerate(runs):
        left = run - runs[i - 2] if i > 2 else run
        more = True
        while more:
            digit = left & 31
            left >>= 5
            more = left != -1 if digit & 16 else left != 0
            text += chr((digit | 32 if more else digit) + 48)
    return text


masks = st.tuples(st.integers(1, 12), st.integers(1, 12)).flatmap(
    lambda s: st.lists(st.integers(0, 1), min_size=s[0] * s[1], max_size=s[0] * s[1]).map(
        lambda bits: np.array(bits, dtype=np.uint8).reshape(s)
    )
)


@settings(max_examples=150, deadline=None)
@given(masks)
def test_decoding_undoes_encoding(mask: np.ndarray) -> None:
    found = decode(slow_encode(mask), mask.shape)
    assert found.dtype == np.uint8
    assert (found == mask).all()
    assert (decode(slow_encode(mask).encode(), mask.shape) == mask).all()


def test_large_runs_take_several_characters() -> None:
    mask = np.zeros((320, 480), dtype=np.uint8)
    mask[100:180, 200:300] = 1
    mask[5, 7] = 1
    assert (decode(slow_encode(mask), (320, 480)) == mask).all()


@pytest.mark.parametrize(
    ("counts", "size", "expected"),
    [
        ("9", (3, 3), np.zeros((3, 3))),
        ("09", (3, 3), np.ones((3, 3))),
        # 6 zeros, one 1, then -7 + 7... down the columns: 1 zero, 2 ones, 1 zero in a 2 x 2.
        ("121", (2, 2), np.array([[0, 1], [1, 0]])),
        # Runs 1, 1, 1, 1: the fourth is stored as the difference to the second, 0.
        ("1110", (2, 2), np.array([[0, 0], [1, 1]])),
        # A difference below 0: runs 0, 2, 1, 1 are stored as 0, 2, 1, -1 = "O".
        ("021O", (2, 2), np.array([[1, 0], [1, 1]])),
    ],
)
def test_strings_worked_out_by_hand(counts: str, size: tuple[int, int], expected) -> None:
    assert (decode(counts, size) == expected).all()


@pytest.mark.parametrize(
    ("counts", "reason"),
    [
        ("8", "8 pixels, expected 3 x 3 = 9"),
        ("0:", "10 pixels"),
        ("", "0 pixels"),
        ("0O", "not a whole number"),
        ("9P", "cut short"),
        ("9 ", "cannot be part"),
        ("9é", "cannot be part"),
        ("\ud800", "cannot be part"),
        ("o" * 13 + "0", "twelve"),
        ([4, "5"], "not a whole number"),
        ([10, -1], "not a whole number"),
        ([9.0], "not a whole number"),
    ],
)
def test_wrong_strings(counts, reason: str) -> None:
    with pytest.raises(MalformedMaskError, match=reason):
        decode(counts, (3, 3))


@settings(max_examples=300, deadline=60_000)
@given(st.text(max_size=40) | st.binary(max_size=40) | st.lists(st.integers()))
def test_noise_is_refused_or_decoded(counts) -> None:
    with suppress(MalformedMaskError):
        assert decode(counts, (4, 5)).shape == (4, 5)
