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
from slotmesh.training.checkpoint import last_sound
from slotmesh.training.failure import NonFinite
from slotmesh.training.loop import run_train
from slotmesh.training.processes import Lock
from slotmesh.training.runs import prepare, steps_done
from slotmesh.training.settings import Settings, flag
from slotmesh.training.stream import KeptSets
from slotmesh.training.tasks import from_plain

_MACHINES = "machines.json"


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
        ValueError: If the folder holds another run, or another process trains there.
        SystemExit: If it was asked to stop; its state is saved.
    """
    # Imports matplotlib, which is slow.
    from slotmesh.training.report.collect import read_csv

    folder = settings.folder
    lock = Lock(folder)
    try:
        # Not while another process trains there.
        lock.acquire()
        settings = _as_started(settings, device)
        last = last_sound(folder / "checkpoints", lambda words: console.print(words, markup=False))
        done = 0 if last is None else steps_done(last)
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
        ValueError: If the folder holds another run.
    """
    path = settings.folder / "settings.json"
    if not path.is_file():
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


def _as_started(settings: Settings, device: torch.device) -> Settings:
    """Return settings for a device, with the precision that the run was started with."""
    before = started(settings)
    accelerator = "gpu" if device.type == "cuda" else "cpu"
    usual = "bf16" if device.type == "cuda" else "32"
    precision = usual if before is None else before.hardware.precision
    hardware = replace(settings.hardware, accelerator=accelerator, precision=precision)
    if before is not None and before.steps < settings.steps:
        path = settings.folder / "settings.json"
        values = _read(path) | {"steps": settings.steps}
        write_whole(path, json.dumps(values, indent=2) + "\n")
    return replace(settings, hardware=hardware)


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
        raise ValueError(
            f"{path} cannot be read: {error}. Remove it, or restore a copy."
        ) from error
