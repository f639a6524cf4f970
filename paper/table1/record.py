"""Results of Table 1 as files: one per group of runs that were trained together."""

import json
import math
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paper.recorded import reading
from slotmesh.files import write_whole

SIGMAS = (1.0, 0.1, 0.01)
"""The columns of Table 1."""


@dataclass(frozen=True)
class CellRun:
    """One run of a group: a seed in a cell of the table."""

    sigma: float
    seed: int
    failed: int | None
    """Step at which loss, gradient or error was not finite; None if the run did not fail."""
    errors: list[float | None]
    """RMSE / sigma at each of :attr:`GroupRecord.steps`; None after the run failed."""


@dataclass(frozen=True)
class CellSummary:
    """Median and range of the runs in one cell; a failed run counts as worse than any other."""

    median: float
    low: float
    high: float
    n: int
    failed: int

    @property
    def text(self) -> str:
        """Median and range as tables show them.

        Example:
            >>> from paper.table1.record import summarise
            >>> summarise([0.25, 0.2, 0.3]).text
            '0.250 [0.200-0.300]'
            >>> summarise([0.25, 0.2, None]).text, summarise([None]).text
            ('0.250 [0.200-failed], 1 of 3 failed', 'failed')
        """
        if self.failed == self.n:
            return "failed"
        low, median, high = (_three(x) for x in (self.low, self.median, self.high))
        lost = f", {self.failed} of {self.n} failed" if self.failed else ""
        return f"{median} [{low}-{high}]{lost}"


@dataclass(frozen=True)
class GroupRecord:
    """Results of a group of runs that differ only in sigma and seed."""

    name: str
    variant: str
    command: str
    """The command that made this file, as it was typed then."""
    settings: dict[str, Any]
    """Settings that all runs share and that decide their numbers, by flag."""
    environment: dict[str, str | None]
    """Device and versions."""
    seconds: float
    """Time for training and testing all runs."""
    split: str
    """Sets that the error was measured on: ``test``, or ``val`` if settings were chosen by it."""
    n: int
    """How many of them."""
    steps: list[int]
    """Training steps at which the error was measured."""
    runs: list[CellRun]

    @property
    def seeds(self) -> list[int]:
        """The different seeds, in order."""
        return list(dict.fromkeys(run.seed for run in self.runs))

    def at(self, sigma: float, when: int = -1) -> CellSummary:
        """Summarise the runs of one sigma at one of :attr:`steps`, the last by default."""
        return summarise([run.errors[when] for run in self.runs if run.sigma == sigma])


def summarise(errors: list[float | None]) -> CellSummary:
    """Return median and range of errors; None stands for a run that failed."""
    known = [math.inf if error is None else error for error in errors]
    failed = sum(error is None for error in errors)
    return CellSummary(statistics.median(known), min(known), max(known), len(known), failed)


def write(path: Path, record: GroupRecord) -> None:
    """Write a record with one line per run."""
    values = asdict(record)
    runs = [json.dumps(run, allow_nan=False) for run in values.pop("runs")]
    head = [f"  {json.dumps(k)}: {json.dumps(v, allow_nan=False)}" for k, v in values.items()]
    body = ",\n".join(f"    {run}" for run in runs)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, "{\n" + ",\n".join(head) + ',\n  "runs": [\n' + body + "\n  ]\n}\n")


def read(path: Path) -> GroupRecord:
    """Read a record.

    Raises:
        ValueError: If the file does not hold one.
    """
    with reading(path):
        values = json.loads(path.read_text(encoding="utf-8"))
        runs = [CellRun(**run) for run in values["runs"]]
        record = GroupRecord(**values | {"runs": runs})
        complete = all(len(run.errors) == len(record.steps) > 0 for run in runs)
        if not complete or not runs:
            raise KeyError("errors")
    return record


def _three(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else "failed"
