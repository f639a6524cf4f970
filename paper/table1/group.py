"""Train the runs of a group together, and measure their errors on the way."""

import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console

from paper.replicas import ReplicaTrainer, evaluate_replicas, train_replicas
from paper.replicas.train import CHECKPOINT
from paper.table1.record import SIGMAS, CellRun, summarise
from slotmesh.files import write_whole
from slotmesh.training.tasks import experiment
from slotmesh.training.tasks.random_objects import RandomObjectsSettings

# How many times errors are measured.
_TIMES = 5
_JOURNAL = "errors.json"


@dataclass(frozen=True)
class TrainedGroup:
    """Errors of all runs of a group, and the time it took."""

    steps: list[int]
    runs: list[CellRun]
    seconds: float


def train_group(
    start: RandomObjectsSettings,
    seeds: Sequence[int],
    folder: Path,
    *,
    split: Literal["val", "test"] = "test",
    device: torch.device | str = "cpu",
    console: Console | None = None,
) -> TrainedGroup:
    """Train one run per sigma of Table 1 and seed, and measure the errors at five steps.

    Args:
        start: Settings of all runs, except for ``seed`` and ``data.sigma``.
        seeds: Seeds, one run each per sigma.
        folder: Folder for a checkpoint and the errors so far; training that was stopped resumes.
        split: Held-out sets to measure the error on, ``data.test_size`` of them.
        device: Device to train on.
        console: Shows progress, if given.

    Raises:
        ValueError: If the folder holds other runs.
    """
    cells = [(sigma, seed) for sigma in SIGMAS for seed in seeds]
    experiments = [
        experiment(replace(start, seed=seed, data=replace(start.data, sigma=sigma)))
        for sigma, seed in cells
    ]
    every = -(-start.steps // _TIMES)
    folder.mkdir(parents=True, exist_ok=True)
    journal = _Journal(folder)

    def on_chunk(trainer: ReplicaTrainer) -> None:
        n = start.data.test_size
        errors = evaluate_replicas(trainer.model, experiments, split, n=n).tolist()
        journal.add(trainer.step, errors, trainer.failed())
        if console is not None:
            line = _line(start.variant, trainer.step, journal.errors(trainer.step))
            console.print(line, markup=False, highlight=False, soft_wrap=True)

    train_replicas(
        experiments, device=device, folder=folder, every=every, on_chunk=on_chunk, console=console
    )
    steps = sorted({*range(every, start.steps, every), start.steps})
    journal.check(steps)
    lost = journal.failed(steps[-1])
    runs = [
        CellRun(sigma, seed, lost[i], [journal.errors(step)[i] for step in steps])
        for i, (sigma, seed) in enumerate(cells)
    ]
    return TrainedGroup(steps, runs, round(journal.seconds(steps[-1]), 1))


class _Journal:
    """Errors and times by step, kept in a file so that a kill between checkpoints loses nothing."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / _JOURNAL
        self._rows: dict[str, dict[str, Any]] = {}
        if self._path.is_file() and (folder / CHECKPOINT).is_file():
            self._rows = json.loads(self._path.read_text(encoding="utf-8"))
        self._began = time.perf_counter()

    def add(self, step: int, errors: list[float], failed: list[int | None]) -> None:
        now = time.perf_counter()
        before = [int(done) for done in self._rows if int(done) < step]
        seconds = self.seconds(max(before)) if before else 0.0
        known = self._rows[str(max(before))]["failed"] if before else failed
        lost: list[int | None] = []
        for old, new, error in zip(known, failed, errors, strict=True):
            at = new if old is None else old
            lost.append(step if at is None and not math.isfinite(error) else at)
        self._rows[str(step)] = {
            "seconds": seconds + now - self._began,
            "failed": lost,
            "errors": [
                float(f"{error:.6g}") if at is None else None
                for error, at in zip(errors, lost, strict=True)
            ],
        }
        self._began = now
        write_whole(self._path, json.dumps(self._rows) + "\n")

    def check(self, steps: list[int]) -> None:
        missing = [step for step in steps if str(step) not in self._rows]
        if missing:
            raise ValueError(
                f"{self._path.parent} holds a checkpoint, but no errors of step {missing[0]}. "
                "Remove the folder, or pass --overwrite."
            )

    def errors(self, step: int) -> list[float | None]:
        return self._rows[str(step)]["errors"]

    def failed(self, step: int) -> list[int | None]:
        return self._rows[str(step)]["failed"]

    def seconds(self, step: int) -> float:
        return self._rows[str(step)]["seconds"]


def _line(variant: str, step: int, errors: list[float | None]) -> str:
    """Medians by sigma, in one line."""
    size = len(errors) // len(SIGMAS)
    cells = [
        f"sigma {sigma:g}: {summarise(errors[i * size : (i + 1) * size]).text}"
        for i, sigma in enumerate(SIGMAS)
    ]
    return f"{variant}, step {step}: {'; '.join(cells)}"
