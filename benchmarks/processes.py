"""Processes that compile at the same time and are timed one after another.

Each process waits for a shared lock before it times anything. The parent holds the lock until all
processes have compiled, so that nothing else is running while one is timed. The lock is released
if a process dies.
"""

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.measure import (
    AnyCase,
    Measurement,
    OnProgress,
    failed,
    finish_all,
    named,
    prepare_all,
    section_module,
)
from slotmesh.files import write_whole

_POLL = 0.05


def measure_in_processes(
    section: str,
    groups: Sequence[Sequence[AnyCase]],
    device: torch.device,
    seconds: float,
    on_progress: OnProgress,
    most: int | None = None,
) -> Iterator[Measurement]:
    """Do what :func:`~benchmarks.measure.measure` does, with one process per group.

    Args:
        section: Name of a module of this package.
        groups: Cases, one process per group.
        device: Device to measure.
        seconds: Seconds per computation that is timed.
        on_progress: Called as cases are compiled and timed.
        most: Processes at a time; by default 1.5 per core, because they also wait for the GPU.
    """
    size = max(1, 3 * _cores() // 2) if most is None else most
    total, done = sum(len(group) for group in groups), 0
    for i in range(0, len(groups), size):
        wave = [
            {"section": section, "device": str(device), "seconds": seconds, "cases": list(group)}
            for group in groups[i : i + size]
        ]
        for found in _run(wave, lambda what, done=done: on_progress(done, total, what)):
            for row in found:
                yield row
                done += 1
                on_progress(done, total, named(row))


@dataclass
class _Job:
    """A process and the folder that it reports to."""

    cases: list[AnyCase]
    process: "subprocess.Popen[bytes]"
    folder: Path

    def is_ready(self) -> bool:
        """Return whether it has compiled or ended, so that timing can start."""
        return (self.folder / "ready").exists() or self.process.poll() is not None

    def rows(self) -> list[Measurement]:
        """Wait for its end and return what it measured."""
        self.process.wait()
        with contextlib.suppress(OSError):
            return json.loads((self.folder / "rows.json").read_text(encoding="utf-8"))
        log = (self.folder / "log").read_text(encoding="utf-8", errors="replace")
        last = (log.strip().splitlines() or ["nothing"])[-1]
        why = f"its process exited with {self.process.returncode} after printing: {last}"[:300]
        return [failed(case, why) for case in self.cases]


def _run(wave: list[dict[str, Any]], tell: Callable[[str], None]) -> Iterator[list[Measurement]]:
    with tempfile.TemporaryDirectory(prefix="slotmesh-bench-") as name:
        jobs: list[_Job] = []
        try:
            with _turn(Path(name)):
                for i, job in enumerate(wave):
                    jobs.append(_start(job, Path(name) / str(i)))
                _wait(jobs, tell)
            for job in jobs:
                yield job.rows()
        finally:
            for job in jobs:
                job.process.kill()
                job.process.wait()


def _wait(jobs: list[_Job], tell: Callable[[str], None]) -> None:
    told = -1
    while told < len(jobs):
        ready = sum(job.is_ready() for job in jobs)
        if ready > told:
            tell(f"checked and compiled {ready} of {len(jobs)}")
            told = ready
        time.sleep(_POLL)


def _start(job: dict[str, Any], folder: Path) -> _Job:
    folder.mkdir()
    cases: list[Any] = job["cases"]
    text = json.dumps(job | {"cases": [asdict(case) for case in cases]})
    (folder / "job.json").write_text(text, encoding="utf-8")
    # There is less than one core per process: more threads would only compete.
    quiet = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "4"}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(  # noqa: S603
            [sys.executable, "-m", __name__, str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=os.environ | quiet,
        )
    return _Job(cases, process, folder)


@contextlib.contextmanager
def _turn(folder: Path) -> Iterator[None]:
    """Hold the lock that all processes share."""
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def work(folder: Path) -> None:
    """Prepare, wait for the turn of this process, time, and write."""
    job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    kind = section_module(job["section"]).CASE
    cases = [
        kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in case.items()})
        for case in job["cases"]
    ]
    ready = prepare_all(job["section"], cases, torch.device(job["device"]))
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    (folder / "ready").touch()
    with _turn(folder.parent):
        rows = finish_all(cases, ready, job["seconds"])
    write_whole(folder / "rows.json", json.dumps(rows))


if __name__ == "__main__":
    work(Path(sys.argv[1]))
