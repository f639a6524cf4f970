"""Saving and loading: JSON and safetensors, strict, silent, and never a pickle."""

import copy
import json
import pickle
from pathlib import Path

import pytest
import torch
from huggingface_hub import hub_mixin
from huggingface_hub.errors import EntryNotFoundError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from slotmesh import SlotAttention
from slotmesh.nn import (
    EMD,
    FixedGaussian,
    LearnedGaussian,
    LearnedObjective,
    LearnedSlots,
    Mesh,
    SharedSlot,
    Sinkhorn,
    SlotSimilarity,
    SlotTransport,
    Softmax,
)
from slotmesh.nn.part import Part

TRANSPORTS = [
    lambda: Softmax(eps=1e-6),
    lambda: Sinkhorn(cost="cosine", cost_scale=6.0, mass=18.0, grad="implicit"),
    lambda: EMD(combine="straight_through", marginals="uniform"),
    lambda: EMD(combine="mean", approximate=0.05),
    lambda: Mesh(lr=5.0, potentials="reuse"),
    lambda: Mesh(objective=LearnedObjective(hidden_dim=4), grad="unroll", n_steps=1),
    lambda: Mesh(objective=SlotSimilarity(alpha=0.5, trainable=False), step=0.1, n_steps=1),
]
INITIALIZERS = [LearnedGaussian, FixedGaussian, LearnedSlots, SharedSlot]


def run(module, inputs):
    with torch.no_grad():
        out = module(inputs, generator=torch.Generator().manual_seed(0))
    return out.slots, out.attention


@pytest.mark.parametrize("init", INITIALIZERS)
@pytest.mark.parametrize("make", TRANSPORTS, ids=lambda make: repr(make().settings()))
def test_a_saved_module_comes_back_the_same(make, init, tmp_path, capfd):
    module = SlotAttention(
        6, 5, 3, make(), n_iters=2, mlp_dim=7, init=init(), implicit=True, extra_step=True
    )
    module.save_pretrained(tmp_path)
    loaded = SlotAttention.from_pretrained(tmp_path)
    assert capfd.readouterr() == ("", "")
    assert not loaded.training
    assert repr(loaded) == repr(module)
    assert loaded.transport.settings().keys() == module.transport.settings().keys()
    assert loaded.transport.to_config() == module.transport.to_config()
    assert (loaded.n_slots, loaded.n_iters, loaded.implicit, loaded.extra_step) == (
        3,
        2,
        True,
        True,
    )
    state, expected = loaded.state_dict(), module.state_dict()
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[k], expected[k]) for k in state)
    trained = {k for k, p in module.named_parameters() if p.requires_grad}
    assert {k for k, p in loaded.named_parameters() if p.requires_grad} == trained
    inputs = torch.randn(2, 7, 6)
    for mine, theirs in zip(run(loaded, inputs), run(module, inputs), strict=True):
        assert torch.equal(mine, theirs)


def test_files_and_configuration(tmp_path):
    SlotAttention(6, 5, 3, Mesh(objective=SlotSimilarity(), grad="unroll")).save_pretrained(
        tmp_path
    )
    assert {p.name for p in tmp_path.iterdir()} == {"README.md", "config.json", "model.safetensors"}
    config = json.loads((tmp_path / "config.json").read_text())
    # Also what was left at its default.
    assert config == {
        "input_dim": 6,
        "slot_dim": 5,
        "n_slots": 3,
        "n_iters": 3,
        "mlp_dim": 10,
        "implicit": False,
        "extra_step": False,
        "raw_values": False,
        "init": {"kind": "LearnedGaussian"},
        "transport": {
            "kind": "Mesh",
            "step": 1.0,
            "lr": None,
            "n_steps": 4,
            "noise": 0.001,
            "potentials": "reuse",
            "grad": "unroll",
            "objective": {
                "kind": "SlotSimilarity",
                "alpha": 1.0,
                "hidden_dim": 32,
                "trainable": True,
            },
            "cost": "l2",
            "cost_scale": 1.0,
            "n_iters": None,
            "temperature": 1.0,
            "marginals": "learned",
            "mass": None,
        },
    }
    assert "library_name: slotmesh" in (tmp_path / "README.md").read_text()


def test_defaults_are_saved_as_what_they_were(tmp_path):
    SlotAttention(6, 5, 3).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["transport"] == Mesh().to_config()
    assert config["init"] == {"kind": "LearnedGaussian"}
    assert config["mlp_dim"] == 10


def test_settings_can_be_changed_while_loading(tmp_path):
    module = SlotAttention(6, 5, 3, Softmax())
    module.save_pretrained(str(tmp_path))
    loaded = SlotAttention.from_pretrained(str(tmp_path), n_iters=7, transport=Softmax(eps=0.5))
    assert (loaded.n_iters, loaded.transport.eps) == (7, 0.5)
    assert torch.equal(loaded.to_key.weight, module.to_key.weight)


def test_weights_that_cannot_be_saved_leave_those_before(tmp_path, monkeypatch):
    module = SlotAttention(6, 5, 3)
    module.save_pretrained(tmp_path)
    before = (tmp_path / "model.safetensors").read_bytes()

    def full(tensors, path, metadata=None):
        Path(path).write_bytes(b"half")
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(OSError, match=r"model.safetensors could not be written: .*No space left"):
        SlotAttention(6, 5, 3).save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").read_bytes() == before
    assert not list(tmp_path.glob(".*"))


def test_a_trained_module_is_saved_as_trained(tmp_path):
    module = SlotAttention(6, 5, 3)
    with torch.no_grad():
        for value in module.parameters():
            value.add_(1.0)
    module.save_pretrained(tmp_path)
    loaded = SlotAttention.from_pretrained(tmp_path)
    assert torch.equal(loaded.gru.weight_hh, module.gru.weight_hh)
    loaded.train()
    loaded(torch.randn(2, 7, 6)).slots.sum().backward()


@pytest.fixture
def saved(tmp_path):
    SlotAttention(6, 5, 3, Mesh()).save_pretrained(tmp_path)
    return tmp_path


def configure(folder, **changes):
    """Change entries of a saved configuration; None takes one out."""
    config = json.loads((folder / "config.json").read_text())
    config = {k: v for k, v in {**config, **changes}.items() if v is not None}
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_missing_file_is_named(name, saved):
    (saved / name).unlink()
    with pytest.raises(ValueError, match=rf"from_pretrained: .* has no {name}, expected a folder"):
        SlotAttention.from_pretrained(saved)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"slot_dim": None}, r"slot_dim"),
        ({"slot_dim": "five"}, r"slot_dim is 'five', expected a whole number"),
        ({"transport": {"kind": "Nowhere"}}, r"kind 'Nowhere', expected one of EMD, .* Import the"),
        ({"transport": {"n_steps": 4}}, r"kind None, expected one of"),
        ({"transport": {"kind": ["Mesh"]}}, r"kind \['Mesh'\], expected one of"),
        ({"transport": "Mesh"}, r"config is 'Mesh', expected a dictionary with the kind"),
        ({"transport": {"kind": "Mesh", "steps": 4}}, r"'steps'"),
        ({"transport": {"kind": "Mesh", "n_steps": -4}}, r"n_steps is -4, expected"),
        ({"transport": {"kind": "SharedSlot"}}, r"transport is SharedSlot\(\), expected"),
        ({"transport": {"kind": "Mesh", "objective": {"kind": "Fuzzy"}}}, r"kind 'Fuzzy'"),
        ({"init": {"kind": "Nowhere"}}, r"kind 'Nowhere'"),
    ],
    ids=str,
)
def test_a_configuration_that_makes_no_sense_is_named(changes, message, saved):
    configure(saved, **changes)
    with pytest.raises(ValueError, match=message) as error:
        SlotAttention.from_pretrained(saved)
    assert str(saved / "config.json") in str(error.value)


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", "3"])
def test_a_configuration_that_is_not_json_is_named(text, saved):
    (saved / "config.json").write_text(text)
    with pytest.raises(ValueError, match=r"config\.json") as error:
        SlotAttention.from_pretrained(saved)
    assert str(saved) in str(error.value)


def test_weights_that_do_not_fit_the_configuration_are_named(saved):
    configure(saved, slot_dim=4)
    with pytest.raises(
        ValueError, match=r"model.safetensors does not fit [\s\S]*size mismatch"
    ) as e:
        SlotAttention.from_pretrained(saved)
    assert str(saved) in str(e.value)


def test_weights_of_another_transport_are_named(saved):
    configure(saved, transport=Softmax().to_config())
    with pytest.raises(ValueError, match=r"model.safetensors does not fit [\s\S]*Unexpected key"):
        SlotAttention.from_pretrained(saved)


@pytest.mark.parametrize("keep", [0, 4, 100, 1000])
def test_a_truncated_file_is_named(keep, saved):
    file = saved / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"model.safetensors does not fit") as error:
        SlotAttention.from_pretrained(saved)
    assert str(file) in str(error.value)


def test_missing_and_additional_weights_are_errors_unless_strict_is_off(saved):
    file = saved / "model.safetensors"
    tensors = load_file(file)
    save_file({**tensors, "more": torch.ones(1)}, file)
    with pytest.raises(ValueError, match=r"does not fit [\s\S]*more"):
        SlotAttention.from_pretrained(saved)
    with pytest.warns(UserWarning, match="left out: more"):
        assert SlotAttention.from_pretrained(saved, strict=False).n_slots == 3
    del tensors["gru.bias_hh"]
    save_file(tensors, file)
    with pytest.raises(ValueError, match=r"does not fit [\s\S]*gru.bias_hh"):
        SlotAttention.from_pretrained(saved)


def test_a_pickle_is_refused(saved, tmp_path):
    module = SlotAttention(6, 5, 3)
    with pytest.raises(ValueError, match=r"found only pytorch_model.bin, a pickle, .*safetensors"):
        SlotAttention._load_as_pickle(module, str(tmp_path / "pytorch_model.bin"), "cpu", True)


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A hub that holds what is in a local folder."""

    def download(*, repo_id, filename, **options):
        assert repo_id == "someone/model"
        if not (tmp_path / filename).exists():
            raise EntryNotFoundError(filename)
        return str(tmp_path / filename)

    monkeypatch.setattr(hub_mixin, "hf_hub_download", download)
    return tmp_path


def test_loading_from_a_hub(hub, capfd):
    module = SlotAttention(6, 5, 3, Sinkhorn(n_iters=2))
    module.save_pretrained(hub)
    loaded = SlotAttention.from_pretrained("someone/model", revision="main", token=False)
    assert capfd.readouterr() == ("", "")
    assert torch.equal(loaded.to_key.weight, module.to_key.weight)
    assert not loaded.training
    tensors = load_file(hub / "model.safetensors")
    del tensors["to_key.weight"]
    save_file(tensors, hub / "model.safetensors")
    with pytest.raises(ValueError, match=r"does not fit"):
        SlotAttention.from_pretrained("someone/model")


def test_a_pickle_on_a_hub_is_refused(hub):
    module = SlotAttention(6, 5, 3)
    module.save_pretrained(hub)
    (hub / "model.safetensors").unlink()
    torch.save(module.state_dict(), hub / "pytorch_model.bin")
    with pytest.raises(ValueError, match=r"found only pytorch_model.bin, a pickle"):
        SlotAttention.from_pretrained("someone/model")


def test_a_transport_of_ones_own_is_saved_and_loaded(tmp_path):
    class Doubled(SlotTransport):
        def __init__(self, *, factor: float = 2.0, inner: SlotTransport | None = None) -> None:
            super().__init__()
            self.factor = factor
            self.inner = Softmax() if inner is None else inner

        def build(self, input_dim: int, slot_dim: int, hidden_dim: int) -> None:
            self.inner.bind(input_dim=input_dim, slot_dim=slot_dim, hidden_dim=hidden_dim)
            self.gain = torch.nn.Parameter(torch.tensor(self.factor))

        def forward(self, queries, keys, slots, scene):
            attention, transport = self.inner(queries, keys, slots, scene)
            return self.gain * attention, transport

    module = SlotAttention(6, 5, 3, Doubled(factor=3.0, inner=Softmax(eps=0.1)))
    module.save_pretrained(tmp_path)
    loaded = SlotAttention.from_pretrained(tmp_path)
    assert isinstance(loaded.transport, Doubled)
    assert loaded.transport.to_config() == {
        "kind": Doubled.kind(),
        "factor": 3.0,
        "inner": {"kind": "Softmax", "eps": 0.1},
    }
    inputs = torch.randn(2, 7, 6)
    slots, attention = run(loaded, inputs)
    assert torch.equal(slots, run(module, inputs)[0])
    torch.testing.assert_close(attention.sum(-1), torch.full((2, 3), 3.0))
    assert repr(loaded.transport).startswith("Doubled(\n  factor=3.0\n")


def test_a_class_from_elsewhere_does_not_take_the_place_of_ours():
    class Mesh(SlotTransport):
        """Somebody else's."""

    assert Mesh.kind() != "Mesh"
    assert type(Part.from_config({"kind": "Mesh"})).__module__ == "slotmesh.nn.transports.mesh"
    assert type(Part.from_config({"kind": Mesh.kind()})) is Mesh


def test_a_subclass_of_the_module_is_saved_and_loaded(tmp_path):
    class Named(SlotAttention):
        pass

    module = Named(6, 5, 3, Sinkhorn(n_iters=2), init=SharedSlot())
    module.save_pretrained(tmp_path)
    loaded = Named.from_pretrained(tmp_path)
    assert type(loaded) is Named
    assert repr(loaded) == repr(module)


def test_a_part_may_be_copied_before_its_first_use():
    part = Mesh(objective=LearnedObjective(), grad="unroll")
    one, two = copy.deepcopy(part), copy.deepcopy(part)
    first, second = SlotAttention(6, 5, 3, one), SlotAttention(6, 5, 3, two)
    assert (first.transport, second.transport) == (one, two)
    assert not part.bound
    weights = [x.transport.objective.in_weight for x in (first, second)]
    assert weights[0] is not weights[1]


def test_a_whole_module_can_be_copied_and_pickled():
    module, inputs = SlotAttention(6, 5, 3, Mesh()), torch.randn(2, 7, 6)
    for other in (copy.deepcopy(module), pickle.loads(pickle.dumps(module))):
        assert torch.equal(run(other, inputs)[0], run(module, inputs)[0])
        assert other.to_key.weight is not module.to_key.weight


def test_settings_and_repr_are_the_arguments():
    part = Sinkhorn(n_iters=3, mass=2.0)
    expected = {
        "cost": "l2",
        "cost_scale": 1.0,
        "n_iters": 3,
        "temperature": 1.0,
        "marginals": "learned",
        "mass": 2.0,
        "grad": "unroll",
        "share": None,
        "penalty": None,
    }
    assert part.settings() == expected
    assert repr(part) == "Sinkhorn(" + ", ".join(f"{k}={v!r}" for k, v in expected.items()) + ")"
    assert eval(repr(part)).settings() == expected  # noqa: S307
    assert FixedGaussian().settings() == {}
    # A module among the settings is shown as a module, once.
    assert repr(Mesh(objective=SlotSimilarity(), grad="unroll")).count("SlotSimilarity") == 1


@pytest.mark.parametrize("make", [*TRANSPORTS, *INITIALIZERS])
def test_every_part_survives_json(make):
    part = make()
    config = json.loads(json.dumps(part.to_config()))
    again = Part.from_config(config)
    assert type(again) is type(part)
    assert again.to_config() == part.to_config()
    assert not again.bound
    assert config == part.to_config(), "from_config leaves its argument alone"


def test_the_page_beside_the_weights_is_true(tmp_path):
    """The hub's own text says that the model was pushed to the hub."""
    SlotAttention(6, 5, 3).save_pretrained(tmp_path)
    page = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "slotmesh.nn.SlotAttention" in page
    assert "pushed" not in page
