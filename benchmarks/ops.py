"""The section ``ops``: operations, checked, compiled, captured as CUDA graphs and timed."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from benchmarks.cases import OpCase
from benchmarks.gate import noted, passed
from benchmarks.measure import Measurement, OnProgress, measure, noop, one_line
from benchmarks.problems import OURS, PROBLEMS, SEED, OpProblem
from benchmarks.timing import Timed, peak_memory, time_together

CASE = OpCase
# Timed as CUDA graphs; the other baselines are timed as plain calls.
CAPTURED = (OURS, "compiled", "liger")


def measure_ops(
    cases: Sequence[OpCase], device: torch.device, seconds: float, on_progress: OnProgress = noop
) -> Iterator[Measurement]:
    """Yield one measurement per case: its errors, and its times if the errors are small enough.

    Cases that share compiled code follow each other.

    Example:
        >>> import torch
        >>> from benchmarks.cases import OpCase
        >>> from benchmarks.ops import measure_ops
        >>> [row] = measure_ops([OpCase("sinkhorn", 2, 8, 3)], torch.device("cpu"), seconds=0.01)
        >>> row["passed"], row["error"]["plan"] < 1e-5, row["ms"] > 0
        (True, True, True)
    """
    groups: dict[object, list[OpCase]] = {}
    for case in cases:
        groups.setdefault(case.group, []).append(case)
    return measure("ops", list(groups.values()), device, seconds, on_progress)


class PreparedOp:
    """An operation that has been checked and is ready to be timed.

    Args:
        case: The operation and its size.
        device: Device to measure.
    """

    def __init__(self, case: OpCase, device: torch.device) -> None:
        self.device = device
        self.runs: dict[str, Timed] = {}
        problem = PROBLEMS[case.op](case, device)
        self.row: Measurement = case.row() | {
            "variant": problem.backend,
            "direction": problem.direction,
        }
        checks = {name: self._check(name, run, problem) for name, run in problem.runs().items()}
        problem.forget()
        self.row |= checks.pop(OURS)
        if self.row["passed"] and problem.on_gpu:
            self._add_memory(problem)
        self.others = checks

    def finish(self, seconds: float) -> Measurement:
        """Time the runs that passed; nothing else may use the device meanwhile."""
        times = time_together(self.runs, self.device, seconds)
        for name, found in times.items():
            if name == OURS:
                self.row |= found.row()
            elif name in ("call", "forward"):
                self.row[f"{name}_ms"] = found.row()["ms"]
            else:
                self.others[name] |= found.row()
        return self.row | {"baselines": self.others}

    def _check(self, name: str, run: Callable[[], Any], problem: OpProblem) -> Measurement:
        """Check a run, and keep it for timing if it passes."""
        try:
            timed = run
            if problem.on_gpu and name in CAPTURED:
                from slotmesh.training.captured import Captured

                timed = Captured(run)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(SEED)
                errors = problem.errors(timed())
        except Exception as error:  # noqa: BLE001
            return {"passed": False, "failure": one_line(error)}
        right = passed(errors)
        if right:
            self.runs[name] = timed
            if timed is not run and name == OURS:
                self.runs["call"] = run
                if problem.forward is not None:
                    self.runs["forward"] = type(timed)(problem.forward)  # pyright: ignore
        return {"error": noted(errors), "passed": right}

    def _add_memory(self, problem: OpProblem) -> None:
        """Measure the memory of a call without a graph: graphs have their own memory pool."""
        most = peak_memory(self.runs["call"], self.device)
        size = problem.cost.numel() * problem.cost.element_size()
        self.row |= {
            "peak_memory_mb": round(most / 1e6, 3),
            "memory_over_cost": round(most / size, 3),
        }


def prepare(case: OpCase, device: torch.device) -> PreparedOp:
    """Check and compile a case; see :func:`~benchmarks.measure.measure`."""
    return PreparedOp(case, device)
