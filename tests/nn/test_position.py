"""Position embedding: four ramps through one linear layer, channels first."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from slotmesh.nn import PositionEmbedding

sizes = st.integers(1, 9)


@given(sizes, sizes)
def test_the_embedding_is_linear_in_the_position(height, width):
    module = PositionEmbedding(3, (height, width)).double()
    weight, bias = (p.detach().numpy() for p in (module.project.weight, module.project.bias))
    y = np.linspace(0, 1, height)[:, None] + np.zeros((1, width))
    x = np.linspace(0, 1, width)[None, :] + np.zeros((height, 1))
    expected = np.einsum("ck,khw->chw", weight, np.stack([x, 1 - x, y, 1 - y]))
    expected = expected + bias[:, None, None]
    # The ramps are made in float32.
    np.testing.assert_allclose(module.embedding().detach().numpy(), expected, rtol=0, atol=1e-6)


def test_it_is_added_to_any_batch_of_grids():
    module = PositionEmbedding(4, (3, 5))
    grid = torch.randn(2, 6, 4, 3, 5)
    out = module(grid)
    torch.testing.assert_close(out - grid, module.embedding().expand_as(grid))
    assert torch.equal(module(grid[1, 2]), out[1, 2])


def test_swapping_a_ramp_and_its_complement_mirrors_the_embedding():
    module = PositionEmbedding(4, (3, 5))
    before = module.embedding().detach()
    with torch.no_grad():
        module.project.weight.copy_(module.project.weight[:, [1, 0, 2, 3]])
    torch.testing.assert_close(module.embedding(), before.flip(-1))
    assert not torch.allclose(before, before.flip(-1))


def test_only_the_linear_layer_is_learned_and_saved():
    module = PositionEmbedding(7, (3, 5))
    assert set(module.state_dict()) == {"project.weight", "project.bias"}
    assert sum(p.numel() for p in module.parameters()) == 4 * 7 + 7
    assert "resolution=(3, 5)" in repr(module)


@pytest.mark.parametrize("shape", [(4, 5, 3), (2, 3, 5, 4), (3, 5), (4, 3, 6)])
def test_a_grid_of_another_size_is_named(shape):
    with pytest.raises(ValueError, match=r"grid has shape .* expected \(\.\.\., 4, 3, 5\)"):
        PositionEmbedding(4, (3, 5))(torch.zeros(shape))


@pytest.mark.parametrize("resolution", [64, (64,), (64, 0), (64, 64, 3), (64, 64.0), "64", True])
def test_bad_resolutions_are_named(resolution):
    with pytest.raises(ValueError, match=r"PositionEmbedding: resolution is .* height and a width"):
        PositionEmbedding(4, resolution)


def test_bad_size_is_named():
    with pytest.raises(ValueError, match=r"PositionEmbedding: dim is 0, expected a whole number"):
        PositionEmbedding(0, (3, 5))
