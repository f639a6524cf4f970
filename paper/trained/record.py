"""The result of one run of a table, as one small file."""

import json
import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slotmesh.files import write_whole
from slotmesh.training.published import Row
from slotmesh.training.runs import _leaves
from slotmesh.training.settings import Settings, plain

# What says where a run is and how often it is saved, not what it computes.
_PLACES = (
    "out",
    "overwrite",
    "save_every",
    "log_every",
    "data.root",
    "data.partial",
    "data.workers",
)

Curves = dict[str, list[Any]]
"""``step``, and numbers at each; None where one is not defined."""


@dataclass(frozen=True)
class Outcome:
    """What a model reached on test samples."""

    metrics: dict[str, float | None]
    """Those of the task, over all samples; None where one is not defined."""
    standard_errors: dict[str, float]
    """Of those that are means over samples, by the spread of these."""
    undefined: dict[str, int]
    """Samples that a metric leaves out."""
    loss: float
    blind: dict[str, Any]
    """Loss and metrics of a model that looks at nothing."""
    n: int
    """Samples."""
    seconds: float
    environment: dict[str, Any]
    """Versions and the name of the device."""


@dataclass(frozen=True)
class Measured:
    """One run, from its first weights to its test."""

    row: str
    """Its name in the table."""
    seed: int
    steps: int
    command: str
    """Makes this file."""
    settings: dict[str, Any]
    """All that decides the numbers."""
    parameters: int
    trained_on: list[dict[str, Any]]
    """Of each part of the training: its first step, versions and the name of the device."""
    seconds: float
    """Of training, over all its parts."""
    failed: int | None
    """The step at which loss or gradient was not finite; None for none."""
    best_step: int | None
    """The step of the weights that were tested: those of the lowest validation loss."""
    test: Outcome | None
    """None where training failed."""
    train: Curves
    """The loss on the way."""
    val: Curves
    """Loss and metrics of the validation samples on the way."""

    @property
    def device(self) -> str:
        """What it was trained on."""
        names = dict.fromkeys(part["device"] for part in self.trained_on)
        return ", then ".join(names)


def deciding(settings: Settings) -> dict[str, Any]:
    """The settings that decide a run's numbers, by their names on the command line."""
    leaves = _leaves(json.loads(json.dumps(plain(settings))))
    return {
        name: value
        for name, value in leaves.items()
        if name not in _PLACES
        and (name == "hardware.precision" or not name.startswith("hardware."))
    }


def write(path: Path, record: Measured) -> None:
    """Write a record, a line for each of its parts."""
    parts = asdict(record).items()
    lines = [f"  {json.dumps(k)}: {json.dumps(v, allow_nan=False)}" for k, v in parts]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, "{\n" + ",\n".join(lines) + "\n}\n")


def read(path: Path) -> Measured:
    """A record.

    Raises:
        ValueError: If the file holds something else.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        test = None if values["test"] is None else Outcome(**values["test"])
        record = Measured(**values | {"test": test})
        if (record.failed is None) != (test is not None) or not record.trained_on:
            raise KeyError("test")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} holds no result of `python -m paper` ({error!r}). Move it "
            "away, or pass --overwrite to the command that makes it."
        ) from error
    return record


def records_in(folder: Path, rows: Iterable[str]) -> dict[str, list[Measured]]:
    """The runs that are measured, by row and in the order of their seeds."""
    found: dict[str, list[Measured]] = {}
    for row in rows:
        # One name may be the beginning of another.
        paths = [p for p in folder.glob(f"{row}-*.json") if p.stem[len(row) + 1 :].isdigit()]
        if paths:
            found[row] = sorted(map(read, paths), key=lambda one: one.seed)
    return found


def metrics_of(rows: Iterable[Row], records: dict[str, list[Measured]]) -> list[str]:
    """All metrics that the paper or the runs have, in the paper's order."""
    # It knows how to draw, which takes long to load.
    from slotmesh.training.report.compare import NAMES

    seen = {metric for row in rows for metric in row.results}
    runs = [one for group in records.values() for one in group]
    seen |= {metric for one in runs if one.test for metric in one.test.metrics}
    return [metric for metric in NAMES if metric in seen]


def together(runs: list[Measured], metrics: list[str]) -> list[str]:
    """The mean of each metric over the seeds that did not fail, with its deviation if several."""
    from slotmesh.training.report.compare import shown

    cells: list[str] = []
    for name in metrics:
        values = [one.test.metrics.get(name) for one in runs if one.test is not None]
        known = [value for value in values if value is not None]
        std = statistics.stdev(known) if len(known) > 1 else None
        none = "undefined" if values else "failed"
        cells.append(shown(name, statistics.fmean(known), std) if known else none)
    return cells
