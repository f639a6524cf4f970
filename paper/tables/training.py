"""Training of one run that can be stopped at any time and resumed on any machine."""

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from paper.tables.record import Curves, deciding
from slotmesh.environment import environment
from slotmesh.files import write_whole
from slotmesh.training.checkpoint import DamagedError, last_sound
from slotmesh.training.failure import NonFinite
from slotmesh.training.loop import run_train
from slotmesh.training.processes import Lock
from slotmesh.training.runs import prepare, steps_done
from slotmesh.training.settings import Settings, flag
from slotmesh.training.stream import KeptSets
from slotmesh.training.tasks import from_plain

_MACHINES = "machines.json"
_BEST = Path("checkpoints", "best.ckpt")


@dataclass(frozen=True)
class TrainedRun:
    """A run that has ended, as described by its folder."""

    settings: Settings
    """Settings with which it was started, including the precision."""
    failed: int | None
    """Step at which it failed; None if it did not."""
    trained_on: list[dict[str, Any]]
    """First step, device and versions of each part."""
    seconds: float
    """Training time over all parts."""
    train: Curves
    val: Curves


def train(
    settings: Settings, device: torch.device, console: Console, kept: KeptSets | None = None
) -> TrainedRun:
    """Train a run to its end or resume it; a run that is finished is only read.

    Args:
        settings: Settings of the run, with its folder as ``out``.
        device: Device to train on.
        console: Shows progress.
        kept: Sets of samples of the runs before.

    Raises:
        ValueError: If the folder holds another run or a part of this one, or another process trains
            there.
        SystemExit: If it was asked to stop; its state is saved.
    """
    # Imports matplotlib, which is slow.
    from slotmesh.training.report.collect import read_csv

    folder = settings.folder
    lock = Lock(folder)
    try:
        # Not while another process trains there.
        lock.acquire()
        before = started(settings)
        settings = _as_started(settings, before, device)
        done = steps_so_far(folder)
        if before is not None and done:
            _check_whole(settings, before, done)
        if done < settings.steps:
            prepare(settings)
            _note_machine(folder, done, device)
    finally:
        lock.release()
    failed = None
    if done < settings.steps:
        try:
            run_train(settings, console, kept=kept)
        except ValueError as error:
            if not isinstance(error.__cause__, NonFinite):
                raise
            failed = error.__cause__.step
            console.print(str(error), markup=False, highlight=False, soft_wrap=True)
    columns = read_csv(folder / "metrics.csv")
    if failed is None:
        _check_best(folder, columns)
    seconds = columns.get("seconds", [0.0])
    return TrainedRun(
        settings,
        failed,
        _read(folder / _MACHINES),
        round(seconds[-1], 1),
        _curves(columns, "train", ["loss"]),
        _curves(columns, "val", _named(columns, "val/")),
    )


def started(settings: Settings) -> Settings | None:
    """Return the settings with which a run was started, maybe elsewhere; None if it was not.

    They may differ in the precision, and in the number of steps: a run that has ended continues if
    more are asked for and its learning rate does not depend on their number.

    Raises:
        ValueError: If the folder holds another run, or something else.
    """
    folder = settings.folder
    path = folder / "settings.json"
    if not path.is_file():
        if folder.is_dir() and any(not one.name.startswith(".") for one in folder.iterdir()):
            raise _not_whole(folder, f"{path.name} is missing")
        return None
    found = from_plain(_read(path), str(path))
    same = replace(settings.hardware, precision=found.hardware.precision)
    old, new = deciding(found), deciding(replace(settings, hardware=same))
    free = settings.optim.drop_at is None and not settings.optim.cosine
    for name in old | new:
        longer = name == "steps" and free and old[name] < new[name]
        if old.get(name) != new.get(name) and not longer:
            raise ValueError(
                f"{settings.folder} holds a run with {flag(name)} {old.get(name)}, but "
                f"got {new.get(name)}. Choose another folder with --runs."
            )
    return found


def steps_so_far(folder: Path) -> int:
    """Return how many steps of a run are saved; its files stay as they are.

    Raises:
        ValueError: If all checkpoints to resume from are damaged.
    """
    try:
        last = last_sound(folder / "checkpoints", lambda words: None, replace=False)
    except DamagedError as error:
        raise _not_whole(folder, "its last checkpoints are damaged") from error
    return 0 if last is None else steps_done(last)


def _as_started(settings: Settings, before: Settings | None, device: torch.device) -> Settings:
    """Return settings for a device, with the precision that the run was started with."""
    accelerator = "gpu" if device.type == "cuda" else "cpu"
    usual = "bf16" if device.type == "cuda" else "32"
    precision = usual if before is None else before.hardware.precision
    hardware = replace(settings.hardware, accelerator=accelerator, precision=precision)
    if before is not None and before.steps < settings.steps:
        path = settings.folder / "settings.json"
        values = _read(path) | {"steps": settings.steps}
        write_whole(path, json.dumps(values, indent=2) + "\n")
    return replace(settings, hardware=hardware)


def _check_whole(settings: Settings, before: Settings, done: int) -> None:
    """Raise a ValueError if files do not cover all steps so far, as after half a copy."""
    from slotmesh.training.report.collect import read_csv

    folder = settings.folder
    parts = _read(folder / _MACHINES) if (folder / _MACHINES).is_file() else []
    if not parts or parts[0]["from_step"] != 0:
        raise _not_whole(folder, f"{_MACHINES} does not say where it began")
    columns = read_csv(folder / "metrics.csv")
    every = max(before.log_every, settings.log_every)
    rows = zip(columns.get("step", []), columns.get("train/lr", []), strict=False)
    logged = [int(step) for step, rate in rows if step <= done and math.isfinite(rate)]
    if done - max(logged, default=0) >= every:
        raise _not_whole(folder, f"metrics.csv does not have all steps up to {done:,}")
    validated = any(step <= done for step in _val_losses(columns))
    if validated and not (folder / _BEST).is_file():
        raise _not_whole(folder, f"{_BEST} is missing")


def _check_best(folder: Path, columns: dict[str, list[float]]) -> None:
    """Raise a ValueError if other weights than those of the lowest validation loss would be tested.

    ``slotmesh evaluate`` takes the last checkpoint if there is no best one.
    """
    losses = _val_losses(columns)
    if not losses:
        return
    lowest = min(losses, key=losses.__getitem__)
    best = folder / _BEST
    try:
        found = f"is of step {steps_done(best):,}" if best.is_file() else "is missing"
    except DamagedError:
        found = "is damaged"
    if found != f"is of step {lowest:,}":
        what = f"{_BEST} {found}, but the validation loss was lowest at step {lowest:,}"
        raise _not_whole(folder, what)


def _val_losses(columns: dict[str, list[float]]) -> dict[int, float]:
    """Return the validation losses that are finite, by step."""
    rows = zip(columns.get("step", []), columns.get("val/loss", []), strict=False)
    return {int(step): loss for step, loss in rows if math.isfinite(loss)}


def _not_whole(folder: Path, what: str) -> ValueError:
    return ValueError(
        f"{folder} is not a whole run: {what}. Copy it again from where it was trained, or remove "
        "it to train from the beginning."
    )


def _note_machine(folder: Path, step: int, device: torch.device) -> None:
    """Record the device that trains from a step on; parts that are repeated are dropped."""
    path = folder / _MACHINES
    before = _read(path) if path.is_file() else []
    parts = [part for part in before if part["from_step"] < step]
    parts.append({"from_step": step, **environment(device)})
    write_whole(path, json.dumps(parts, indent=2) + "\n")


def _named(columns: dict[str, list[float]], start: str) -> list[str]:
    return [name.removeprefix(start) for name in columns if name.startswith(start)] or ["loss"]


def _curves(columns: dict[str, list[float]], room: str, names: list[str]) -> Curves:
    """Return some columns where they have values, with six digits."""
    steps = columns.get("step", [])
    found = {name: columns.get(f"{room}/{name}", []) for name in names}
    which = [i for i, x in enumerate(found["loss"]) if x == x]
    curves: Curves = {"step": [int(steps[i]) for i in which]}
    return curves | {
        name: [_short(values[i]) for i in which] for name, values in found.items() if values
    }


def _short(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _not_whole(path.parent, f"{path.name} cannot be read ({error})") from error
