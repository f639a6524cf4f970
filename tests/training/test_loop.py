"""Training in a dozen lines, which ``slotmesh train`` is held against."""

from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from slotmesh.training.loop import train_plainly
from slotmesh.training.stream import Order
from slotmesh.training.tasks import experiment, preset
from slotmesh.training.tasks.blind import Constant
from slotmesh.training.tasks.experiment import Experiment
from slotmesh.training.train import run_train

from ._jobs import assert_same, change, state, tiny

SMALL = tiny("random-objects", "SA-MESH", Path("unused"), steps=4)


def error(made: Experiment, model: torch.nn.Module) -> float:
    """Normalised RMSE on the validation sets."""
    source, n = made.source("val", torch.device("cpu"))
    assert n is not None
    metrics = made.metrics()
    with torch.inference_mode():
        made.judge(model, source.sample(range(n)), made.noise("val", 0, total=n), metrics)
    return float(metrics["nrmse"].compute())


def copies(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


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


def test_it_is_repeatable_and_leaves_the_generator_alone() -> None:
    before = torch.get_rng_state()
    first, second = (train_plainly(experiment(SMALL)).state_dict() for _ in range(2))
    assert torch.equal(before, torch.get_rng_state())
    assert_same(first, second)
    other = train_plainly(experiment(change(SMALL, seed=1))).state_dict()
    assert not torch.equal(first["attention.to_key.weight"], other["attention.to_key.weight"])


def test_every_step_is_reported_after_it_was_taken() -> None:
    made = experiment(change(SMALL, optim__lr=1e-2))
    model = made.fresh_model()
    states, heard = [copies(model)], []

    def on_step(done: int, losses: dict[str, torch.Tensor]) -> None:
        assert not any(value.requires_grad for value in losses.values())
        heard.append((done, float(losses["loss"])))
        states.append(copies(model))

    assert train_plainly(made, on_step, model=model) is model
    assert [done for done, _ in heard] == [1, 2, 3, 4]
    for before, after in pairwise(states):
        assert not torch.equal(before["attention.to_key.weight"], after["attention.to_key.weight"])
    # The loss of the first step is that of the first weights on the first batch.
    source, _ = made.source("train", torch.device("cpu"))
    sample = source.sample(Order(18, batch_size=4, seed=0).batch(0))
    loss = made.losses(made.fresh_model(), sample, made.noise("train", 0, total=4))["loss"]
    assert heard[0][1] == float(loss.detach())


@pytest.mark.parametrize("spoilt", ["loss", "gradient"])
def test_no_step_is_taken_that_is_not_finite(monkeypatch: pytest.MonkeyPatch, spoilt: str) -> None:
    made = experiment(SMALL)
    model, states = made.fresh_model(), []
    old = made.losses

    def losses(*args: Any) -> dict[str, torch.Tensor]:
        found = old(*args)["loss"]
        if len(states) == 2:
            found = found + float("inf") if spoilt == "loss" else found.sub(found.detach()).sqrt()
        return {"loss": found}

    monkeypatch.setattr(made, "losses", losses)
    with pytest.raises(ValueError, match=r"step 2 is not finite. Lower --optim.lr"):
        train_plainly(made, lambda done, found: states.append(copies(model)), model=model)
    assert_same(copies(model), states[-1])


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
