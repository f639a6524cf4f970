"""Results of Tables 2 to 5 as files: one per run."""

import json
import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paper.recorded import by_flag, reading
from slotmesh.files import write_whole
from slotmesh.training.published import Row
from slotmesh.training.settings import INCIDENTAL, Settings, is_one_of

# Settings that do not change the numbers of a run.
_NOT_DECIDING = (*INCIDENTAL, "data.root", "data.partial")

Curves = dict[str, list[Any]]
"""``step``, and the values at each step; None where one is undefined."""


@dataclass(frozen=True)
class RunOutcome:
    """Results of a model on test samples."""

    metrics: dict[str, float | None]
    """Metrics of the task over all samples; None where one is undefined."""
    standard_errors: dict[str, float]
    """Standard errors of the metrics that are means over samples."""
    undefined: dict[str, int]
    """Number of samples for which each metric is undefined."""
    loss: float
    blind: dict[str, Any]
    """Loss and metrics of a model that ignores its input."""
    n: int
    """Number of samples."""
    seconds: float
    environment: dict[str, Any]
    """Device and versions."""


@dataclass(frozen=True)
class RunRecord:
    """Results of one run, from its training to its test."""

    row: str
    """Name of the row."""
    seed: int
    steps: int
    command: str
    """The command that made this file, as it was typed then."""
    settings: dict[str, Any]
    """Settings that decide the numbers, by flag."""
    parameters: int
    trained_on: list[dict[str, Any]]
    """First step, device and versions of each part of the training."""
    seconds: float
    """Training time over all parts."""
    failed: int | None
    """Step at which loss or gradient was not finite; None if the run did not fail."""
    best_step: int | None
    """Step of the weights that were tested, those with the lowest validation loss."""
    test: RunOutcome | None
    """None if training failed."""
    train: Curves
    """Training loss by step."""
    val: Curves
    """Loss and metrics on the validation samples, by step."""

    @property
    def device(self) -> str:
        """Name of the device it was trained on, or of several in order."""
        names = dict.fromkeys(part["device"] for part in self.trained_on)
        return ", then ".join(names)


def deciding(settings: Settings) -> dict[str, Any]:
    """Return the settings that decide the numbers of a run, by flag."""
    return {
        name: value
        for name, value in by_flag(settings).items()
        if name == "hardware.precision" or not is_one_of(name, _NOT_DECIDING)
    }


def write(path: Path, record: RunRecord) -> None:
    """Write a record with one line per field."""
    parts = asdict(record).items()
    lines = [f"  {json.dumps(k)}: {json.dumps(v, allow_nan=False)}" for k, v in parts]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, "{\n" + ",\n".join(lines) + "\n}\n")


def read(path: Path) -> RunRecord:
    """Read a record.

    Raises:
        ValueError: If the file does not hold one.
    """
    with reading(path):
        values = json.loads(path.read_text(encoding="utf-8"))
        test = None if values["test"] is None else RunOutcome(**values["test"])
        record = RunRecord(**values | {"test": test})
        if (record.failed is None) != (test is not None) or not record.trained_on:
            raise KeyError("test")
    return record


def records_in(
    folder: Path, rows: Iterable[str], new: Iterable[RunRecord] = ()
) -> dict[str, list[RunRecord]]:
    """Return the runs that have been measured, by row and in order of their seeds.

    Args:
        folder: With a file per run.
        rows: Names of the rows, which decide the order.
        new: Runs that replace those of the folder, or are not there yet.
    """
    found: dict[str, list[RunRecord]] = {}
    for row in rows:
        # The name of one row may be a prefix of another.
        paths = [p for p in folder.glob(f"{row}-*.json") if p.stem[len(row) + 1 :].isdigit()]
        runs = {one.seed: one for one in map(read, paths)}
        runs |= {one.seed: one for one in new if one.row == row}
        if runs:
            found[row] = [runs[seed] for seed in sorted(runs)]
    return found


def metrics_of(rows: Iterable[Row], records: dict[str, list[RunRecord]]) -> list[str]:
    """Return all metrics of the paper or the runs, in the order of the paper."""
    # Imports matplotlib, which is slow.
    from slotmesh.training.report.compare import NAMES

    seen = {metric for row in rows for metric in row.results}
    runs = [one for group in records.values() for one in group]
    seen |= {metric for one in runs if one.test for metric in one.test.metrics}
    return [metric for metric in NAMES if metric in seen]


def mean_cells(runs: list[RunRecord], metrics: list[str]) -> list[str]:
    """Return mean and standard deviation of each metric over the seeds that did not fail."""
    from slotmesh.training.report.compare import shown

    cells: list[str] = []
    for name in metrics:
        values = [one.test.metrics.get(name) for one in runs if one.test is not None]
        known = [value for value in values if value is not None]
        std = statistics.stdev(known) if len(known) > 1 else None
        none = "undefined" if values else "failed"
        cells.append(shown(name, statistics.fmean(known), std) if known else none)
    return cells
