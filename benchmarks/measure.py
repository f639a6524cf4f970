"""Cases to rows: in this process on a CPU, in several on a GPU, where compiling takes the time.

A section is a module of this package with ``prepare(case, device)``, which checks and compiles
what a case asks for and returns a :class:`Prepared`, and ``CASE``, the type of its cases.
"""

import importlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

Row = dict[str, Any]
"""What is known of one case, as JSON holds it."""
Hear = Callable[[int, int, str], None]
"""Told how many cases are done, of how many, and what was done last."""


class AnyCase(Protocol):
    """What is to be measured: a dataclass of plain values."""

    def row(self) -> Row:
        """The row so far: what it is about."""
        ...


class Prepared(Protocol):
    """A case that only has to be timed."""

    def finish(self, seconds: float) -> Row:
        """Time it, so many seconds for each thing that is timed."""
        ...


def nobody(done: int, total: int, what: str) -> None:
    """Nobody listens."""


def measure(
    section: str,
    groups: Sequence[Sequence[AnyCase]],
    device: torch.device,
    seconds: float,
    hear: Hear = nobody,
) -> list[Row]:
    """Rows of all cases, in their order.

    Args:
        section: A module of this package.
        groups: Cases; those of a group are prepared in one process.
        device: Where to measure.
        seconds: For each thing that is timed.
        hear: Told of progress.
    """
    if device.type == "cuda":
        from benchmarks.processes import measure_in_processes

        return measure_in_processes(section, groups, device, seconds, hear)
    cases = [case for group in groups for case in group]
    rows: list[Row] = []
    for case in cases:
        rows += finish_all([case], prepare_all(section, [case], device), seconds)
        hear(len(rows), len(cases), named(rows[-1]))
    return rows


def prepare_all(
    section: str, cases: Sequence[AnyCase], device: torch.device
) -> list[Prepared | Row]:
    """Prepare cases; one that raises becomes a row that says so."""
    prepare: Callable[..., Prepared] = section_module(section).prepare
    ready: list[Prepared | Row] = []
    for case in cases:
        try:
            ready.append(prepare(case, device))
        except Exception as error:  # noqa: BLE001
            ready.append(failed(case, error))
    return ready


def finish_all(
    cases: Sequence[AnyCase], ready: Sequence[Prepared | Row], seconds: float
) -> list[Row]:
    """Time what was prepared."""
    rows: list[Row] = []
    for case, one in zip(cases, ready, strict=True):
        try:
            rows.append(one if isinstance(one, dict) else one.finish(seconds))
        except Exception as error:  # noqa: BLE001
            rows.append(failed(case, error))
    return rows


def section_module(section: str) -> Any:
    """The module that measures a section."""
    return importlib.import_module(f"benchmarks.{section}")


def failed(case: AnyCase, error: Exception | str) -> Row:
    """The row of a case that raised an error."""
    text = error if isinstance(error, str) else said(error)
    return case.row() | {"passed": False, "failure": text}


def said(error: Exception) -> str:
    """An error in one line."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:300]


def named(row: Row) -> str:
    """What a row is about, in words.

    Example:
        >>> from benchmarks.measure import named
        >>> named({"name": "mesh", "variant": "triton", "batch": 64, "n": 105, "m": 5})
        'mesh triton 64 x 105 x 5'
    """
    words = [str(row[key]) for key in ("name", "variant", "precision") if key in row]
    size = " x ".join(str(row[key]) for key in ("batch", "n", "m") if key in row)
    return " ".join([*words, size])
