"""Runs that differ in sigma and seed, trained together and tested as they go."""

import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console

from paper.record import SIGMAS, Run, summarise
from paper.replicas import Together, judge_together, train_together
from paper.replicas.train import CHECKPOINT
from slotmesh.files import write_whole
from slotmesh.training.tasks import experiment
from slotmesh.training.tasks.random_objects import RandomObjectsSettings

# How often errors are measured.
_TIMES = 5
_JOURNAL = "errors.json"


@dataclass(frozen=True)
class Trained:
    """What a group came to."""

    steps: list[int]
    runs: list[Run]
    seconds: float


def train_group(
    start: RandomObjectsSettings,
    seeds: Sequence[int],
    folder: Path,
    *,
    split: Literal["val", "test"] = "test",
    device: torch.device | str = "cpu",
    console: Console | None = None,
) -> Trained:
    """Train one run for each sigma of Table 1 and each seed; errors at five steps on the way.

    Args:
        start: Settings of all of them but for ``seed`` and ``data.sigma``.
        seeds: One run each.
        folder: For a checkpoint and the errors so far: training that was stopped goes on.
        split: Sets that nothing is learned from; ``data.test_size`` of them.
        device: Where to train.
        console: Shows progress, if given.

    Raises:
        ValueError: If the folder holds other runs.
    """
    cells = [(sigma, seed) for sigma in SIGMAS for seed in seeds]
    made = [
        experiment(replace(start, seed=seed, data=replace(start.data, sigma=sigma)))
        for sigma, seed in cells
    ]
    every = -(-start.steps // _TIMES)
    folder.mkdir(parents=True, exist_ok=True)
    journal = _Journal(folder)

    def on_chunk(now: Together) -> None:
        errors = judge_together(now.model, made, split, n=start.data.test_size).tolist()
        journal.add(now.step, errors, now.failed())
        if console is not None:
            said = _line(start.variant, now.step, journal.errors(now.step))
            console.print(said, markup=False, highlight=False, soft_wrap=True)

    train_together(
        made, device=device, folder=folder, every=every, on_chunk=on_chunk, console=console
    )
    steps = sorted({*range(every, start.steps, every), start.steps})
    journal.check(steps)
    lost = journal.failed(steps[-1])
    runs = [
        Run(sigma, seed, lost[i], [journal.errors(step)[i] for step in steps])
        for i, (sigma, seed) in enumerate(cells)
    ]
    return Trained(steps, runs, round(journal.seconds(steps[-1]), 1))


class _Journal:
    """Errors and time by step, in a file: a kill between two checkpoints loses nothing."""

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
    """Medians by sigma."""
    size = len(errors) // len(SIGMAS)
    cells = [
        f"sigma {sigma:g}: {summarise(errors[i * size : (i + 1) * size]).text}"
        for i, sigma in enumerate(SIGMAS)
    ]
    return f"{variant}, step {step}: {'; '.join(cells)}"
