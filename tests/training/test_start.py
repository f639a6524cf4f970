"""Runs that start from trained weights instead of random ones."""

import shutil
from pathlib import Path

import pytest
import torch

from slotmesh.training.card import model_card
from slotmesh.training.checkpoint import load_checkpoint
from slotmesh.training.loop import run_train
from slotmesh.training.runs import open_run
from slotmesh.training.settings import Settings
from slotmesh.training.start import first_weights
from slotmesh.training.tasks import experiment, preset
from slotmesh.training.weights import find

from ..readers._folders import fill
from ._jobs import change, tiny


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    return fill(tmp_path / "photos", 12)


def small(photos: Path, out: Path, **changes: object) -> Settings:
    """A run of 12 steps of 2."""
    settings = tiny("images", "SA-MESH", out)
    return change(settings, data__root=photos, data__batch_size=2, **changes)


@pytest.mark.parametrize("ema", [None, 0.9])
def test_a_run_starts_from_the_weights_of_another(
    photos: Path, tmp_path: Path, ema: float | None
) -> None:
    trained = run_train(small(photos, tmp_path / "first"))
    expected = trained.load_model().state_dict()
    # With a rate this small, a step changes no weight.
    changes = {"model__start": str(tmp_path / "first"), "optim__lr": 1e-30, "steps": 1}
    found = run_train(small(photos, tmp_path / "second", seed=5, optim__ema=ema, **changes))
    for name, value in found.load_model().state_dict().items():
        assert torch.equal(value, expected[name])
    other = run_train(small(photos, tmp_path / "scratch", seed=5, optim__lr=1e-30, steps=1))
    weights = other.load_model().state_dict()
    assert any(not torch.equal(value, expected[name]) for name, value in weights.items())


def test_the_card_of_an_export_names_them(photos: Path, tmp_path: Path) -> None:
    run_train(small(photos, tmp_path / "first"))
    run = run_train(small(photos, tmp_path / "second", model__start=str(tmp_path / "first")))
    assert "- Start: the weights `first`." in model_card(run, "ObjectDiscovery", tmp_path)
    assert "- Start" not in model_card(open_run(tmp_path / "first"), "ObjectDiscovery", tmp_path)


def test_another_number_of_slots(photos: Path, tmp_path: Path) -> None:
    run_train(small(photos, tmp_path / "first"))
    start = {"model__start": str(tmp_path / "first"), "model__n_slots": 3}
    run = run_train(small(photos, tmp_path / "second", **start))
    assert open_run(run.folder).load_model().attention.n_slots == 3  # pyright: ignore


def test_a_run_that_resumes_does_not_need_them(photos: Path, tmp_path: Path) -> None:
    run_train(small(photos, tmp_path / "first"))
    settings = small(photos, tmp_path / "whole", model__start=str(tmp_path / "first"))
    whole = run_train(settings)
    shutil.rmtree(tmp_path / "first")
    shutil.copytree(tmp_path / "whole", tmp_path / "second")
    saved = tmp_path / "second" / "checkpoints"
    saved.joinpath("previous.ckpt").replace(saved / "last.ckpt")
    resumed = run_train(change(settings, out=tmp_path / "second"))
    one, other = (
        load_checkpoint(run.folder / "checkpoints" / "last.ckpt")["state_dict"]
        for run in (whole, resumed)
    )
    assert all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.parametrize("variant", ["SA", "SA-SH", "SA-EMD", "SA-MESH"])
def test_the_default_weights_fit(photos: Path, variant: str) -> None:
    settings = change(preset("images", variant, root=photos), data__root=photos)
    weights = first_weights(experiment(settings))
    assert weights is not None
    expected = open_run(find(settings.model.start)).load_model().state_dict()  # pyright: ignore
    assert all(torch.equal(value, expected[name]) for name, value in weights.items())


@pytest.mark.parametrize(
    ("start", "said"),
    [
        ("multi-dsprite-sa-mesh", "Did you mean multi-dsprites-sa-mesh?"),
        # All that differ at once.
        (
            "multi-dsprites-sa-mesh",
            "but got 8, 8, 8. Pass --model.channels 32 --model.slot-dim 64 --model.mlp-dim 128, or",
        ),
        ("nowhere", "nowhere is not a run"),
    ],
)
def test_wrong_weights_are_named_before_anything_is_written(
    photos: Path, tmp_path: Path, start: str, said: str
) -> None:
    with pytest.raises(ValueError, match=r"^--model.start") as error:
        run_train(small(photos, tmp_path / "run", model__start=start))
    assert said in str(error.value)
    assert not (tmp_path / "run").exists()


def test_weights_of_another_kind_of_model(photos: Path, tmp_path: Path) -> None:
    settings = change(preset("images", "SA", root=photos), data__root=photos, out=tmp_path / "run")
    said = r"a model of multi-dsprites \(SA-MESH\), whose weights do not fit images \(SA\)"
    with pytest.raises(ValueError, match=said):
        run_train(change(settings, model__start="multi-dsprites-sa-mesh"))
    assert not (tmp_path / "run").exists()
