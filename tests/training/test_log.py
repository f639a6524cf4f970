"""``--logger``: where the numbers of a run go besides metrics.csv."""

import json
import re
import sys
import time
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from slotmesh.cli import main
from slotmesh.training.log import EventFile
from slotmesh.training.loop import Training, run_train

from ..readers._folders import fill
from ._jobs import change, flags, metrics, tiny

# A stand-in for the package: it writes what it is told to the file of its run.
WANDB = {
    "__init__": """
import json, pathlib
from wandb.wandb_run import Run
run = None
def init(**options):
    global run
    run = Run(options)
    return run
""",
    "wandb_run": """
import json, os, pathlib, wandb
class Run:
    def __init__(self, options):
        self.config = self
        self.path = pathlib.Path(os.environ["STAND_IN"])
        self.add("init", {k: str(v) for k, v in options.items()})
    def add(self, kind, what):
        with self.path.open("a") as file:
            file.write(json.dumps([kind, what]) + "\\n")
    def update(self, params, **_):
        self.add("config", params)
    def define_metric(self, *_, **__):
        pass
    def log(self, numbers):
        self.add("log", numbers)
    def finish(self):
        self.add("finish", {})
        wandb.run = None
""",
    "sdk/__init__": "",
    "sdk/lib": "class RunDisabled: pass",
}


@pytest.fixture
def wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file that the stand-in writes to."""
    from lightning.pytorch.loggers import wandb as lightnings

    for name, text in WANDB.items():
        path = tmp_path / "modules" / "wandb" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for name in [name for name in sys.modules if name.partition(".")[0] == "wandb"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(tmp_path / "modules")
    monkeypatch.setattr(lightnings, "_WANDB_AVAILABLE", True)
    monkeypatch.setenv("STAND_IN", str(tmp_path / "said"))
    yield tmp_path / "said"
    for name in [name for name in sys.modules if name.partition(".")[0] == "wandb"]:
        del sys.modules[name]


def train(settings: Any) -> None:
    run_train(settings, Console(file=StringIO()))


def said(path: Path, kind: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [what for name, what in lines if name == kind]


def test_none(tmp_path: Path) -> None:
    for logger in ("tensorboard", "none"):
        train(tiny("random-objects", "SA", tmp_path / logger, steps=3, logger=logger))
    assert (tmp_path / "tensorboard" / "tensorboard").is_dir()
    assert not (tmp_path / "none" / "tensorboard").exists()
    assert metrics(tmp_path / "none") == metrics(tmp_path / "tensorboard")


def test_wandb_that_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line, before anything is written."""
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(SystemExit) as end:
        main(flags(tiny("random-objects", "SA", tmp_path / "run", logger="wandb")))
    assert end.value.code == 1
    [line] = capsys.readouterr().err.splitlines()
    assert "--logger is wandb, but the package wandb is not installed" in line
    assert "pip install wandb" in line
    assert not (tmp_path / "run").exists()


def test_wandb_gets_what_metrics_csv_holds(tmp_path: Path, wandb: Path) -> None:
    settings = tiny("random-objects", "SA", tmp_path / "run", steps=4, seed=3, logger="wandb")
    train(settings)
    [options] = said(wandb, "init")
    assert options["name"] == "random-objects SA seed 3"
    assert options["project"] == "slotmesh"
    [config] = said(wandb, "config")
    assert config["seed"] == 3
    assert config["data"]["batch_size"] == 4
    rows = [{k: float(v) for k, v in row.items() if v} for row in metrics(tmp_path / "run")]
    logged = said(wandb, "log")
    for row, numbers in zip(rows, logged, strict=True):
        assert numbers.pop("trainer/global_step") == row.pop("step")
        assert numbers == pytest.approx(row, rel=1e-8)
    assert len(said(wandb, "finish")) == 1
    assert not (tmp_path / "run" / "tensorboard").exists()


def test_wandb_resumes_the_same_run(
    tmp_path: Path, wandb: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = tiny("random-objects", "SA", tmp_path / "run", steps=6, logger="wandb")
    old = Training.learn

    def learn(self: Training, batch: Any) -> None:
        if self.step == 4:
            raise KeyError("here it stops")
        old(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(Training, "learn", learn)
        with pytest.raises(KeyError, match="here it stops"):
            train(settings)
    train(settings)
    first, second = said(wandb, "init")
    assert first["id"] == second["id"]
    assert second["resume"] == "allow"
    # From its first step on, it is another run.
    train(tiny("random-objects", "SA", tmp_path / "run", steps=1, logger="wandb", overwrite=True))
    assert said(wandb, "init")[2]["id"] != first["id"]


def test_two_losses_have_two_names(tmp_path: Path) -> None:
    settings = change(tiny("images", "SA", tmp_path / "run"), data__root=fill(tmp_path / "photos"))
    screen = StringIO()
    run_train(change(settings, data__batch_size=2), Console(file=screen, width=200))
    [last] = [line for line in screen.getvalue().splitlines() if "12/12" in line][-1:]
    assert re.search(r" loss [\d.e-]+  val loss [\d.e-]+", last)


def test_a_clock_that_was_set_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorBoard reads files by name: what a resumed run writes has to come last."""
    for now in (2e9, 1e9, 1e9):
        monkeypatch.setattr(time, "time", lambda now=now: now)
        file = EventFile(tmp_path, None)
        file.finalize("success")
        assert Path(file._file.name) == max(tmp_path.iterdir())
