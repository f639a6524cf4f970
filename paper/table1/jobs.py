"""Groups of runs, measured one after another: finished ones are skipped, stopped ones resume."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from rich.markup import escape

from paper.recorded import by_flag, command_of, difference, without
from paper.table1.group import train_group
from paper.table1.record import GroupRecord, read, write
from slotmesh.environment import environment
from slotmesh.training.places import place_of
from slotmesh.training.settings import INCIDENTAL, at_least, flag
from slotmesh.training.tasks.random_objects import RandomObjectsSettings

Variant = Literal["SA", "SA-SH", "SA-EMD", "SA-MESH"]
VARIANTS: tuple[Variant, ...] = ("SA", "SA-SH", "SA-EMD", "SA-MESH")
"""The rows of Table 1."""

# Settings that differ between the runs of a group, or do not change their numbers.
_NOT_SHARED = (*INCIDENTAL, "seed", "val_every", "data.sigma", "data.val_size")


@dataclass(frozen=True)
class Effort:
    """How many runs to train, for how long, and where; the paper's numbers by default."""

    n_seeds: int = 5
    """Runs per cell, each with a seed of its own."""
    first_seed: int = 0
    """The first of the consecutive seeds."""
    steps: int = 20_000
    """Training steps; the error is measured at five of them."""
    batch_size: int = 64
    """Sets per training step."""
    train_size: int = 64_000
    """Number of training sets."""
    test_size: int = 10_000
    """Number of sets that the error is measured on."""
    device: str = "auto"
    """cpu, cuda, or auto."""
    out: Path | None = None
    """Folder for the results, one JSON file each."""
    runs: Path = Path("runs/reproduce")
    """Folder for checkpoints. A command that was stopped resumes from them."""
    overwrite: bool = False
    """Measure again what has been measured."""

    def sized(self, settings: RandomObjectsSettings) -> RandomObjectsSettings:
        """Return settings with these numbers of steps and sets."""
        data = replace(
            settings.data,
            batch_size=self.batch_size,
            train_size=self.train_size,
            test_size=self.test_size,
        )
        return replace(settings, steps=self.steps, data=data)


@dataclass(frozen=True)
class Job:
    """A group of runs to measure."""

    name: str
    """Name of its file, without the suffix."""
    settings: RandomObjectsSettings
    only: dict[str, Any]
    """Fields of the command's settings that select this group alone."""


def run_jobs(
    command: str,
    effort: Effort,
    jobs: Sequence[Job],
    folder: Path,
    console: Console,
    *,
    split: Literal["val", "test"] = "test",
) -> list[GroupRecord]:
    """Measure groups of runs; each file is written as soon as its group is done.

    Args:
        command: The word after ``python -m paper``.
        effort: The settings of the command.
        jobs: Groups, in the order in which they are measured.
        folder: Folder for the files.
        console: Shows progress.
        split: Sets to measure the error on.

    Raises:
        ValueError: If the folder holds results with other settings.
    """
    at_least("n_seeds", effort.n_seeds, 1)
    at_least("first_seed", effort.first_seed, 0)
    device = place_of(effort.device)
    seeds = list(range(effort.first_seed, effort.first_seed + effort.n_seeds))
    jobs = [replace(job, settings=effort.sized(job.settings)) for job in jobs]
    # Report mistakes before the work starts, not after part of it.
    finished = {job.name: _finished(folder, job, seeds, split, effort.overwrite) for job in jobs}
    records: list[GroupRecord] = []
    for job in jobs:
        path, record = folder / f"{job.name}.json", finished[job.name]
        if record is not None:
            _say(console, f"{job.name} is measured: keeping {path}. Pass --overwrite to repeat it.")
        else:
            record = _measure(command, effort, job, seeds, folder, split, device, console)
            write(path, record)
            _say(console, f"{job.name}: {record.seconds:.0f} s. Written to {path}")
        records.append(record)
    return records


def shared(settings: RandomObjectsSettings) -> dict[str, Any]:
    """Return the settings that all runs of a group share, by flag."""
    return without(by_flag(settings), _NOT_SHARED)


def _measure(
    command: str,
    effort: Effort,
    job: Job,
    seeds: list[int],
    folder: Path,
    split: Literal["val", "test"],
    device: torch.device,
    console: Console,
) -> GroupRecord:
    place = effort.runs / folder.name / job.name
    if effort.overwrite:
        shutil.rmtree(place, ignore_errors=True)
    found = train_group(job.settings, seeds, place, split=split, device=device, console=console)
    return GroupRecord(
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


def _finished(
    folder: Path, job: Job, seeds: list[int], split: str, overwrite: bool
) -> GroupRecord | None:
    """Return the result of a job if there is one with the settings that are asked for."""
    path = folder / f"{job.name}.json"
    if overwrite or not path.exists():
        return None
    record = read(path)
    other = difference(record.settings, shared(job.settings), ignore=INCIDENTAL)
    fix = "Choose another folder with --out, or pass --overwrite."
    if other is not None:
        name, old, new = other
        raise ValueError(f"{path} has {flag(name)} {old}, but got {new}. {fix}")
    if record.seeds != seeds or record.split != split:
        raise ValueError(
            f"{path} has the seeds {record.seeds} on {record.split} sets, but got {seeds} on "
            f"{split} sets. {fix}"
        )
    return record


def _say(console: Console, text: str) -> None:
    console.print(escape(text), highlight=False, soft_wrap=True)
