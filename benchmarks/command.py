"""``python -m benchmarks``: check and time operations and training steps."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import torch
import tyro
from rich.console import Console
from rich.markup import escape

from benchmarks.measure import AnyCase, Measurement, OnProgress
from benchmarks.record import (
    FOLDER,
    SECTIONS,
    commands_of,
    measured,
    merged,
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
    only: tuple[str, ...] = ()
    """Measure only these operations, tasks or variants, such as mesh sinkhorn or SA-MESH. The other
    rows of the result file are kept."""
    seconds: float | None = None
    """Seconds per measurement; by default 0.2 on a GPU and 1 on a CPU."""
    threads: int | None = None
    """CPU threads; by default as many as torch uses."""
    out: Path = FOLDER
    """Folder for the result file. Its other sections are kept."""


def run_benchmark(bench: Benchmark, console: Console | None = None) -> Path:
    """Check, time, print tables and write the result; return its path.

    Each measurement is written immediately, so an interrupted run keeps what it has measured.

    Raises:
        ValueError: If a setting is invalid, or if a check failed (after everything is written).
    """
    device = _check(bench)
    cases = _chosen(bench, device)
    console = Console() if console is None else console
    # Report a folder that cannot be written to before the measurement, not after it.
    bench.out.mkdir(parents=True, exist_ok=True)
    path = result_path(bench.out, device)
    if path.exists():
        read(path)
    bad: list[str] = []
    with _threads(bench.threads):
        for name, chosen in cases.items():
            before = measured(path, name, device) if bench.only else {"rows": []}
            commands = [*commands_of(before), _command(bench, name, device)]
            every, rows = _cases(name, bench, device), list[Measurement]()
            with _progress(name, console) as on_progress:
                for row in _measure(name, chosen, bench, device, on_progress):
                    rows.append(row)
                    write_section(path, name, commands, merged(every, rows, before["rows"]), device)
            _show(name, merged(chosen, rows, []), console)
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


def _chosen(bench: Benchmark, device: torch.device) -> dict[str, list[AnyCase]]:
    """The cases that are asked for, by section; sections without any are left out."""
    names = [name for name in SECTIONS if bench.what in (name, "all")]
    found = {name: _cases(name, bench, device) for name in names}
    if not bench.only:
        return found
    wanted = set(bench.only)
    known = {word for cases in found.values() for case in cases for word in _words(case)}
    if unknown := sorted(wanted - known):
        raise ValueError(
            f"--only got {', '.join(unknown)}, expected some of {', '.join(sorted(known))}."
        )
    chosen = {name: [c for c in cases if wanted & _words(c)] for name, cases in found.items()}
    return {name: cases for name, cases in chosen.items() if cases}


def _words(case: AnyCase) -> set[str]:
    """The names by which ``--only`` knows a case."""
    row = case.row()
    return {row[key] for key in ("name", "variant") if key in row}


def _cases(name: str, bench: Benchmark, device: torch.device) -> list[AnyCase]:
    from benchmarks.cases import op_cases
    from benchmarks.steps import step_cases
    from benchmarks.table1 import table1_cases

    if name == "table1":
        return [*table1_cases(quick=bench.quick)]
    return [*(op_cases if name == "ops" else step_cases)(device.type, quick=bench.quick)]


def _measure(
    name: str,
    cases: list[Any],
    bench: Benchmark,
    device: torch.device,
    on_progress: OnProgress,
) -> Iterator[Measurement]:
    from benchmarks.ops import measure_ops
    from benchmarks.steps import measure_steps
    from benchmarks.table1 import measure_table1

    default = 0.2 if device.type == "cuda" else 1.0
    seconds = default if bench.seconds is None else bench.seconds
    run = {"ops": measure_ops, "steps": measure_steps, "table1": measure_table1}[name]
    return run(cases, device, seconds, on_progress)


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
    if bench.only:
        words += f" --only {' '.join(bench.only)}"
    if bench.seconds is not None:
        words += f" --seconds {bench.seconds:g}"
    if bench.threads is not None:
        words += f" --threads {bench.threads}"
    return words
