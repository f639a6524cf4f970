"""``python -m benchmarks``: how fast operations and training steps are, where they are right."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch
import tyro
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.measure import Hear, Row
from benchmarks.record import (
    FOLDER,
    SECTIONS,
    read,
    result_path,
    write_section,
    wrong,
)
from slotmesh.data._source import check_at_least
from slotmesh.training.places import place_of

Section = Literal["ops", "steps", "table1", "all"]


@dataclass(frozen=True)
class Bench:
    """Time operations and training steps that are right, and write medians to a file.

    Results are checked first, operations against pure torch in float64, POT and SciPy: what is
    wrong gets no time, and the command ends with 1.
    """

    what: tyro.conf.Positional[Section]
    """ops: softmax, Sinkhorn, MESH, exact transport, assignment, against baselines. steps: training
    steps of the variants. table1: all seeds of Table 1 at once. all: these three."""
    device: str = "auto"
    """cpu, cuda, or auto."""
    quick: bool = False
    """Few and small sizes."""
    seconds: float | None = None
    """How long to time each thing; 0.2 on a GPU and 1 on a CPU by default."""
    threads: int | None = None
    """CPU threads; torch's own choice by default."""
    out: Path = FOLDER
    """Folder for the result. Sections that are in its file already stay."""


def run_bench(bench: Bench, console: Console | None = None) -> Path:
    """Check, time, print tables and write; returns the result's path.

    Raises:
        ValueError: If something asked for makes no sense, or a check failed: in the latter case
            after everything was written.
    """
    device = _check(bench)
    console = Console() if console is None else console
    # What cannot be written to should be known before the measurement, not after it.
    bench.out.mkdir(parents=True, exist_ok=True)
    path = result_path(bench.out, device)
    if path.exists():
        read(path)
    names = [name for name in SECTIONS if bench.what in (name, "all")]
    bad: list[str] = []
    with _threads(bench.threads):
        for name in names:
            rows = _measure(name, bench, device, console)
            write_section(path, name, _command(bench, name, device), rows, device)
            _show(name, rows, console)
            bad += wrong(rows)
    console.print(f"Written to {escape(str(path))}", highlight=False, soft_wrap=True)
    if bad:
        raise ValueError(
            f"{len(bad)} of the checks failed, and what is wrong was not timed: {'; '.join(bad)}."
        )
    return path


def _check(bench: Bench) -> torch.device:
    if bench.what not in get_args(Section):
        known = ", ".join(get_args(Section))
        raise ValueError(f"there is nothing to measure called {bench.what!r}, expected {known}.")
    if bench.seconds is not None and not 0 < bench.seconds <= 3600:
        raise ValueError(f"--seconds is {bench.seconds}, expected above 0 and at most 3600.")
    if bench.threads is not None:
        check_at_least("--threads", bench.threads, 1)
    place = place_of(bench.device)
    if place.index is not None:
        raise ValueError(
            f"--device is {bench.device!r}, expected cpu, cuda or auto. "
            "Set CUDA_VISIBLE_DEVICES to choose a GPU."
        )
    return place


def _measure(name: str, bench: Bench, device: torch.device, console: Console) -> list[Row]:
    default = 0.2 if device.type == "cuda" else 1.0
    seconds = default if bench.seconds is None else bench.seconds
    with _progress(name, console) as hear:
        if name == "ops":
            from benchmarks.cases import op_cases
            from benchmarks.ops import measure_ops

            return measure_ops(op_cases(device.type, quick=bench.quick), device, seconds, hear)
        if name == "steps":
            from benchmarks.steps import measure_steps, step_cases

            return measure_steps(step_cases(device.type, quick=bench.quick), device, seconds, hear)
        from benchmarks.table1 import measure_table1, table1_cases

        return measure_table1(table1_cases(quick=bench.quick), device, seconds, hear)


def _show(name: str, rows: list[Row], console: Console) -> None:
    from benchmarks.tables import TABLES

    console.print(TABLES[name](rows))


@contextmanager
def _progress(name: str, console: Console) -> Iterator[Hear]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    # Without a terminal all that a bar leaves is an empty line: then a line for each case.
    quiet, began = not console.is_terminal, time.perf_counter()
    with Progress(*columns, console=console, transient=True, disable=quiet) as progress:
        bar = progress.add_task(name, total=None)

        def hear(done: int, total: int, what: str) -> None:
            progress.update(bar, completed=done, total=total, description=what)
            if quiet:
                seconds = time.perf_counter() - began
                console.print(f"{seconds:4.0f} s  {done} of {total}: {what}", highlight=False)

        yield hear


@contextmanager
def _threads(n: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(before if n is None else n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _command(bench: Bench, name: str, device: torch.device) -> str:
    words = f"python -m benchmarks {name} --device {device.type}"
    if bench.quick:
        words += " --quick"
    if bench.seconds is not None:
        words += f" --seconds {bench.seconds:g}"
    if bench.threads is not None:
        words += f" --threads {bench.threads}"
    return words
