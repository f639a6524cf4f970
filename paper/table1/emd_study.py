"""``python -m paper table1-emd``: find the part of SA-EMD that decides whether it learns."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from paper.table1.jobs import Effort, Job, run_jobs
from paper.table1.record import SIGMAS, GroupRecord, read
from paper.table1.rows import TABLE1, base, screen_table
from slotmesh.training.published import changed

EmdPart = Literal["approximate", "mean", "straight-through", "detached"]
PARTS: dict[EmdPart, tuple[dict[str, Any], str]] = {
    "approximate": (
        {"transport.approximate": 0.01},
        "a Sinkhorn plan at temperature 0.01 instead of the exact plan: tests exactness",
    ),
    "mean": (
        {"transport.combine": "mean"},
        "the mean of the two plans instead of their sum: tests the doubled mass",
    ),
    "straight-through": (
        {"transport.combine": "straight_through"},
        "the exact plan with the gradient of the Sinkhorn plan: tests the sum",
    ),
    "detached": (
        {"transport.combine": "detached"},
        "the sum without a gradient: tests the gradient",
    ),
}
"""Changes of SA-EMD, each with what it tests."""


@dataclass(frozen=True)
class Table1Emd(Effort):
    """Train SA-EMD with one part changed at a time: exactness, the sum, the gradient."""

    parts: tuple[EmdPart, ...] = tuple(PARTS)
    """Parts to change. Several processes can measure different ones at the same time."""


def run_emd_study(settings: Table1Emd, console: Console | None = None) -> list[GroupRecord]:
    """Measure SA-EMD with one part changed at a time and print the errors."""
    console = Console() if console is None else console
    folder = TABLE1 / "emd-study" if settings.out is None else settings.out
    jobs = [
        Job(part, changed(base("SA-EMD"), PARTS[part][0]), {"parts": part})
        for part in settings.parts
    ]
    records = run_jobs("table1-emd", settings, jobs, folder, console)
    found = parts_in(folder).items()
    rows: dict[str, list[str]] = {part: [r.at(s).text for s in SIGMAS] for part, r in found}
    console.print(screen_table("SA-EMD, median and range over the seeds", rows))
    return records


def parts_in(folder: Path) -> dict[str, GroupRecord]:
    """Return the changes that have been measured, by name."""
    paths = {str(part): folder / f"{part}.json" for part in PARTS}
    return {part: read(path) for part, path in paths.items() if path.is_file()}
