"""The section ``ops``: an operation is checked, compiled and recorded, then timed."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks.cases import Case
from benchmarks.gate import noted, passed
from benchmarks.measure import Hear, Row, measure, nobody, said
from benchmarks.problems import OURS, PROBLEMS, SEED, Problem
from benchmarks.timing import Run, peak_memory, time_together

CASE = Case
# Run from a CUDA graph; the other baselines are what they are without one.
RECORDED = (OURS, "compiled")


def measure_ops(
    cases: Sequence[Case], device: torch.device, seconds: float, hear: Hear = nobody
) -> list[Row]:
    """A row for each case: errors, and times where the errors are small enough.

    Example:
        >>> import torch
        >>> from benchmarks.cases import Case
        >>> from benchmarks.ops import measure_ops
        >>> [row] = measure_ops([Case("sinkhorn", 2, 8, 3)], torch.device("cpu"), seconds=0.01)
        >>> row["passed"], row["error"]["plan"] < 1e-5, row["ms"] > 0
        (True, True, True)
    """
    groups: dict[object, list[Case]] = {}
    for case in cases:
        groups.setdefault(case.group, []).append(case)
    rows = measure("ops", list(groups.values()), device, seconds, hear)
    done = [case for group in groups.values() for case in group]
    found = dict(zip(done, rows, strict=True))
    return [found[case] for case in cases]


class PreparedOp:
    """A case that is ready to be timed.

    Args:
        case: Which.
        device: Where.
    """

    def __init__(self, case: Case, device: torch.device) -> None:
        self.device = device
        self.runs: dict[str, Run] = {}
        problem = PROBLEMS[case.op](case, device)
        self.row: Row = case.row() | {"variant": problem.backend, "direction": problem.direction}
        checks = {name: self._check(name, run, problem) for name, run in problem.runs().items()}
        problem.forget()
        self.row |= checks.pop(OURS)
        if self.row["passed"] and problem.on_gpu:
            self._add_memory(problem)
        self.others = checks

    def finish(self, seconds: float) -> Row:
        """Time what is right; nothing else may use the device meanwhile."""
        times = time_together(self.runs, self.device, seconds)
        for name, found in times.items():
            if name == OURS:
                self.row |= found.row()
            elif name == "call":
                self.row["call_ms"] = found.row()["ms"]
            else:
                self.others[name] |= found.row()
        return self.row | {"baselines": self.others}

    def _check(self, name: str, run: Callable[[], Any], problem: Problem) -> Row:
        """Whether it is right; then it is kept to be timed."""
        try:
            timed = run
            if problem.on_gpu and name in RECORDED:
                from slotmesh.training.captured import Captured

                timed = Captured(run)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(SEED)
                errors = problem.errors(timed())
        except Exception as error:  # noqa: BLE001
            return {"passed": False, "failure": said(error)}
        right = passed(errors)
        if right:
            self.runs[name] = timed
            if timed is not run and name == OURS:
                self.runs["call"] = run
        return {"error": noted(errors), "passed": right}

    def _add_memory(self, problem: Problem) -> None:
        """Of a call without a graph, whose memory is a pool of its own."""
        most = peak_memory(self.runs["call"], self.device)
        size = problem.cost.numel() * problem.cost.element_size()
        self.row |= {
            "peak_memory_mb": round(most / 1e6, 3),
            "memory_over_cost": round(most / size, 3),
        }


def prepare(case: Case, device: torch.device) -> PreparedOp:
    """Check and compile; see :func:`~benchmarks.measure.measure`."""
    return PreparedOp(case, device)
