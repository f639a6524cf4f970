"""Measure cases: in this process on a CPU, in several on a GPU, where compilation dominates.

A section is a module of this package with ``prepare(case, device)``, which checks and compiles a
case and returns a :class:`Prepared`, and with ``CASE``, the type of its cases.
"""

import importlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch

Measurement = dict[str, Any]
"""The result of one case, as it is written to JSON."""
OnProgress = Callable[[int, int, str], None]
"""Called with the number of cases done, the total, and what was done last."""


class AnyCase(Protocol):
    """Something to measure: a dataclass of plain values."""

    def row(self) -> Measurement:
        """Return the part of the measurement that identifies the case."""
        ...


class Prepared(Protocol):
    """A case that has been checked and only needs to be timed."""

    def finish(self, seconds: float) -> Measurement:
        """Time it, for this many seconds per computation."""
        ...


def noop(done: int, total: int, what: str) -> None:
    """Ignore progress."""


def measure(
    section: str,
    groups: Sequence[Sequence[AnyCase]],
    device: torch.device,
    seconds: float,
    on_progress: OnProgress = noop,
) -> Iterator[Measurement]:
    """Yield the measurements of all cases, in order, each as soon as it is available.

    Args:
        section: Name of a module of this package.
        groups: Cases; those of one group are prepared in one process.
        device: Device to measure.
        seconds: Seconds per computation that is timed.
        on_progress: Called after each case.
    """
    if device.type == "cuda":
        from benchmarks.processes import measure_in_processes

        yield from measure_in_processes(section, groups, device, seconds, on_progress)
        return
    cases = [case for group in groups for case in group]
    for i, case in enumerate(cases):
        [row] = finish_all([case], prepare_all(section, [case], device), seconds)
        yield row
        on_progress(i + 1, len(cases), named(row))


def prepare_all(
    section: str, cases: Sequence[AnyCase], device: torch.device
) -> list[Prepared | Measurement]:
    """Prepare cases; one that raises becomes a measurement with the error."""
    prepare: Callable[..., Prepared] = section_module(section).prepare
    ready: list[Prepared | Measurement] = []
    for case in cases:
        try:
            ready.append(prepare(case, device))
        except Exception as error:  # noqa: BLE001
            ready.append(failed(case, error))
    return ready


def finish_all(
    cases: Sequence[AnyCase], ready: Sequence[Prepared | Measurement], seconds: float
) -> list[Measurement]:
    """Time the cases that were prepared."""
    rows: list[Measurement] = []
    for case, one in zip(cases, ready, strict=True):
        try:
            rows.append(one if isinstance(one, dict) else one.finish(seconds))
        except Exception as error:  # noqa: BLE001
            rows.append(failed(case, error))
    return rows


def section_module(section: str) -> Any:
    """Return the module that measures a section."""
    return importlib.import_module(f"benchmarks.{section}")


def failed(case: AnyCase, error: Exception | str) -> Measurement:
    """Return the measurement of a case that raised an error."""
    text = error if isinstance(error, str) else one_line(error)
    return case.row() | {"passed": False, "failure": text}


def one_line(error: Exception) -> str:
    """Return an error in one line."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:300]


def named(row: Measurement) -> str:
    """Return what was measured, in words.

    Example:
        >>> from benchmarks.measure import named
        >>> named({"name": "mesh", "variant": "triton", "batch": 64, "n": 105, "m": 5})
        'mesh triton 64 x 105 x 5'
    """
    words = [str(row[key]) for key in ("name", "variant", "precision") if key in row]
    size = " x ".join(str(row[key]) for key in ("batch", "n", "m") if key in row)
    return " ".join([*words, size])
