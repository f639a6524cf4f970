"""``python -m paper table1-emd``: which part of SA-EMD decides whether it learns."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from paper.jobs import Effort, Job, run_jobs
from paper.record import SIGMAS, Record, read
from paper.rows import TABLE1, base, table
from slotmesh.training.published import changed

Part = Literal["approximate", "mean", "straight-through", "detached"]
PARTS: dict[Part, tuple[dict[str, Any], str]] = {
    "approximate": (
        {"transport.approximate": 0.01},
        "a Sinkhorn plan of temperature 0.01 in place of the exact one: what exactness is worth",
    ),
    "mean": (
        {"transport.combine": "mean"},
        "half of the sum: what the doubled mass is worth",
    ),
    "straight-through": (
        {"transport.combine": "straight_through"},
        "the exact plan alone, with the gradient of the Sinkhorn plan: what adding is worth",
    ),
    "detached": (
        {"transport.combine": "detached"},
        "the sum without its gradient: what the gradient is worth",
    ),
}
"""Changes of SA-EMD, one each, and what they tell."""


@dataclass(frozen=True)
class Table1Emd(Effort):
    """Train SA-EMD with one of its parts changed at a time: exactness, the sum, the gradient."""

    parts: tuple[Part, ...] = tuple(PARTS)
    """Which changes. They can be measured by several processes at once."""


def run_emd_study(settings: Table1Emd, console: Console | None = None) -> list[Record]:
    """Measure SA-EMD with some of its parts changed."""
    console = Console() if console is None else console
    folder = TABLE1 / "emd-study" if settings.out is None else settings.out
    jobs = [
        Job(part, changed(base("SA-EMD"), PARTS[part][0]), {"parts": part})
        for part in settings.parts
    ]
    records = run_jobs("table1-emd", settings, jobs, folder, console)
    found = parts_in(folder).items()
    rows: dict[str, list[str]] = {part: [r.at(s).text for s in SIGMAS] for part, r in found}
    console.print(table("SA-EMD, median and range of the seeds", rows))
    return records


def parts_in(folder: Path) -> dict[str, Record]:
    """The changes that are measured."""
    paths = {str(part): folder / f"{part}.json" for part in PARTS}
    return {part: read(path) for part, path in paths.items() if path.is_file()}
