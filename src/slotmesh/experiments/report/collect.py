"""All that the folder of a run has to say; what is missing is said, not an error."""

import csv
import json
import math
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from slotmesh.experiments.evaluate import evaluate_run
from slotmesh.experiments.paper import Row, row_of
from slotmesh.experiments.runs import Run, open_run
from slotmesh.experiments.settings import Settings
from slotmesh.experiments.tasks import TASKS, from_plain

Columns = dict[str, list[float]]
"""Numbers of a CSV file by column, NaN where it has none."""


@dataclass
class Found:
    """A run, and what is known about it."""

    path: Path
    """As it was given."""
    run: Run
    whole: bool
    """Whether there is a checkpoint, and all that it needs."""
    row: Row | None
    """Of the paper."""
    evaluation: dict[str, Any] | None = None
    by_sample: Columns = field(default_factory=dict)
    """``sample``, ``loss`` and metrics of each test sample."""
    curves: Columns = field(default_factory=dict)
    """``step``, and what was logged."""
    environment: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    """What is missing, and why."""

    @property
    def settings(self) -> Settings:
        """Of the run."""
        return self.run.settings

    @property
    def last_step(self) -> int:
        """The last that was logged; 0 for none."""
        return int(max(self.curves.get("step", []), default=0))

    def curve(self, name: str) -> list[tuple[float, float]]:
        """Points (step, value) of one column, in order."""
        values = self.curves.get(name, [])
        steps = self.curves.get("step", [])
        return [(x, y) for x, y in zip(steps, values, strict=False) if math.isfinite(y)]


def collect(path: Path, device: str, console: Console) -> Found:
    """Read a run, and evaluate it if that was not done.

    Raises:
        ValueError: If the path is not a run.
    """
    found = _open(path)
    folder = found.run.folder
    found.curves = read_csv(folder / "metrics.csv")
    found.environment = _read_json(folder / "environment.json") or {}
    _find_evaluation(found, device, console)
    if not found.last_step:
        found.problems.append("metrics.csv has no rows yet: there are no curves.")
    elif found.last_step < found.settings.steps:
        found.problems.append(
            f"Training is at step {found.last_step} of {found.settings.steps}: it still goes on, "
            "or was stopped."
        )
    return found


def read_csv(path: Path) -> Columns:
    """Columns of numbers; an empty cell is NaN, and a row that was cut short is left out."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = [r for r in csv.DictReader(file) if None not in r and None not in r.values()]
    except OSError:
        return {}
    columns: Columns = {}
    for row in rows:
        for name, value in row.items():
            columns.setdefault(name, []).append(_number(value))
    return columns


def _open(path: Path) -> Found:
    """A run, or what there is of one that cannot be run."""
    try:
        run = open_run(path)
        return Found(path, run, True, row_of(run.settings))
    except ValueError as error:
        values = _read_json(path / "settings.json")
        if values is None:
            raise
        # Its data may be elsewhere, or its first checkpoint not yet written.
        settings = from_plain(values, str(path / "settings.json"))
        run = Run(TASKS[settings.task](settings), path, path / "checkpoints" / "last.ckpt")
        return Found(path, run, False, row_of(settings), problems=[str(error)])


def _find_evaluation(found: Found, device: str, console: Console) -> None:
    run = found.run
    kept = run.folder / "evaluation.json"
    values = _read_json(kept)
    mine = values is not None and (
        not found.whole or values.get("checkpoint") == run.checkpoint.name
    )
    if values is not None and mine and isinstance(values.get("metrics"), dict):
        found.evaluation = _with_nan(values)
        found.by_sample = read_csv(run.folder / "evaluation.csv")
        if found.whole and run.checkpoint.stat().st_mtime > kept.stat().st_mtime:
            found.problems.append(
                "The checkpoint is newer than its evaluation, which may be of other weights: run "
                "slotmesh evaluate again."
            )
        return
    if not found.whole:
        return
    with tempfile.TemporaryDirectory() as elsewhere:
        # What the folder says about another of its checkpoints stays.
        out = run.folder if values is None else Path(elsewhere)
        try:
            found.evaluation = evaluate_run(run, out=out, device=device, console=console)
            found.by_sample = read_csv(out / "evaluation.csv")
        except (ValueError, OSError) as error:
            found.problems.append(f"It could not be evaluated: {error}")


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return values if isinstance(values, dict) else None


def _with_nan(values: dict[str, Any]) -> dict[str, Any]:
    """What is undefined is null in JSON, which has no NaN."""

    def numbers(found: dict[str, Any]) -> dict[str, float]:
        return {k: math.nan if v is None else v for k, v in found.items()}

    blind = values.get("blind") or {}
    return values | {
        "metrics": numbers(values["metrics"]),
        "blind": blind | {"metrics": numbers(blind.get("metrics", {}))},
    }


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
