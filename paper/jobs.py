"""Groups of runs one after another: what is measured is skipped, what was stopped goes on."""

import json
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from rich.markup import escape

from paper.group import train_group
from paper.record import Record, difference, read, write
from slotmesh.environment import environment
from slotmesh.training.places import place_of
from slotmesh.training.published import flags
from slotmesh.training.runs import _leaves
from slotmesh.training.settings import at_least, flag, plain
from slotmesh.training.tasks.random_objects import RandomObjectsSettings

Variant = Literal["SA", "SA-SH", "SA-EMD", "SA-MESH"]
VARIANTS: tuple[Variant, ...] = ("SA", "SA-SH", "SA-EMD", "SA-MESH")
"""The rows of Table 1."""

# What a run may have for itself, or that does not change its numbers.
_NOT_SHARED = (
    "seed",
    "out",
    "overwrite",
    "val_every",
    "save_every",
    "log_every",
    "hardware",
    "data.sigma",
    "data.val_size",
)
# Flags that a recorded command leaves out: places, and settings that presets have by then.
_NOT_SAID = ("out", "runs", "checkpoints", "overwrite", "device", "choice")


@dataclass(frozen=True)
class Effort:
    """How many runs, how long, and where; the paper's by default."""

    seeds: int = 5
    """Runs of each cell."""
    first_seed: int = 0
    """Their seeds are this one and those after it."""
    steps: int = 20_000
    """Training steps; the error is measured at each fifth of them."""
    batch_size: int = 64
    """Sets in a step."""
    train_size: int = 64_000
    """Different training sets."""
    test_size: int = 10_000
    """Sets that the error is measured on."""
    device: str = "auto"
    """cpu, cuda, or auto."""
    out: Path | None = None
    """Folder for the results, a JSON file each."""
    runs: Path = Path("runs/reproduce")
    """Folder for checkpoints. A command that was stopped goes on from them."""
    overwrite: bool = False
    """Measure anew what is measured."""

    def sized(self, settings: RandomObjectsSettings) -> RandomObjectsSettings:
        """Settings of this length, with data of these sizes."""
        data = replace(
            settings.data,
            batch_size=self.batch_size,
            train_size=self.train_size,
            test_size=self.test_size,
        )
        return replace(settings, steps=self.steps, data=data)


@dataclass(frozen=True)
class Job:
    """A group of runs to be measured."""

    name: str
    """Of its file, without the ending."""
    settings: RandomObjectsSettings
    only: dict[str, Any]
    """What to add to the command for this group alone, by the names of settings."""


def run_jobs(
    command: str,
    effort: Effort,
    jobs: Sequence[Job],
    folder: Path,
    console: Console,
    *,
    split: Literal["val", "test"] = "test",
) -> list[Record]:
    """Measure groups of runs; each file is written as soon as its group is done.

    Args:
        command: The words after ``python -m paper``.
        effort: What was asked for.
        jobs: In this order.
        folder: For the files.
        console: Shows progress.
        split: What to measure on.

    Raises:
        ValueError: If the folder holds results with other settings.
    """
    at_least("seeds", effort.seeds, 1)
    at_least("first_seed", effort.first_seed, 0)
    device = place_of(effort.device)
    seeds = list(range(effort.first_seed, effort.first_seed + effort.seeds))
    jobs = [replace(job, settings=effort.sized(job.settings)) for job in jobs]
    # Mistakes should be known before the work, not after a part of it.
    kept = {job.name: _kept(folder, job, seeds, split, effort.overwrite) for job in jobs}
    records: list[Record] = []
    for job in jobs:
        path, record = folder / f"{job.name}.json", kept[job.name]
        if record is not None:
            _say(console, f"{job.name} is measured: {path} stays. Pass --overwrite to do it again.")
        else:
            record = _measure(command, effort, job, seeds, folder, split, device, console)
            write(path, record)
            _say(console, f"{job.name}: {record.seconds:.0f} s. Written: {path}")
        records.append(record)
    return records


def shared(settings: RandomObjectsSettings) -> dict[str, Any]:
    """The settings that all runs of a group have, by their names on the command line."""
    leaves = _leaves(json.loads(json.dumps(plain(settings))))
    rooms = {name: name.partition(".")[0] for name in leaves}
    return {
        name: value
        for name, value in leaves.items()
        if name not in _NOT_SHARED and rooms[name] not in _NOT_SHARED
    }


def command_of(command: str, effort: Any, only: dict[str, Any]) -> str:
    """What to type to measure one group: what differs from the defaults, but no places."""
    usual = type(effort)()
    said = {
        field.name: getattr(effort, field.name)
        for field in fields(effort)
        if field.name not in _NOT_SAID and getattr(effort, field.name) != getattr(usual, field.name)
    }
    words = flags(dict(only) | {k: v for k, v in said.items() if k not in only})
    return shlex.join(["slotmesh", "reproduce", command, *words])


def _measure(
    command: str,
    effort: Effort,
    job: Job,
    seeds: list[int],
    folder: Path,
    split: Literal["val", "test"],
    device: torch.device,
    console: Console,
) -> Record:
    place = effort.runs / folder.name / job.name
    if effort.overwrite:
        shutil.rmtree(place, ignore_errors=True)
    found = train_group(job.settings, seeds, place, split=split, device=device, console=console)
    return Record(
        name=job.name,
        variant=job.settings.variant,
        command=command_of(command, effort, job.only),
        settings=shared(job.settings),
        environment=environment(device),
        seconds=found.seconds,
        split=split,
        n=effort.test_size,
        steps=found.steps,
        runs=found.runs,
    )


def _kept(folder: Path, job: Job, seeds: list[int], split: str, overwrite: bool) -> Record | None:
    """The result that is there already, if it is the one that was asked for."""
    path = folder / f"{job.name}.json"
    if overwrite or not path.exists():
        return None
    record = read(path)
    other = difference(record.settings, shared(job.settings))
    mend = "Choose another folder with --out, or pass --overwrite."
    if other is not None:
        name, old, new = other
        raise ValueError(f"{path} has {flag(name)} {old}, but {new} came. {mend}")
    if record.seeds != seeds or record.split != split:
        raise ValueError(
            f"{path} has the seeds {record.seeds} on {record.split} sets, but {seeds} on {split} "
            f"sets came. {mend}"
        )
    return record


def _say(console: Console, text: str) -> None:
    console.print(escape(text), highlight=False, soft_wrap=True)
