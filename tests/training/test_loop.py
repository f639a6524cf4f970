"""``slotmesh train`` against a loop of a dozen lines, and the step that others use too."""

from copy import deepcopy
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from rich.console import Console

from slotmesh.training.failure import NonFinite
from slotmesh.training.loop import Training, run_train
from slotmesh.training.stream import RunData
from slotmesh.training.tasks import experiment, preset
from slotmesh.training.tasks.blind import Constant
from slotmesh.training.tasks.experiment import Experiment

from ._jobs import assert_same, change, state, tiny
from ._oracle import train_plainly

SMALL = tiny("random-objects", "SA-MESH", Path("unused"), steps=4)


def error(made: Experiment, model: torch.nn.Module) -> float:
    """Normalised RMSE on the validation sets."""
    source, n = made.source("val", torch.device("cpu"))
    assert n is not None
    metrics = made.metrics()
    with torch.inference_mode():
        made.judge(model, source.sample(range(n)), made.noise("val", 0, total=n), metrics)
    return float(metrics["nrmse"].compute())


def ready(made: Experiment) -> tuple[Training, Any]:
    """What takes steps, and its batches."""
    fabric = Fabric(accelerator="cpu", devices=1)
    return Training(made, fabric), RunData(made, fabric.device).train(0)


@pytest.mark.parametrize(
    ("task", "variant", "changes"),
    [
        ("random-objects", "SA-MESH", {}),
        ("random-objects", "SA-MESH", {"data__train_size": None, "optim__clip": 0.3, "seed": 1}),
        ("multi-dsprites", "SA", {}),
    ],
)
def test_slotmesh_train_ends_with_the_same_bits(
    tmp_path: Path, task: str, variant: str, changes: dict[str, Any]
) -> None:
    settings = tiny(task, variant, tmp_path / "run", **changes)
    run_train(settings, Console(file=StringIO()))
    found = state(tmp_path / "run")["state_dict"]
    made = experiment(settings)
    expected, first = train_plainly(made).state_dict(), made.fresh_model()
    assert_same(dict(found), {f"model.{k}": v for k, v in expected.items()})
    assert not [k for k, v in first.named_parameters() if torch.equal(v, expected[k])]


def test_steps_are_repeatable_and_leave_the_generator_alone() -> None:
    before, found = torch.get_rng_state(), []
    for seed in (0, 0, 1):
        training, batches = ready(experiment(change(SMALL, seed=seed)))
        for _ in range(2):
            training.learn(next(batches))
        found.append(training.model.state_dict())
    assert torch.equal(before, torch.get_rng_state())
    assert_same(found[0], found[1])
    name = "attention.to_key.weight"
    assert not torch.equal(found[0][name], found[2][name])


@pytest.mark.parametrize("spoilt", ["loss", "gradient"])
def test_no_step_is_taken_that_is_not_finite(monkeypatch: pytest.MonkeyPatch, spoilt: str) -> None:
    made = experiment(SMALL)
    training, batches = ready(made)
    for _ in range(2):
        training.learn(next(batches))
    before = {name: value.clone() for name, value in training.model.state_dict().items()}
    old = made.losses

    def losses(*args: Any) -> dict[str, torch.Tensor]:
        found = old(*args)["loss"]
        bad = found + float("inf") if spoilt == "loss" else found.sub(found.detach()).sqrt()
        return {"loss": bad}

    monkeypatch.setattr(made, "losses", losses)
    with pytest.raises(NonFinite, match="step 2"):
        training.learn(next(batches))
    assert training.step == 2
    assert_same(dict(training.model.state_dict()), before)


def test_a_state_is_whole() -> None:
    """Taken from one and loaded into another, both take the same next step."""
    made = experiment(change(SMALL, optim__ema=0.5))
    one, batches = ready(made)
    for _ in range(2):
        one.learn(next(batches))
    two, _ = ready(made)
    two.load_state_dict(deepcopy(one.state_dict()))
    batch = next(batches)
    for training in (one, two):
        training.learn(batch)
    assert_same(two.state_dict(), one.state_dict())


def test_checkpoints_of_earlier_versions() -> None:
    """Lightning's Trainer kept progress under the names of callbacks."""
    made = experiment(SMALL)
    one, batches = ready(made)
    one.learn(next(batches))
    one.seconds, one.best_loss, one.in_memory = 7.0, 0.5, {"train": True, "val": False}
    state = one.state_dict()
    old = {k: state[k] for k in ("global_step", "state_dict", "settings", "arithmetic")} | {
        "epoch": 0,
        "pytorch-lightning_version": "2.6.6",
        "loops": {},
        "callbacks": {"Journal": {"seconds": 7.0}, "Keeper": {"best_loss": 0.5}},
        "optimizer_states": state["optimizer_states"],
        "lr_schedulers": [{"last_epoch": 1}],
        "RunData": {"train": True, "val": False},
    }
    two, _ = ready(made)
    two.load_state_dict(deepcopy(old))
    assert_same(two.state_dict(), state)


def test_mesh_learns_faster_than_softmax() -> None:
    """The demo's claim, on a smaller problem."""
    small = {
        "steps": 100,
        "data__batch_size": 32,
        "data__n_background": 20,
        "data__val_size": 256,
        "optim__lr": 1e-2,
    }
    errors: dict[str, float] = {}
    for variant in ("SA", "SA-MESH"):
        made = experiment(change(preset("random-objects", variant), **small))
        errors[variant] = error(made, train_plainly(made))
    assert errors["SA-MESH"] < 0.8 * errors["SA"]
    assert errors["SA-MESH"] < 0.6


@pytest.mark.parametrize("sigma", [1.0, 0.01])
def test_zeros_have_error_one(sigma: float) -> None:
    start = preset("random-objects", "SA-MESH", "paper")
    made = experiment(change(start, data__sigma=sigma, data__val_size=500))
    source, _ = made.source("train", torch.device("cpu"))
    blind = made.blind(source.sample(range(4)))
    assert isinstance(blind, Constant)
    assert error(made, blind) == pytest.approx(1, abs=0.01)
