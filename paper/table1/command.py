"""``python -m paper table1``: measure Table 1 of the paper, or the model that goes beyond it."""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from paper.table1.choice import settings_of
from paper.table1.jobs import VARIANTS, Effort, Job, Variant, run_jobs
from paper.table1.record import SIGMAS, GroupRecord
from paper.table1.rows import (
    TABLE1,
    TABLE1_BEYOND,
    base,
    beyond,
    paper_error,
    rows_in,
    screen_table,
)
from slotmesh.training.tasks.random_objects import RandomObjectsSettings


@dataclass(frozen=True)
class Table1(Effort):
    """Train and test all runs of Table 1, all seeds and sigmas of a variant at once."""

    variants: tuple[Variant, ...] = VARIANTS
    """Rows to measure. Several processes can measure different rows at the same time."""
    beyond: bool = False
    """Measure a model without the error floor of the paper's normalisation instead."""
    choice: Path | None = None
    """Folder of `python -m paper table1-choice` with the settings; by default the paper preset."""


def run_table1(settings: Table1, console: Console | None = None) -> list[GroupRecord]:
    """Measure the rows that are asked for and print the table."""
    console = Console() if console is None else console
    if settings.beyond and settings.choice is not None:
        raise ValueError(
            "Got both --choice and --beyond, which has settings of its own. Pass one of them."
        )
    default = TABLE1_BEYOND if settings.beyond else TABLE1
    folder = default if settings.out is None else settings.out
    jobs = [Job(v, _start(settings, v), {"variants": v}) for v in settings.variants]
    records = run_jobs("table1", settings, jobs, folder, console)
    found = rows_in(folder)
    rows: dict[str, list[str]] = {}
    for variant in VARIANTS:
        if not settings.beyond:
            rows[f"{variant}, paper"] = [f"{paper_error(variant, sigma):.2f}" for sigma in SIGMAS]
        if variant in found:
            rows[variant] = [found[variant].at(sigma).text for sigma in SIGMAS]
    console.print(screen_table("RMSE / sigma, median and range over the seeds", rows))
    return records


def _start(settings: Table1, variant: str) -> RandomObjectsSettings:
    if settings.beyond:
        return beyond(variant)
    return base(variant) if settings.choice is None else settings_of(settings.choice, variant)
