"""Where the way to a lamp is deepest in an object: against a dense search."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slotmesh.worlds.render.shadows import _PAST as PAST
from slotmesh.worlds.render.shadows import lamp_share

# Of a point (..., 3): how far it is outside, 0 on the (sharp-edged) surface.
OUTSIDE = (
    lambda p: np.abs(p).max(-1) - 1,
    lambda p: np.linalg.norm(p, axis=-1) - 1,
    lambda p: np.maximum(np.hypot(p[..., 0], p[..., 1]), np.abs(p[..., 2])) - 1,
)


def vector(x: np.ndarray) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    a, b, c = torch.from_numpy(x.astype(np.float32)).unbind(-1)
    return a, b, c


@pytest.mark.parametrize("shape", range(3))
@given(st.integers(0, 2**32 - 1))
def test_the_deepest_place_is_found(shape: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    o = rng.uniform(-3, 3, (40, 3))
    lamp = rng.normal(size=(40, 3)) * rng.uniform(3, 30)
    s, outside = (x.numpy() for x in PAST[shape](vector(o), vector(lamp - o)))
    assert ((s >= 0) & (s <= 1)).all()
    every = np.linspace(0, 1, 4001)[:, None, None]
    around = OUTSIDE[shape](o + every * (lamp - o))
    np.testing.assert_allclose(
        outside, OUTSIDE[shape](o + s[:, None] * (lamp - o)), rtol=1e-4, atol=1e-4
    )
    # What is far from the object leaves the lamp free in any case.
    close = around.min(0) < 0.5
    assert (outside - around.min(0))[close].max(initial=0) < 0.03


def test_shares_of_a_lamp_are_those_of_its_disc() -> None:
    """From the middle below a ball, a lamp far above: hidden, free, and half at the rim."""
    x = torch.tensor([0.0, 1.0, 4.0])
    o = (x, torch.zeros(3), torch.full((3,), -2.0))
    lamp = (x, torch.zeros(3), torch.full((3,), 100.0))
    share = lamp_share(1, o, lamp, torch.tensor(1.0), torch.tensor(3.0))
    torch.testing.assert_close(share, torch.tensor([0.0, 0.5, 1.0]), atol=1e-6, rtol=0)
