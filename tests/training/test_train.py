"""What a run computes, writes down and shows."""

import json
import logging
import os
import signal
import warnings
from io import StringIO
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from PIL import Image
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from slotmesh.training.loop import Training, run_train
from slotmesh.training.runs import load_checkpoint, open_run
from slotmesh.training.settings import Settings
from slotmesh.training.tasks import experiment

from ._jobs import assert_same, change, flags, metrics, run_job, state, tiny
from ._oracle import train_plainly


def train(settings: Settings, **console: Any) -> str:
    out = StringIO()
    run_train(settings, Console(file=out, width=100, **console))
    return out.getvalue()


def test_training_is_what_it_says(tmp_path: Path) -> None:
    """A loop in a few lines of torch ends with the same weights, and logs the same numbers."""
    changes = {"optim__warmup": 4, "optim__clip": 0.3, "log_every": 1}
    settings = tiny("random-objects", "SA-MESH", tmp_path / "run", **changes)
    train(settings)
    made = experiment(settings)
    logged = {int(row["step"]): row for row in metrics(tmp_path / "run") if row["train/loss"]}

    def compare(done: int, found: Any) -> None:
        row = logged[done]
        assert float(row["train/loss"]) == pytest.approx(float(found["loss"]), rel=1e-8)
        assert float(row["train/gradient_norm"]) == pytest.approx(float(found["norm"]), rel=1e-8)
        rate = 3e-3 * settings.optim.factor(done - 1, 12)
        assert float(row["train/lr"]) == pytest.approx(rate, rel=1e-8)

    model = train_plainly(made, compare)
    weights = load_checkpoint(tmp_path / "run/checkpoints/last.ckpt")["state_dict"]
    assert_same(
        {k: v for k, v in weights.items() if k.startswith("model.")},
        {f"model.{k}": v for k, v in model.state_dict().items()},
    )
    # And the validation at the end.
    source, _ = made.source("val", torch.device("cpu"))
    judged, found = made.metrics(), []
    with torch.no_grad():
        for i, index in enumerate(([0, 1, 2, 3], [4, 5])):
            noise = made.noise("val", i, total=len(index))
            found.append(made.judge(model.eval(), source.sample(index), noise, judged)["loss"])
    last = metrics(tmp_path / "run")[-1]
    assert float(last["val/loss"]) == pytest.approx(float(torch.cat(found).mean()), rel=1e-6)
    assert float(last["val/nrmse"]) == pytest.approx(float(judged["nrmse"].compute()), rel=1e-6)


def test_the_global_generator_plays_no_part(tmp_path: Path) -> None:
    for i, name in enumerate(("a", "b")):
        torch.manual_seed(i)
        train(tiny("random-objects", "SA-MESH", tmp_path / name, steps=3))
    assert_same(state(tmp_path / "a"), state(tmp_path / "b"))
    train(tiny("random-objects", "SA-MESH", tmp_path / "c", steps=3, seed=1))
    assert metrics(tmp_path / "a") != metrics(tmp_path / "c")


def test_the_best_is_the_one_with_the_lowest_validation_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, losses = Training.validate, iter([3.0, 1.0, 2.0])

    def validate(self: Training, batches: Any) -> dict[str, float]:
        return old(self, batches) | {"loss": next(losses)}

    monkeypatch.setattr(Training, "validate", validate)
    train(tiny("random-objects", "SA", tmp_path / "run"))
    assert state(tmp_path / "run", "best")["global_step"] == 10
    assert state(tmp_path / "run")["global_step"] == 12
    assert open_run(tmp_path / "run").checkpoint.name == "best.ckpt"


def board(folder: Path) -> dict[tuple[str, int], float]:
    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    names = events.Tags()["scalars"]
    rows = [(name, e.step, e.value) for name in names for e in events.Scalars(name)]
    assert len({row[:2] for row in rows}) == len(rows), "a step is there twice"
    return {(name, step): value for name, step, value in rows}


def table(folder: Path) -> dict[tuple[str, int], float]:
    return {
        (name, int(row["step"])): float(value)
        for row in metrics(folder)
        for name, value in row.items()
        if name != "step" and value
    }


@pytest.mark.parametrize("kill", ["", "a_step 8"])
def test_tensorboard_and_csv_hold_the_same(tmp_path: Path, kill: str) -> None:
    less = {"steps": 9, "data__train_size": 9}
    settings = tiny("clevrer-s", "SA-learned-noise", tmp_path / "run", log_every=1, **less)
    if kill:
        assert run_job(tmp_path / "log", "train", settings=settings, kill=kill)[0] == -9
    train(settings)
    found = board(tmp_path / "run")
    assert found == pytest.approx(table(tmp_path / "run"), rel=1e-6)
    names = {name for name, _ in found}
    assert names >= {"train/loss", "train/kl", "train/reconstruction", "train/lr", "val/tc"}
    assert names >= {"slots/used", "slots/evenness", "slots/background", "slots/entropy_1"}
    times = [float(row["seconds"]) for row in metrics(tmp_path / "run", seconds=True)]
    assert times == sorted(times)


def test_tensorboard_shows_the_pictures(tmp_path: Path) -> None:
    train(tiny("multi-dsprites", "SA", tmp_path / "run"))
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"), size_guidance={"images": 0})
    events.Reload()
    assert events.Tags()["images"] == ["samples"]
    shown = {e.step: e for e in events.Images("samples")}
    files = sorted((tmp_path / "run" / "pictures").iterdir())
    assert [f"step-{step:06d}.png" for step in shown] == [file.name for file in files]
    for event, file in zip(shown.values(), files, strict=True):
        assert event.encoded_image_string == file.read_bytes()
        with Image.open(file) as picture:
            assert (event.width, event.height) == picture.size


def test_the_bar_shows_loss_metric_and_time(tmp_path: Path) -> None:
    said = train(tiny("random-objects", "SA", tmp_path / "run"), force_terminal=True)
    assert "training" in said
    assert "12/12" in said
    assert "loss" in said
    assert "nrmse" in said
    assert "0:00:00" in said
    # The cursor was hidden, and is back.
    assert said.rindex("\x1b[?25h") > said.rindex("\x1b[?25l")


@pytest.mark.parametrize("how", ["signal", "error"])
def test_the_terminal_is_left_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    old = Training.learn

    def learn(self: Training, batch: Any) -> None:
        if self.step == 3:
            if how == "error":
                raise ValueError("a mistake")
            os.kill(os.getpid(), signal.SIGTERM)
        old(self, batch)

    monkeypatch.setattr(Training, "learn", learn)
    out = StringIO()
    console = Console(file=out, width=100, force_terminal=True)
    with pytest.raises((SystemExit, ValueError)):
        run_train(tiny("random-objects", "SA", tmp_path / "run"), console)
    assert out.getvalue().rindex("\x1b[?25h") > out.getvalue().rindex("\x1b[?25l")
    # What was logged before is on the disk.
    assert ("train/loss", 2) in board(tmp_path / "run")


def test_in_another_thread(tmp_path: Path) -> None:
    """Where signals cannot be listened to."""
    settings = tiny("random-objects", "SA", tmp_path / "run", steps=3)
    thread = Thread(target=train, args=(settings,))
    thread.start()
    thread.join(60)
    assert state(tmp_path / "run")["global_step"] == 3


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_other_precisions(tmp_path: Path, precision: str) -> None:
    train(tiny("random-objects", "SA-MESH", tmp_path / "a", steps=4))
    changes = {"steps": 4, "hardware__precision": precision}
    train(tiny("random-objects", "SA-MESH", tmp_path / "b", **changes))
    a, b = (metrics(tmp_path / name) for name in "ab")
    for one, two in zip(a, b, strict=True):
        for name in ("train/loss", "val/loss"):
            if one[name]:
                assert float(two[name]) == pytest.approx(float(one[name]), rel=0.05)
    assert (a == b) == (precision == "tf32"), "tf32 is for products on a GPU"
    weights = state(tmp_path / "b")["state_dict"]
    assert {v.dtype for k, v in weights.items() if k.startswith("model.")} == {torch.float32}


def test_fewer_steps_than_a_validation_needs(tmp_path: Path) -> None:
    train(tiny("random-objects", "SA", tmp_path / "run", steps=1))
    assert [row["step"] for row in metrics(tmp_path / "run")] == ["1", "1"]
    assert state(tmp_path / "run", "best")["global_step"] == 1


def test_a_checkpoint_says_what_it_is(tmp_path: Path) -> None:
    settings = tiny("random-objects", "SA", tmp_path / "run", steps=2)
    train(settings)
    found = load_checkpoint(tmp_path / "run/checkpoints/last.ckpt")
    assert json.loads(found["settings"])["transport"] == {"eps": 1e-8}
    assert found["global_step"] == 2


def test_lightning_says_nothing(tmp_path: Path) -> None:
    """In a process of its own, where what it logs comes to the screen: it does without us."""
    settings = change(tiny("random-objects", "SA", tmp_path / "run"), hardware__precision="bf16")
    code, said = run_job(tmp_path / "log", "main", words=flags(settings))
    assert code == 0, said
    assert "mixed precision" not in said.lower()
    code, said = run_job(tmp_path / "log", "make_lightning_speak")
    assert code == 0, said
    assert "mixed precision" in said.lower()


def test_warnings_and_logs_are_left_as_they_were(tmp_path: Path) -> None:
    import lightning.fabric  # noqa: F401

    names = ("lightning.fabric", "lightning.pytorch")

    def state_of_python() -> Any:
        return [logging.getLogger(name).level for name in names], list(warnings.filters)

    logging.getLogger(names[0]).setLevel(logging.INFO)
    before = state_of_python()
    train(tiny("random-objects", "SA", tmp_path / "run", steps=1))
    assert state_of_python() == before
