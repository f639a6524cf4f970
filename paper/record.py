"""What was measured, as small files: one for each group of runs that was trained together."""

import json
import math
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slotmesh.files import write_whole

SIGMAS = (1.0, 0.1, 0.01)
"""The columns of Table 1."""
LATER = {"transport.grad": "straight_through"}
"""Settings that are younger than some results, and the value that these were made with."""


@dataclass(frozen=True)
class Run:
    """One run of a group."""

    sigma: float
    seed: int
    failed: int | None
    """The step at which its loss, gradient or error was not finite; None for none."""
    errors: list[float | None]
    """RMSE over sigma at each step of :attr:`Record.steps`; None once it failed."""


@dataclass(frozen=True)
class Summary:
    """The runs of one cell of a table. A run that failed is worse than any other."""

    median: float
    low: float
    high: float
    n: int
    failed: int

    @property
    def text(self) -> str:
        """Median and range, as tables have it.

        Example:
            >>> from paper.record import summarise
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


def difference(
    old: dict[str, Any], new: dict[str, Any], *, free: tuple[str, ...] = ()
) -> tuple[str, Any, Any] | None:
    """The first setting with two values, and these; None where a result has the settings asked for.

    Example:
        >>> from paper.record import difference
        >>> difference({"steps": 10, "seed": 1}, {"steps": 20, "seed": 1})
        ('steps', 10, 20)
    """
    old = {name: LATER[name] for name in new if name in LATER} | old
    for name in old | new:
        if old.get(name) != new.get(name) and name not in free:
            return name, old.get(name), new.get(name)
    return None


@dataclass(frozen=True)
class Record:
    """A group of runs that differ in sigma and seed only."""

    name: str
    variant: str
    command: str
    """Makes this file."""
    settings: dict[str, Any]
    """All that the runs have in common and that decides their numbers."""
    environment: dict[str, str | None]
    """Versions and the name of the device."""
    seconds: float
    """For training and testing all runs."""
    split: str
    """What the error was measured on: ``test``, or ``val`` where settings were chosen by it."""
    n: int
    """Sets that it was measured on."""
    steps: list[int]
    """When it was measured."""
    runs: list[Run]

    @property
    def seeds(self) -> list[int]:
        """In order, each once."""
        return list(dict.fromkeys(run.seed for run in self.runs))

    def at(self, sigma: float, when: int = -1) -> Summary:
        """The runs of one sigma, at one of :attr:`steps`: the last by default."""
        return summarise([run.errors[when] for run in self.runs if run.sigma == sigma])


def summarise(errors: list[float | None]) -> Summary:
    """Median and range of errors, None of a run that failed."""
    known = [math.inf if error is None else error for error in errors]
    failed = sum(error is None for error in errors)
    return Summary(statistics.median(known), min(known), max(known), len(known), failed)


def write(path: Path, record: Record) -> None:
    """Write a record, a line a run."""
    values = asdict(record)
    runs = [json.dumps(run, allow_nan=False) for run in values.pop("runs")]
    head = [f"  {json.dumps(k)}: {json.dumps(v, allow_nan=False)}" for k, v in values.items()]
    body = ",\n".join(f"    {run}" for run in runs)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, "{\n" + ",\n".join(head) + ',\n  "runs": [\n' + body + "\n  ]\n}\n")


def read(path: Path) -> Record:
    """A record.

    Raises:
        ValueError: If the file holds something else.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        runs = [Run(**run) for run in values["runs"]]
        record = Record(**values | {"runs": runs})
        whole = all(len(run.errors) == len(record.steps) > 0 for run in runs)
        if not whole or not runs:
            raise KeyError("errors")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} holds no result of `python -m paper` ({error!r}). Move it away, or pass "
            "--overwrite to the command that makes it."
        ) from error
    return record


def _three(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else "failed"
