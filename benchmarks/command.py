"""``python -m benchmarks``: check and time operations and training steps."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

import torch
import tyro
from rich.console import Console
from rich.markup import escape

from benchmarks.measure import Measurement, OnProgress
from benchmarks.record import (
    FOLDER,
    SECTIONS,
    read,
    result_path,
    write_section,
    wrong,
)
from slotmesh.progress import Count
from slotmesh.training.places import place_of
from slotmesh.training.settings import at_least

SectionName = Literal["ops", "steps", "table1", "all"]
_SECTIONS = (
    "ops: softmax, Sinkhorn, MESH, exact transport and assignment, with baselines. steps: training "
    "steps of the variants. table1: steps of all runs of Table 1 at once. all: these three."
)


@dataclass(frozen=True)
class Benchmark:
    """Time operations and training steps, and write the medians to a file.

    Results are checked first: operations against pure torch in float64, POT and SciPy. A result
    that fails its check is not timed, and the command exits with 1.
    """

    what: Annotated[tyro.conf.Positional[SectionName], tyro.conf.arg(help=_SECTIONS)]
    device: str = "auto"
    """cpu, cuda, or auto."""
    quick: bool = False
    """Measure only a few small sizes."""
    seconds: float | None = None
    """Seconds per measurement; by default 0.2 on a GPU and 1 on a CPU."""
    threads: int | None = None
    """CPU threads; by default as many as torch uses."""
    out: Path = FOLDER
    """Folder for the result file. Its other sections are kept."""


def run_benchmark(bench: Benchmark, console: Console | None = None) -> Path:
    """Check, time, print tables and write the result; return its path.

    Raises:
        ValueError: If a setting is invalid, or if a check failed (after everything is written).
    """
    device = _check(bench)
    console = Console() if console is None else console
    # Report a folder that cannot be written to before the measurement, not after it.
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
            f"{len(bad)} checks failed, and these results were not timed: {'; '.join(bad)}."
        )
    return path


def _check(bench: Benchmark) -> torch.device:
    if bench.what not in get_args(SectionName):
        known = ", ".join(get_args(SectionName))
        raise ValueError(f"got {bench.what!r}, expected {known}.")
    if bench.seconds is not None and not 0 < bench.seconds <= 3600:
        raise ValueError(f"--seconds is {bench.seconds}, expected above 0 and at most 3600.")
    if bench.threads is not None:
        at_least("threads", bench.threads, 1)
    place = place_of(bench.device)
    if place.index is not None:
        raise ValueError(
            f"--device is {bench.device!r}, expected cpu, cuda or auto. "
            "Set CUDA_VISIBLE_DEVICES to choose a GPU."
        )
    return place


def _measure(
    name: str, bench: Benchmark, device: torch.device, console: Console
) -> list[Measurement]:
    default = 0.2 if device.type == "cuda" else 1.0
    seconds = default if bench.seconds is None else bench.seconds
    kind, quick = device.type, bench.quick
    with _progress(name, console) as on_progress:
        if name == "ops":
            from benchmarks.cases import op_cases
            from benchmarks.ops import measure_ops

            return measure_ops(op_cases(kind, quick=quick), device, seconds, on_progress)
        if name == "steps":
            from benchmarks.steps import measure_steps, step_cases

            return measure_steps(step_cases(kind, quick=quick), device, seconds, on_progress)
        from benchmarks.table1 import measure_table1, table1_cases

        return measure_table1(table1_cases(quick=quick), device, seconds, on_progress)


def _show(name: str, rows: list[Measurement], console: Console) -> None:
    from benchmarks.tables import TABLES

    console.print(TABLES[name](rows))


@contextmanager
def _progress(name: str, console: Console) -> Iterator[OnProgress]:
    began = time.perf_counter()
    with Count(console, name) as count:

        def on_progress(done: int, total: int, what: str) -> None:
            count.update(done, total=total, note=what)
            if not console.is_terminal:
                seconds = time.perf_counter() - began
                console.print(f"{seconds:4.0f} s  {done} of {total}: {what}", highlight=False)

        yield on_progress


@contextmanager
def _threads(n: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(before if n is None else n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _command(bench: Benchmark, name: str, device: torch.device) -> str:
    words = f"python -m benchmarks {name} --device {device.type}"
    if bench.quick:
        words += " --quick"
    if bench.seconds is not None:
        words += f" --seconds {bench.seconds:g}"
    if bench.threads is not None:
        words += f" --threads {bench.threads}"
    return words
