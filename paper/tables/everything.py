"""All tables at once: one seed of every row before the next seed of any."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.table import Table

from paper.tables.command import KINDS, TrainTable, distinct, measured, run_table, settings_of
from paper.tables.record import RunRecord, records_in
from paper.tables.training import steps_so_far
from slotmesh.training.stream import KeptSets


@dataclass(frozen=True)
class TrainTables:
    """Train and test every row of Tables 2 to 5 and the appendix that is missing."""

    seeds: Annotated[tuple[int, ...], tyro.conf.arg(aliases=["--seed"])] = (0,)
    """One run per row and seed: all rows with the first seed, then all with the next."""
    more: bool = False
    """Also train the rows that are not in the paper."""
    dry_run: bool = False
    """Only list what has not been measured, how far each run is, and how long it may take."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """A GPU trains in bfloat16, the CPU in single precision."""
    runs: Path = Path("runs/reproduce")
    """Folder for the runs, TABLE/ROW-SEED. Copy it to resume on another machine."""
    results: Path = Path("results")
    """Folder for the results and pictures of all tables."""
    checkpoints: Path = Path("checkpoints")
    """Folder for the weights of SA and SA-MESH with seed 0."""


def run_tables(settings: TrainTables, console: Console | None = None) -> None:
    """Measure what is missing, or list it.

    Raises:
        ValueError: If a folder holds a run or a result with other settings.
        SystemExit: If it was asked to stop during training; the same command resumes.
    """
    console = Console() if console is None else console
    # Report mistakes before the work starts, not after part of it.
    missing = [(asked, rows) for asked in _asked(settings) if (rows := _missing(asked))]
    if not missing:
        console.print("Everything is measured. Next: python -m paper results", highlight=False)
    elif settings.dry_run:
        console.print(_listed(missing, _paces(settings)))
    else:
        kept = KeptSets()
        for asked, rows in missing:
            only = tuple(row for row, _ in rows)
            run_table(replace(asked, variants=only), console, kept)
        console.print("Everything is measured. Next: python -m paper results", highlight=False)


def _asked(settings: TrainTables) -> list[TrainTable]:
    """The settings of each table, one seed after the other."""
    places: dict[str, Any] = {
        name: getattr(settings, name) for name in ("device", "runs", "checkpoints")
    }
    return [
        kind(
            variants=tuple(kind.table.rows) if settings.more else (),
            seeds=(seed,),
            out=settings.results / name,
            **places,
        )
        for seed in distinct(settings.seeds)
        for name, kind in KINDS.items()
    ]


def _missing(asked: TrainTable) -> list[tuple[str, int]]:
    return [one for one, finished in measured(asked).items() if not finished]


@dataclass(frozen=True)
class _Pace:
    """How long the training steps of a task took, in runs that are measured."""

    seconds: tuple[float, ...]
    """Seconds per step, one number per run."""
    devices: tuple[str, ...]

    def minutes(self, steps: int) -> str:
        """Return how long this many steps take: the shortest and the longest time."""
        low, high = (f"{each(self.seconds) * steps / 60:.0f}" for each in (min, max))
        return low if low == high else f"{low}-{high}"


def _paces(settings: TrainTables) -> dict[str, _Pace]:
    """Return the pace of each task that has been trained."""
    found: dict[str, list[RunRecord]] = {}
    for name, kind in KINDS.items():
        for runs in records_in(settings.results / name, kind.table.rows).values():
            for one in runs:
                if one.failed is None:
                    found.setdefault(one.settings["task"], []).append(one)
    return {
        task: _Pace(
            tuple(one.seconds / one.steps for one in runs),
            tuple(dict.fromkeys(one.device for one in runs)),
        )
        for task, runs in found.items()
    }


def _listed(
    missing: list[tuple[TrainTable, list[tuple[str, int]]]], paces: dict[str, _Pace]
) -> Table:
    drawn = Table(title="Not measured yet", title_justify="left", caption_justify="left")
    drawn.add_column("table")
    drawn.add_column("row", overflow="fold")
    for name in ("seed", "steps", *(["minutes"] if paces else [])):
        drawn.add_column(name, justify="right")
    devices: dict[str, None] = {}
    for asked, rows in missing:
        for row, seed in rows:
            run = settings_of(asked, row, seed)
            done = steps_so_far(run.folder)
            pace = paces.get(run.task)
            devices |= dict.fromkeys(pace.devices if pace else ())
            left = pace.minutes(run.steps - done) if pace else "?"
            cells = [asked.table.name, row, str(seed), f"{done:,} of {run.steps:,}", left]
            drawn.add_row(*cells[: len(drawn.columns)])
    if devices:
        drawn.caption = (
            "minutes: of the steps that are left, from the fastest to the slowest measured run of "
            f"the task ({', '.join(devices)}), without making the data and testing. Runs that "
            "shared a GPU took longer than they would alone."
        )
    return drawn
