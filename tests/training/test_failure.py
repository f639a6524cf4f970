"""What goes wrong in training: numbers that are none, and disks that are full."""

import errno
import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from slotmesh.training.failure import replay
from slotmesh.training.loop import Training, run_train
from slotmesh.training.runs import load_checkpoint, open_run
from slotmesh.training.settings import Settings
from slotmesh.training.stream import Order
from slotmesh.training.tasks.experiment import mix

from ._jobs import assert_same, flags, metrics, run_job, state, tiny, two_processes


def fails(settings: Settings) -> str:
    with (
        Path(os.devnull).open("w") as nowhere,
        pytest.raises(ValueError, match="is not finite") as error,
    ):
        run_train(settings, Console(file=nowhere))
    return str(error.value)


def spoil(monkeypatch: pytest.MonkeyPatch, step: int, factor: float) -> None:
    """Multiply the loss of one step."""
    old = Training.losses

    def losses(self: Training, batch: Any) -> dict[str, torch.Tensor]:
        found = old(self, batch)
        return {"loss": factor * found["loss"]} if self.step == step else found

    monkeypatch.setattr(Training, "losses", losses)


GPU = pytest.param(
    "gpu",
    marks=[
        pytest.mark.gpu,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here"),
    ],
)


@pytest.mark.parametrize("place", ["cpu", GPU])
@pytest.mark.parametrize("factor", [float("nan"), float("inf"), -float("inf")])
def test_a_step_that_is_not_finite_stops_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, factor: float, place: str
) -> None:
    # At step 4 the last checkpoint is one of 3 steps. A GPU is asked when step 6 is logged.
    changes = {"seed": 5, "hardware__accelerator": place}
    settings = tiny("random-objects", "SA-MESH", tmp_path / "run", **changes)
    with monkeypatch.context() as patch:
        spoil(patch, 4, factor)
        said = fails(settings)
    folder = tmp_path / "run" / "failure"
    found = json.loads((folder / "failure.json").read_text())
    index = Order(18, batch_size=4, seed=5).batch(4)
    assert found == {"step": 4, "seed": mix(5, "train", 4), "samples": index}
    assert (
        f"step 4 is not finite (noise seed {found['seed']}, samples {index[0]}, {index[1]}" in said
    )
    assert str(folder) in said
    assert "--optim.lr" in said
    assert state(tmp_path / "run")["global_step"] == 3
    assert [row["step"] for row in metrics(tmp_path / "run")] == ["2", "4"]

    # The weights that are kept are those before the step.
    weights: dict[str, torch.Tensor] = {}
    losses: dict[int, torch.Tensor] = {}

    old = Training.gradient

    def note(self: Training, batch: Any) -> dict[str, torch.Tensor]:
        if self.step == 4:
            weights.update(
                {f"model.{k}": v.cpu().clone() for k, v in self.model.state_dict().items()}
            )
        found = old(self, batch)
        losses[self.step] = found["loss"]
        return found

    with monkeypatch.context() as patch, Path(os.devnull).open("w") as nowhere:
        patch.setattr(Training, "gradient", note)
        fine = tiny("random-objects", "SA-MESH", tmp_path / "fine", **changes)
        run_train(fine, Console(file=nowhere))
    kept = load_checkpoint(folder / "before.ckpt")["state_dict"]
    assert_same(kept, weights)

    # Nothing is wrong with this step without the factor: what was saved is all that it needs.
    again = replay(folder, "cpu" if place == "cpu" else "cuda")
    assert all(value.isfinite() for value in again.values())
    assert again["loss"] == losses[4]


@pytest.mark.parametrize(("lr", "checked"), [(1e3, False), (1e30, True)])
def test_a_blow_up_can_be_seen_again(tmp_path: Path, lr: float, checked: bool) -> None:
    """By its loss, or by a check of the library that finds a number on the way."""
    changes = {"optim__lr": lr, "optim__warmup": 0, "optim__clip": None}
    said = fails(tiny("multi-dsprites", "SA", tmp_path / "run", **changes))
    assert "of step 1 is not finite" in said
    folder = tmp_path / "run" / "failure"
    if checked:
        with pytest.raises(ValueError, match=r"SlotAttention: inputs has .* not finite"):
            replay(folder)
    else:
        again = replay(folder)
        assert not again["loss"].isfinite()
        assert not again["gradient_norm"].isfinite()
    model = open_run(folder / "before.ckpt").load_model()
    assert all(p.isfinite().all() for p in model.parameters())


def test_other_mistakes_keep_their_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise ValueError("another mistake")

    monkeypatch.setattr("slotmesh.training.tasks.random_objects.RandomObjectsTask.losses", broken)
    with Path(os.devnull).open("w") as nowhere, pytest.raises(ValueError, match="another mistake"):
        run_train(tiny("random-objects", "SA", tmp_path / "run"), Console(file=nowhere))
    assert not (tmp_path / "run" / "failure").exists()


def test_a_gradient_that_is_not_finite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loss alone looks right."""
    old = Training.gradient

    def spoilt(self: Training, batch: Any) -> dict[str, torch.Tensor]:
        found = old(self, batch)
        if self.step == 2:
            next(self.model.parameters()).grad.view(-1)[0] = float("inf")  # pyright: ignore
        return found

    monkeypatch.setattr(Training, "gradient", spoilt)
    assert "step 2 is not finite" in fails(tiny("random-objects", "SA", tmp_path / "run"))


def test_one_of_two_processes_fails(tmp_path: Path) -> None:
    settings = tiny("random-objects", "SA", tmp_path / "run", hardware__devices=2)
    ends = two_processes(tmp_path / "log", "main", words=flags(settings), nan="3 1")
    assert [code for code, _ in ends] == [1, 1], ends
    assert ends[0][1].count("step 3 is not finite") == 1
    assert ends[1][1] == ""
    found = json.loads((tmp_path / "run/failure/failure.json").read_text())
    assert found["samples"] == Order(18, batch_size=4, seed=0).batch(3)


# ---- the disk ----

# Enough for the log and the settings, not for a checkpoint.
LIMIT = 8000


def only_the_error(said: str) -> str:
    lines = [line for line in said.splitlines() if line.startswith("slotmesh: ")]
    assert len(lines) == 1, said
    assert "Traceback" not in said
    return lines[0]


def test_a_full_disk(tmp_path: Path) -> None:
    """The last checkpoint stays, and with room again the run ends as if nothing had happened."""
    settings = tiny("random-objects", "SA", tmp_path / "run")
    log, words = tmp_path / "log", flags(settings)
    assert run_job(log, "train", settings=settings, kill="a_step 7")[0] == -9
    before = (tmp_path / "run/checkpoints/last.ckpt").read_bytes()
    code, said = run_job(log, "main", words=words, limit=LIMIT)
    assert code == 1, said
    error = only_the_error(said)
    assert "checkpoints/last.ckpt could not be written: File too large." in error
    assert "is intact" in error
    assert "repeat the command to resume" in error
    assert (tmp_path / "run/checkpoints/last.ckpt").read_bytes() == before
    assert not list((tmp_path / "run").rglob("*.part"))
    open_run(tmp_path / "run").load_model()
    assert run_job(log, "main", words=words)[0] == 0
    whole = tiny("random-objects", "SA", tmp_path / "whole")
    assert run_job(log, "train", settings=whole)[0] == 0
    assert_same(state(tmp_path / "run"), state(tmp_path / "whole"))
    assert metrics(tmp_path / "run") == metrics(tmp_path / "whole")


@pytest.mark.parametrize("limit", [700, LIMIT])
def test_a_disk_that_is_full_from_the_start(tmp_path: Path, limit: int) -> None:
    log, words = tmp_path / "log", flags(tiny("random-objects", "SA", tmp_path / "run", steps=4))
    code, said = run_job(log, "main", words=words, limit=limit)
    assert code == 1, said
    assert "File too large" in only_the_error(said)
    assert str(tmp_path / "run") in only_the_error(said)
    assert not list((tmp_path / "run").rglob("*.ckpt*"))
    assert run_job(log, "main", words=words)[0] == 0


@pytest.mark.parametrize("name", ["metrics.csv", "pictures/step-000004.png"])
def test_other_files_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A device that is always full, where the file or its part would be."""
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("needs /dev/full")
    settings = tiny("random-objects", "SA", tmp_path / "run", steps=4, val_every=4)
    old, old_os = Path.open, os.open

    def no_room(self: Path, *args: Any, **kwargs: Any) -> Any:
        wanted = self.name == Path(name).name and args[:1] == ("a",)
        return old(full if wanted else self, *args, **kwargs)

    def no_room_for_parts(path: Any, *args: Any, **kwargs: Any) -> int:
        part = name.endswith(".png") and Path(path).name.startswith(f".{Path(name).name}.")
        return old_os(full if part else path, *args, **kwargs)

    monkeypatch.setattr(Path, "open", no_room)
    monkeypatch.setattr(os, "open", no_room_for_parts)
    with (
        Path(os.devnull).open("w") as nowhere,
        pytest.raises(OSError, match=rf"{name} could not be written: No space left on device"),
    ):
        run_train(settings, Console(file=nowhere))


@pytest.mark.parametrize(
    ("below", "says"),
    [
        ("file/run", "but .*file is a file; expected a folder"),
        ("locked/run", "cannot be written: "),
    ],
)
def test_a_folder_that_cannot_be_made(tmp_path: Path, below: str, says: str) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "locked").mkdir(mode=0o500)
    if below.startswith("locked") and os.access(tmp_path / "locked", os.W_OK):
        pytest.skip("this user may write anywhere")
    settings = tiny("random-objects", "SA", tmp_path / below)
    with pytest.raises(ValueError, match=f"{tmp_path / below},? {says}") as failed:
        run_train(settings)
    assert "--out" in str(failed.value)


def test_no_room_for_the_failure_either(tmp_path: Path) -> None:
    """The step is told all the same."""
    settings = tiny("random-objects", "SA", tmp_path / "run", save_every=100)
    job = {"words": flags(settings), "limit": LIMIT, "nan": "3 0"}
    code, said = run_job(tmp_path / "log", "main", **job)
    assert code == 1
    error = only_the_error(said)
    assert "step 3 is not finite" in error
    assert "could not be written" in error


def test_a_full_disk_under_the_output(tmp_path: Path) -> None:
    """The folder of the run is not blamed for it."""

    class Full(io.StringIO):
        def write(self, _: str) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    settings = tiny("random-objects", "SA", tmp_path / "run")
    with pytest.raises(OSError, match="No space left") as failed:
        run_train(settings, Console(file=Full()))
    assert "folder" not in str(failed.value)
