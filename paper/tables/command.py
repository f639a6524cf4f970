"""Train, test and draw the rows of a table, and keep the weights; finished runs are skipped."""

import math
import os
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import torch
import tyro
from rich.console import Console
from rich.markup import escape

from paper.recorded import command_of, difference
from paper.tables.card import card
from paper.tables.definitions import TABLES, TrainedTable
from paper.tables.record import (
    RunOutcome,
    RunRecord,
    deciding,
    mean_cells,
    metrics_of,
    read,
    records_in,
    write,
)
from paper.tables.training import started, train
from slotmesh.environment import environment
from slotmesh.files import write_whole
from slotmesh.training.evaluate import evaluate_run, place_of, strict
from slotmesh.training.export import ExportModel, run_export_model, weights_name
from slotmesh.training.processes import Lock
from slotmesh.training.runs import Run, open_run, steps_done
from slotmesh.training.settings import INCIDENTAL, Settings, at_least, flag
from slotmesh.training.stream import KeptSets
from slotmesh.training.tasks import experiment

# Steps between checkpoints and between log lines; a short run has five of each.
_EVERY = {"save_every": 2_500, "log_every": 250}
_SIZES = ("batch_size", "train_size", "val_size", "test_size")


@dataclass(frozen=True)
class TrainTable:
    """Train and test the rows of a table; write results, pictures and weights."""

    table: ClassVar[TrainedTable]

    variants: tuple[str, ...] = ()
    """Rows to train; by default all of the paper. Several processes can train different rows."""
    seeds: Annotated[tuple[int, ...], tyro.conf.arg(aliases=["--seed"])] = (0,)
    """One run per seed, which decides the first weights, the order of the data and all noise."""
    steps: int | None = None
    """Training steps; those of the table by default. A finished run continues if there are more."""
    batch_size: int | None = None
    """Samples per training step; the paper's by default."""
    train_size: int | None = None
    """Number of training samples; the paper's by default."""
    val_size: int | None = None
    """Number of validation samples, which select the weights to test; the preset's by default."""
    test_size: int | None = None
    """Number of test samples; the paper's by default."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """A GPU trains in bfloat16, the CPU in single precision."""
    runs: Path = Path("runs/reproduce")
    """Folder for the runs, TABLE/ROW-SEED. Copy it to resume on another machine."""
    out: Path | None = None
    """Folder for the results and pictures; results/TABLE by default."""
    checkpoints: Path = Path("checkpoints")
    """Folder for the weights of SA and SA-MESH with seed 0."""
    overwrite: bool = False
    """Test, draw and export again; training is not repeated."""

    @property
    def folder(self) -> Path:
        """Folder for the results."""
        return Path("results") / self.table.name if self.out is None else self.out


def _kind(table: TrainedTable) -> type[TrainTable]:
    """Return the settings type of a table: the command line tells commands by their types."""
    about = f"Train and test {table.about}."
    return type(f"Train {table.name}", (TrainTable,), {"__doc__": about, "table": table})


KINDS = {table.name: _kind(table) for table in TABLES}
"""Settings type of each command, by name."""


def settings_of(asked: TrainTable, row: str, seed: int) -> Settings:
    """Return the settings of one run."""
    start = asked.table.rows[row].settings()
    sizes = {name: n for name in _SIZES if (n := getattr(asked, name)) is not None}
    steps = asked.steps or asked.table.steps or start.steps
    own = asked.table.rows[row].changes.get("val_every", asked.table.val_every)
    every = {**_EVERY, "val_every": own}
    return replace(
        start,
        seed=seed,
        steps=steps,
        out=asked.runs / asked.table.name / f"{row}-{seed}",
        data=replace(start.data, **sizes),
        **{name: min(most, -(-steps // 5)) for name, most in every.items()},
    )


def run_table(
    settings: TrainTable, console: Console | None = None, kept: KeptSets | None = None
) -> dict[str, list[RunRecord]]:
    """Measure and draw the rows that are asked for, and print the table.

    Args:
        settings: Which rows.
        console: Shows progress and the table.
        kept: Sets of samples of the tables before.

    Raises:
        ValueError: If a row does not exist, or a folder holds a run or a result with other
            settings.
        SystemExit: If it was asked to stop during training; the same command resumes.
    """
    console = Console() if console is None else console
    # Most rows train on the same samples.
    kept = KeptSets() if kept is None else kept
    device = place_of(settings.device)
    asked = measured(settings)
    if not all(asked.values()):
        for folder in (settings.folder, settings.checkpoints):
            _check_writable(folder)
    for row, seed in asked:
        path = settings.folder / f"{row}-{seed}.json"
        # Asked again: another process may have measured it by now.
        if _finished(settings, row, seed):
            said = (
                f"{row}, seed {seed} is measured: keeping {path}. Pass --overwrite to test again."
            )
        else:
            record = _measure(settings, row, seed, device, console, kept)
            # The file of a run comes last: what has one is not done again.
            _draw_curves(settings, record)
            write(path, record)
            said = f"{row}, seed {seed}: written to {path}"
        console.print(escape(said), highlight=False, soft_wrap=True)
    found = _draw_curves(settings)
    console.print(_table(settings.table, found))
    return found


def measured(asked: TrainTable) -> dict[tuple[str, int], bool]:
    """Return the rows and seeds that are asked for, in their order, and whether each is measured.

    Raises:
        ValueError: If a setting is invalid, or a result or a run has other settings: before the
            work starts, not after part of it.
    """
    for name in ("steps", *_SIZES):
        if getattr(asked, name) is not None:
            at_least(name, getattr(asked, name), 1)
    # All rows of one seed first, so that they can be compared early.
    seeds, rows = distinct(asked.seeds), asked.table.chosen(asked.variants)
    found = {(row, seed): _finished(asked, row, seed) for seed in seeds for row in rows}
    for (row, seed), finished in found.items():
        if not finished:
            started(settings_of(asked, row, seed))
    return found


def distinct(seeds: tuple[int, ...]) -> list[int]:
    """Return seeds that are asked for, each once.

    Raises:
        ValueError: If there is none, or one is negative.
    """
    if not seeds:
        raise ValueError("--seeds is empty, expected at least one seed.")
    for seed in seeds:
        at_least("seeds", seed, 0)
    return list(dict.fromkeys(seeds))


def _measure(
    asked: TrainTable,
    row: str,
    seed: int,
    device: torch.device,
    console: Console,
    kept: KeptSets,
) -> RunRecord:
    settings = settings_of(asked, row, seed)
    command = command_of(asked.table.name, asked, {"variants": row, "seeds": seed})
    trained = train(settings, device, console, kept)
    tested, step = None, None
    if trained.failed is None:
        run = open_run(settings.folder)
        step = steps_done(run.checkpoint)
        lock = Lock(run.folder)
        try:
            # Another process would test it as well.
            lock.acquire()
            tested = _test(asked, row, seed, run, command, device, console)
        finally:
            lock.release()
    return RunRecord(
        row=row,
        seed=seed,
        steps=settings.steps,
        command=command,
        settings=deciding(trained.settings),
        parameters=sum(p.numel() for p in experiment(settings).fresh_model().parameters()),
        trained_on=trained.trained_on,
        seconds=trained.seconds,
        failed=trained.failed,
        best_step=step,
        test=tested,
        train=trained.train,
        val=trained.val,
    )


def _test(
    asked: TrainTable,
    row: str,
    seed: int,
    run: Run,
    command: str,
    device: torch.device,
    console: Console,
) -> RunOutcome:
    """Test a run, draw samples of the first seed, and export the weights that are kept."""
    found = strict(evaluate_run(run, device=str(device), console=console))
    if seed == 0:
        from paper.tables.pictures import write_samples

        write_samples(run, found, str(device), asked.folder / f"{row}-{seed}.png")
    if asked.table.keeps_weights(row, seed):
        where = asked.checkpoints / weights_name(run.settings.task, run.settings.variant)
        # A kill may have left half an export.
        run_export_model(ExportModel(run.folder, where, overwrite=True), console)
        write_whole(where / "README.md", card(run, found, command))
    return _outcome(run, found, device)


def _check_writable(folder: Path) -> None:
    """Raise a ValueError if a folder cannot be written: before the work starts, not after it."""
    there = next(one for one in (folder, *folder.parents) if one.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        why = "cannot be written" if there.is_dir() else "is a file"
        raise ValueError(
            f"Results go to {folder}, but {there} {why}. Make it a folder that can be written, or "
            "choose another."
        )


def _draw_curves(settings: TrainTable, *new: RunRecord) -> dict[str, list[RunRecord]]:
    """Draw all runs that have a file, and those that will have one; return them."""
    # Imports matplotlib, which is slow.
    from paper.tables.pictures import write_curves

    found = records_in(settings.folder, settings.table.rows, new)
    write_curves(found, settings.folder)
    return found


def _outcome(run: Run, found: dict[str, Any], device: torch.device) -> RunOutcome:
    from slotmesh.training.report.collect import read_csv

    by_sample = read_csv(run.folder / "evaluation.csv")
    means = [name for name in found["metrics"] if name in by_sample]
    return RunOutcome(
        metrics=found["metrics"],
        standard_errors={name: _standard_error(by_sample[name]) for name in means},
        undefined=found["undefined"],
        loss=found["loss"],
        blind=found["blind"],
        n=found["n"],
        seconds=found["seconds"],
        environment=environment(device),
    )


def _finished(asked: TrainTable, row: str, seed: int) -> bool:
    """Return whether there is a result with the settings that are asked for."""
    path = asked.folder / f"{row}-{seed}.json"
    if asked.overwrite or not path.exists():
        return False
    # The precision depends on the machine that trained it.
    asked_for = deciding(settings_of(asked, row, seed))
    other = difference(read(path).settings, asked_for, ignore=INCIDENTAL)
    if other is not None:
        name, old, new = other
        raise ValueError(
            f"{path} has {flag(name)} {old}, but got {new}. Choose another folder for the results, "
            f"or pass --overwrite to `python -m paper {asked.table.name}`."
        )
    return True


def _standard_error(values: list[float]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return statistics.stdev(known) / math.sqrt(len(known)) if len(known) > 1 else 0.0


def _table(table: TrainedTable, found: dict[str, list[RunRecord]]) -> Any:
    """Return our results beside the paper's as a table for the terminal."""
    from rich.table import Table

    from slotmesh.training.report.compare import as_printed, heading

    metrics = metrics_of(table.rows.values(), found)
    drawn = Table(title=f"{table.paper}, test samples", title_justify="left")
    # In a narrow terminal numbers wrap, not names.
    drawn.add_column("", min_width=max(map(len, found), default=0))
    for name in (*map(heading, metrics), "seeds"):
        drawn.add_column(name, justify="right")
    for row, runs in found.items():
        drawn.add_row(row, *mean_cells(runs, metrics), str(len(runs)))
        paper = table.rows[row].results
        if paper:
            said = [as_printed(m, *paper[m]) if m in paper else "—" for m in metrics]
            drawn.add_row("  paper", *said, "", style="dim")
    return drawn


COMMANDS: dict[str, tuple[type, Callable[[Any], object]]] = {
    name: (kind, run_table) for name, kind in KINDS.items()
}
