"""``--optim.ema``: an average of the weights that stands for a run."""

import os
import signal
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from paper.replicas import ReplicaTrainer
from slotmesh.models import SetCopier
from slotmesh.training.evaluate import evaluate_run
from slotmesh.training.export import ExportModel, run_export_model
from slotmesh.training.loop import Training, run_train
from slotmesh.training.runs import load_checkpoint, open_run
from slotmesh.training.tasks import experiment

from ._jobs import assert_same, metrics, state, tiny
from ._oracle import train_plainly

DECAY = 0.8


def settings(out: Path, **changes: Any) -> Any:
    return tiny("random-objects", "SA-MESH", out, optim__ema=DECAY, **changes)


def train(wanted: Any) -> Path:
    run_train(wanted, Console(file=StringIO()))
    return wanted.folder


def part(run: Path, room: str, name: str = "last") -> dict[str, torch.Tensor]:
    kept = load_checkpoint(run / "checkpoints" / f"{name}.ckpt")["state_dict"]
    return {k.removeprefix(room): v for k, v in kept.items() if k.startswith(room)}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(settings(tmp_path_factory.mktemp("ema") / "whole"))


def test_it_is_the_average_of_the_weights_of_all_steps(whole: Path) -> None:
    """By its definition, in double precision, from training without it."""
    made = experiment(settings(whole))
    expected = {name: p.detach().double() for name, p in made.fresh_model().named_parameters()}

    def on_step(done: int, found: Any) -> None:
        # Steps are counted from 0.
        decay = min(DECAY, done / (9 + done))
        for name, p in found["model"].named_parameters():
            expected[name] = decay * expected[name] + (1 - decay) * p.detach().double()

    model = train_plainly(made, on_step)
    found = part(whole, "average.")
    for name, value in expected.items():
        torch.testing.assert_close(found[name].double(), value, rtol=1e-5, atol=1e-6)
    # Training itself is as without.
    assert_same(part(whole, "model."), dict(model.state_dict()))
    assert any(not torch.equal(found[name], p) for name, p in model.named_parameters())


def test_it_is_what_is_validated_evaluated_and_exported(whole: Path, tmp_path: Path) -> None:
    run = open_run(whole)
    assert run.checkpoint.name == "best.ckpt"
    assert_same(dict(run.load_model().state_dict()), part(whole, "average.", "best"))
    out = run_export_model(ExportModel(whole, tmp_path / "export"), Console(file=StringIO()))
    exported = SetCopier.from_pretrained(out)
    assert_same(dict(exported.state_dict()), part(whole, "average.", "best"))
    tested, again = (evaluate_run(open_run(f), out=tmp_path, device="cpu") for f in (whole, out))
    assert tested["metrics"] == again["metrics"]
    # The loss that decided which weights are the best, of the average.
    made = run.experiment
    source, n = made.source("val", torch.device("cpu"))
    losses: list[float] = []
    for i, first in enumerate(range(0, n or 0, 4)):
        sample = source.sample(range(first, min(first + 4, n or 0)))
        noise = made.noise("val", i, total=len(sample))
        losses += made.judge(run.load_model(), sample, noise, made.metrics())["loss"].tolist()
    rows = [float(row["val/loss"]) for row in metrics(whole) if row["val/loss"]]
    assert min(rows) == pytest.approx(sum(losses) / len(losses), rel=1e-5)


@pytest.mark.parametrize("step", [0, 4, 7])
def test_a_resumed_run_ends_with_the_same_bits(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    before = Training.learn

    def learn(self: Any, batch: Any) -> None:
        if self.step == step:
            os.kill(os.getpid(), signal.SIGTERM)
        before(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(Training, "learn", learn)
        with pytest.raises(SystemExit):
            train(settings(tmp_path))
    train(settings(tmp_path))
    for name in ("last", "best"):
        assert_same(state(tmp_path, name), state(whole, name), name)
    assert metrics(tmp_path) == metrics(whole)


def test_what_keeps_none_says_so(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"--optim\.ema is 0\.8, expected none"):
        ReplicaTrainer([experiment(settings(tmp_path))])
    for bad in (0.0, 1.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match=r"--optim\.ema is .*between 0 and 1"):
            experiment(tiny("random-objects", "SA", tmp_path, optim__ema=bad))
