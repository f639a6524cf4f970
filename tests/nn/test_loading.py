"""What is kept of a module that was changed, and what loading says about what does not fit."""

import copy

import numpy as np
import pytest
import torch

from slotmesh import SlotAttention
from slotmesh.nn import EMD, Mesh, Sinkhorn, SlotSimilarity, Softmax


@pytest.fixture
def saved(tmp_path):
    SlotAttention(6, 5, 3, Mesh()).save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize("place", ["cpu", torch.device("cpu")])
def test_a_device_is_a_place_too(place, saved):
    assert SlotAttention.from_pretrained(saved, map_location=place).n_slots == 3
    for wrong in ("nowhere", {}):
        with pytest.raises(
            ValueError, match=r"map_location is .*, expected a device such as 'cpu'"
        ):
            SlotAttention.from_pretrained(saved, map_location=wrong)


def test_an_unknown_argument_is_named(saved):
    with pytest.raises(
        ValueError, match=r"got n_slotz, expected an argument of SlotAttention \(inp"
    ):
        SlotAttention.from_pretrained(saved, n_slotz=3)
    with pytest.raises(ValueError, match=r"config.json with n_slots as given does .*n_slots is 0"):
        SlotAttention.from_pretrained(saved, n_slots=0)


def test_without_strict_only_what_fits_is_loaded(tmp_path):
    module = SlotAttention(6, 5, 3, Mesh())
    module.save_pretrained(tmp_path)
    with pytest.warns(UserWarning, match=r"left out: .*mlp.1.weight.*not loaded: .*mlp.1.weight"):
        wide = SlotAttention.from_pretrained(tmp_path, mlp_dim=9, strict=False)
    assert torch.equal(wide.to_key.weight, module.to_key.weight)
    assert wide.mlp[1].weight.shape == (9, 5)
    with pytest.warns(UserWarning, match=r"left out: transport\.[^;]*$"):
        SlotAttention.from_pretrained(tmp_path, transport=Softmax(), strict=False)


def test_settings_that_were_changed_are_saved(tmp_path):
    module = SlotAttention(6, 5, 3, Sinkhorn())
    module.n_iters = np.int64(9)
    module.transport.temperature = 0.5
    module.save_pretrained(tmp_path)
    loaded = SlotAttention.from_pretrained(tmp_path)
    assert (loaded.n_iters, loaded.transport.temperature) == (9, 0.5)
    inputs = torch.randn(2, 7, 6)
    assert torch.equal(loaded(inputs, noise=1).slots, module(inputs, noise=1).slots)
    # Changed back, and in a copy.
    other = copy.deepcopy(module)
    module.n_iters, other.n_iters = 3, 4
    for one in (module, other):
        one.save_pretrained(tmp_path)
        assert SlotAttention.from_pretrained(tmp_path).n_iters == one.n_iters


class Doubled(SlotAttention):
    def __init__(self, dim, n_iters):
        super().__init__(dim, dim, 2, Softmax(), 2 * n_iters)


def test_an_argument_of_ones_own_class_is_saved_as_it_was_given(tmp_path):
    Doubled(4, 1).save_pretrained(tmp_path)
    assert Doubled.from_pretrained(tmp_path).n_iters == 2


@pytest.mark.parametrize(
    "make",
    [
        lambda: Softmax(eps=np.float32(1e-3)),
        lambda: EMD(approximate=np.float32(0.5)),
        lambda: Sinkhorn(share=np.float32(0.5)),
        lambda: Sinkhorn(penalty=(np.float32(0.5), 2.0)),
        lambda: Mesh(grad="unroll", objective=SlotSimilarity(alpha=np.float32(0.5))),
    ],
)
def test_numbers_of_numpy_are_saved(make, tmp_path):
    count = np.int64
    SlotAttention(count(6), count(5), count(3), make(), n_iters=count(2)).save_pretrained(tmp_path)
    loaded = SlotAttention.from_pretrained(tmp_path)
    assert (loaded.n_slots, loaded.n_iters) == (3, 2)
    assert loaded.transport.to_config() == make().to_config()
