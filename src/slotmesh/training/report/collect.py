"""Everything in the folder of a run; missing parts are noted, and are not errors."""

import shlex
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from slotmesh.training.evaluate import evaluate_run
from slotmesh.training.published import Row, row_of
from slotmesh.training.reading import Columns, read_csv, read_json
from slotmesh.training.report.evaluation import checked
from slotmesh.training.runs import Run, open_run
from slotmesh.training.settings import Settings
from slotmesh.training.tasks import TASKS, from_plain

# More than any run has, but not too many to draw.
_MOST_COLUMNS = 200
_MOST_STEPS = 1e15
_MOST_VALUE = 1e100


@dataclass
class Found:
    """A run, and everything known about it."""

    path: Path
    """The path as it was passed."""
    run: Run
    whole: bool
    """Whether there is a checkpoint, and everything to load it."""
    row: Row | None
    """The row of the paper that the run belongs to."""
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
        """Settings of the run."""
        return self.run.settings

    @property
    def last_step(self) -> int:
        """The last logged step; 0 for none."""
        return int(max(self.curves.get("step", []), default=0))

    def curve(self, name: str) -> list[tuple[float, float]]:
        """Points (step, value) of one column, in order."""
        values = self.curves.get(name, [])
        steps = self.curves.get("step", [])
        return [(x, y) for x, y in zip(steps, values, strict=False) if abs(y) < _MOST_VALUE]


def collect(path: Path, device: str, console: Console) -> Found:
    """Read a run, and evaluate it if necessary; print anything unusual about it.

    Raises:
        ValueError: If the path is not a run.
    """
    found = _open(path)
    folder = found.run.folder

    def said(problem: str) -> None:
        found.problems.append(problem)
        console.print(f"{path}: {problem}", markup=False, highlight=False, soft_wrap=True)

    try:
        found.curves = _curves(folder / "metrics.csv")
    except ValueError as error:
        said(str(error))
    try:
        found.environment = _if_there(folder / "environment.json") or {}
    except ValueError as error:
        said(str(error))
    _find_evaluation(found, device, console, said)
    if not found.last_step:
        found.problems.append("metrics.csv has no rows yet, so there are no curves.")
    elif found.last_step < found.settings.steps:
        found.problems.append(
            f"Training is at step {found.last_step} of {found.settings.steps}: it is still "
            "running, or was stopped."
        )
    return found


def _open(path: Path) -> Found:
    """Open a run, or whatever exists of a run that cannot be loaded."""
    try:
        run = open_run(path)
        return Found(path, run, True, row_of(run.settings))
    except ValueError as error:
        if not (path / "settings.json").is_file():
            raise
        # Its data may be elsewhere, or it has no checkpoint yet.
        settings = from_plain(read_json(path / "settings.json"), str(path / "settings.json"))
        run = Run(TASKS[settings.task](settings), path, path / "checkpoints" / "last.ckpt")
        return Found(path, run, False, row_of(settings), problems=[str(error)])


def _curves(path: Path) -> Columns:
    """The logged numbers, from rows that have a step."""
    columns = read_csv(path)
    steps = columns.get("step", [])
    if columns and not steps:
        raise ValueError(f"{path} has no column 'step', so there are no curves.")
    if len(columns) > _MOST_COLUMNS or not all(name.isprintable() for name in columns):
        raise ValueError(f"{path} has columns that no run writes, so there are no curves.")
    good = [i for i, step in enumerate(steps) if 0 <= step < _MOST_STEPS]
    return {name: [values[i] for i in good] for name, values in columns.items()}


def _find_evaluation(
    found: Found, device: str, console: Console, said: Callable[[str], None]
) -> None:
    run = found.run
    kept = run.folder / "evaluation.json"
    values = None
    try:
        values = _if_there(kept)
        if values is not None:
            values = checked(values, kept)
    except ValueError as error:
        values = None
        said(f"{error} It is left unchanged and not used.")
    mine = values is not None and (
        not found.whole or values.get("checkpoint") == run.checkpoint.name
    )
    if values is not None and mine:
        found.evaluation = values
        try:
            found.by_sample = _by_sample(run.folder / "evaluation.csv", values)
        except ValueError as error:
            said(str(error))
        if found.whole and run.checkpoint.stat().st_mtime > kept.stat().st_mtime:
            found.problems.append(
                "The checkpoint is newer than its evaluation, which may be of other weights: run "
                "slotmesh evaluate again."
            )
        return
    if not found.whole:
        return
    # A report writes its page and nothing else.
    with tempfile.TemporaryDirectory() as elsewhere:
        out = Path(elsewhere)
        try:
            found.evaluation = evaluate_run(run, out=out, device=device, console=console)
            found.by_sample = read_csv(out / "evaluation.csv")
            if run.home is not None and not kept.exists():
                found.problems.append(
                    "Evaluated for this page only: `slotmesh evaluate "
                    f"{shlex.quote(str(found.path))}` keeps the results."
                )
        except (ValueError, OSError) as error:
            said(f"It could not be evaluated: {error}")


def _by_sample(path: Path, evaluation: dict[str, Any]) -> Columns:
    columns = read_csv(path)
    rows = max(map(len, columns.values()), default=0)
    if rows > evaluation.get("n", rows):
        raise ValueError(
            f"{path} has {rows} samples, but evaluation.json says {evaluation['n']}: the best and "
            "the worst are not shown. Run slotmesh evaluate again."
        )
    return columns


def _if_there(path: Path) -> dict[str, Any] | None:
    return read_json(path) if path.exists() else None
