"""``python -m paper table1``: the paper's first table, measured; and what goes beyond it."""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from paper.choice import settings_of
from paper.jobs import VARIANTS, Effort, Job, Variant, run_jobs
from paper.record import SIGMAS, Record
from paper.rows import (
    TABLE1,
    TABLE1_BEYOND,
    base,
    beyond,
    papers,
    rows_in,
    table,
)
from slotmesh.training.tasks.random_objects import RandomObjectsSettings


@dataclass(frozen=True)
class Table1(Effort):
    """Train and test all runs of Table 1, all seeds and sigmas of a variant at once."""

    variants: tuple[Variant, ...] = VARIANTS
    """Which rows. They can be measured by several processes at once."""
    beyond: bool = False
    """Not the paper's model, but one without the error that its normalisation cannot avoid."""
    choice: Path | None = None
    """Folder of `python -m paper table1-choice` to take the settings from; those of
    `slotmesh train random-objects --preset paper` by default."""


def run_table1(settings: Table1, console: Console | None = None) -> list[Record]:
    """Measure the rows that are asked for, and print the table."""
    console = Console() if console is None else console
    if settings.beyond and settings.choice is not None:
        raise ValueError("--choice came with --beyond, which has settings of its own. Pass one.")
    usual = TABLE1_BEYOND if settings.beyond else TABLE1
    folder = usual if settings.out is None else settings.out
    jobs = [Job(v, _start(settings, v), {"variants": v}) for v in settings.variants]
    records = run_jobs("table1", settings, jobs, folder, console)
    found = rows_in(folder)
    rows: dict[str, list[str]] = {}
    for variant in VARIANTS:
        if not settings.beyond:
            said = [f"{papers(variant, sigma):.2f}" for sigma in SIGMAS]
            rows[f"{variant}, paper"] = said
        if variant in found:
            rows[variant] = [found[variant].at(sigma).text for sigma in SIGMAS]
    console.print(table("RMSE over sigma, median and range of the seeds", rows))
    return records


def _start(settings: Table1, variant: str) -> RandomObjectsSettings:
    if settings.beyond:
        return beyond(variant)
    return base(variant) if settings.choice is None else settings_of(settings.choice, variant)
