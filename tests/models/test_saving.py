"""Every model comes back from disk with its transport, its start and its transition."""

import copy
import json

import numpy as np
import pytest
import torch

from slotmesh.models import ObjectDiscovery, PropertyPredictor, SetCopier, VideoObjectDiscovery
from slotmesh.nn import (
    FixedGaussian,
    FixedNoise,
    LearnedGaussian,
    LearnedNoise,
    LearnedObjective,
    LearnedSlots,
    Mesh,
    SharedSlot,
    Sinkhorn,
    Softmax,
    Transition,
    TransitionOutput,
)


def run(model, inputs, tensors):
    with torch.no_grad():
        return tensors(model(inputs, generator=torch.Generator().manual_seed(0), trace=True))


def assert_same(loaded, model, inputs, tensors):
    assert repr(loaded) == repr(model)
    state, expected = loaded.state_dict(), model.state_dict()
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[k], expected[k]) for k in state)
    ours, theirs = run(loaded, inputs, tensors), run(model, inputs, tensors)
    assert ours.keys() == theirs.keys()
    for key, value in ours.items():
        assert torch.equal(value, theirs[key]), key


def test_round_trip(name, transport, build, data, tensors, tmp_path, capfd):
    model = build(name, transport(), implicit=name != "properties")
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    assert capfd.readouterr() == ("", "")
    assert not loaded.training
    assert_same(loaded, model, data(name), tensors)


@pytest.mark.parametrize("init", [LearnedGaussian, FixedGaussian, LearnedSlots, SharedSlot])
def test_round_trip_of_starts(name, init, build, data, tensors, tmp_path):
    model = build(name, Mesh(objective=LearnedObjective(), grad="unroll"), init=init())
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    assert type(loaded.attention.init) is init
    assert_same(loaded, model, data(name), tensors)


@pytest.mark.parametrize(
    "make", [Transition, lambda: FixedNoise(0.3), lambda: LearnedNoise(prior_std=0.2)]
)
def test_round_trip_of_transitions(make, build, data, tensors, tmp_path):
    model = build("video", Softmax(), transition=make())
    model.save_pretrained(tmp_path)
    loaded = VideoObjectDiscovery.from_pretrained(tmp_path)
    assert loaded.transition.to_config() == model.transition.to_config()
    assert_same(loaded, model, data("video"), tensors)


def test_a_transition_of_ones_own_is_saved_and_loaded(build, data, tensors, tmp_path):
    class Drift(Transition):
        def __init__(self, *, factor: float = 1.0) -> None:
            super().__init__()
            self.factor = factor

        def build(self, slot_dim: int) -> None:
            self.drift = torch.nn.Parameter(torch.full((slot_dim,), self.factor))

        def forward(self, slots, generator=None):
            return TransitionOutput(slots + self.drift, slots.new_zeros(slots.shape[:-2]))

    model = build("video", Softmax(), transition=Drift(factor=2.0))
    model.save_pretrained(tmp_path)
    loaded = VideoObjectDiscovery.from_pretrained(tmp_path)
    assert isinstance(loaded.transition, Drift)
    assert_same(loaded, model, data("video"), tensors)


def test_the_configuration_says_what_was_left_at_its_default(tmp_path):
    VideoObjectDiscovery(transition=LearnedNoise()).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config == {
        "n_slots": 8,
        "transport": Mesh(grad="implicit").to_config(),
        "n_iters": 3,
        "resolution": [64, 64],
        "channels": 32,
        "slot_dim": 64,
        "mlp_dim": 128,
        "init": {"kind": "LearnedGaussian"},
        "implicit": False,
        "transition": {"kind": "LearnedNoise", "hidden_dim": 128, "prior_std": 0.1},
    }
    PropertyPredictor().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["init"] == {"kind": "FixedGaussian"}
    assert (config["strides"], config["n_properties"]) == ([1, 2, 2, 1], 19)
    VideoObjectDiscovery().save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["transition"] == {
        "kind": "Transition"
    }
    page = (tmp_path / "README.md").read_text()
    assert "library_name: slotmesh" in page
    assert "hub" not in page.lower()


def test_settings_can_be_changed_while_loading(build, tmp_path):
    model = build("discovery", Softmax())
    model.save_pretrained(tmp_path)
    loaded = ObjectDiscovery.from_pretrained(tmp_path, n_iters=5, n_slots=4)
    assert (loaded.attention.n_iters, loaded.attention.n_slots) == (5, 4)
    assert torch.equal(loaded.decoder.first.weight, model.decoder.first.weight)


def test_a_model_in_channels_last_is_saved_too(build, data, tensors, tmp_path):
    model = build("discovery", Softmax()).to(memory_format=torch.channels_last)
    model.save_pretrained(tmp_path)
    loaded = ObjectDiscovery.from_pretrained(tmp_path).to(memory_format=torch.channels_last)
    assert_same(loaded, model, data("discovery"), tensors)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"transition": {"kind": "Mesh"}}, r"transition is Mesh\([\s\S]*expected an object such"),
        ({"transition": {"kind": "Nowhere"}}, r"kind 'Nowhere', expected one of"),
        ({"resolution": 64}, r"resolution is 64, expected a height and a width"),
        ({"resolution": [64, "x"]}, r"resolution is \[64, 'x'\]"),
        ({"n_slots": 0}, r"n_slots is 0, expected a whole number"),
    ],
    ids=str,
)
def test_a_configuration_that_makes_no_sense_is_named(changes, message, build, tmp_path):
    build("video").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(ValueError, match=message) as error:
        VideoObjectDiscovery.from_pretrained(tmp_path)
    assert str(tmp_path / "config.json") in str(error.value)


def test_weights_of_another_size_are_named(build, tmp_path):
    build("discovery").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"model.safetensors does not fit [\s\S]*size mismatch"):
        ObjectDiscovery.from_pretrained(tmp_path, channels=5)


def test_a_model_can_be_copied(name, build, data, tensors):
    model = build(name)
    assert_same(copy.deepcopy(model), model, data(name), tensors)


def test_a_part_has_one_owner():
    transport = Mesh()
    SetCopier(transport=transport)
    with pytest.raises(ValueError, match=r"Mesh: this object is already part of a module"):
        SetCopier(transport=transport)


@pytest.mark.parametrize("kind", [ObjectDiscovery, VideoObjectDiscovery])
def test_which_gradient_mesh_has_by_default_depends_on_that_of_slots(kind):
    def grad(*args, **options):
        return kind(2, *args, resolution=(8, 8), **options).attention.transport.grad

    assert (grad(), grad(implicit=True)) == ("implicit", "straight_through")
    assert grad(Mesh()) == "straight_through"


@pytest.mark.parametrize("assign", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_model_from_the_meta_device_computes_the_same(name, assign, dtype, build, data, tensors):
    model = build(name, Softmax()).to(dtype).eval()
    with torch.device("meta"):
        empty = build(name, Softmax()).to(dtype).eval()
    if not assign:
        empty.to_empty(device="cpu")
        with torch.no_grad():
            # Whatever the memory held.
            for value in (*empty.parameters(), *empty.buffers()):
                value.fill_(7)
    keys = [*empty.state_dict()]
    empty.load_state_dict(model.state_dict(), assign=assign)
    assert [*empty.state_dict()] == keys == [*model.state_dict()]
    inputs = data(name, dtype)
    expected = tensors(model(inputs, seed=1))
    for key, value in tensors(empty(inputs, seed=1)).items():
        assert torch.equal(value, expected[key]), key


def test_settings_that_were_changed_are_saved(build, data, tensors, tmp_path):
    model = build("video", Sinkhorn(n_iters=2), transition=FixedNoise(np.float32(0.25)))
    model.attention.n_iters = 4
    model.attention.transport.temperature = 0.5
    model.transition.std = 0.125
    model.save_pretrained(tmp_path)
    loaded = VideoObjectDiscovery.from_pretrained(tmp_path)
    assert loaded.transition.std == 0.125
    assert_same(loaded, model, data("video"), tensors)
    copier = SetCopier(6, np.int64(3), Softmax())
    copier.rescale = True
    copier.save_pretrained(tmp_path)
    assert SetCopier.from_pretrained(tmp_path).rescale


def test_a_seed_of_numpy_is_a_seed(build, data):
    model = build("copier", Softmax())
    found = model(data("copier"), seed=np.int64(3)).slots
    assert torch.equal(found, model(data("copier"), seed=3).slots)
