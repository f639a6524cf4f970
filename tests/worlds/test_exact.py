"""Square roots are correctly rounded."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from slotmesh.worlds._exact import sqrt


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=64))
def test_correctly_rounded(numbers: list[float]) -> None:
    # Python's own is the processor's, which IEEE 754 requires to be correctly rounded.
    assert sqrt(torch.tensor(numbers, dtype=torch.float64)).tolist() == [
        math.sqrt(x) for x in numbers
    ]


def test_any_shape_and_dtype() -> None:
    for shape in ((), (0,), (2, 3)):
        assert sqrt(torch.ones(shape, dtype=torch.float64)).shape == shape
    assert sqrt(torch.full((3,), 4.0)).tolist() == [2.0, 2.0, 2.0]
    strided = torch.arange(12, dtype=torch.float64).view(3, 4).T
    assert sqrt(strided).tolist() == [[math.sqrt(x) for x in row] for row in strided.tolist()]
