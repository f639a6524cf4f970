"""Medians: of CUDA events around replays of a graph, or of the clock around calls on the CPU.

Inputs are the same in every call, so on a GPU they are found in its L2 cache where they fit.
"""

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

Run = Callable[[], object]

# A sample is as many calls as take this long: the clocks are not exact below it.
SAMPLE_MS = 1.0
MOST_CALLS = 100
FEWEST, MOST = 5, 50
"""Samples of one run."""


@dataclass(frozen=True)
class Times:
    """How long a call takes, in milliseconds."""

    ms: float
    """The median."""
    p10: float
    p90: float
    samples: int

    def over(self, calls: int) -> "Times":
        """Of one call, where so many were timed as one."""
        return Times(self.ms / calls, self.p10 / calls, self.p90 / calls, self.samples)

    def row(self) -> dict[str, Any]:
        """As results hold it, with five digits."""
        return {
            "ms": _short(self.ms),
            "p10_ms": _short(self.p10),
            "p90_ms": _short(self.p90),
            "samples": self.samples,
        }


def time_together(
    runs: Mapping[str, Run], device: torch.device, seconds: float
) -> dict[str, Times]:
    """Time several computations in turn, so that a slow moment of the machine is one for all.

    Args:
        runs: Functions without arguments, by name.
        device: Where they compute.
        seconds: For each of them; five samples are taken even if they need longer.

    Example:
        >>> import torch
        >>> from benchmarks.timing import time_together
        >>> x = torch.ones(8)
        >>> times = time_together({"sum": x.sum}, torch.device("cpu"), seconds=0.01)
        >>> 0 < times["sum"].p10 <= times["sum"].ms <= times["sum"].p90
        True
    """
    sample = _cuda_sample if device.type == "cuda" else _cpu_sample
    calls: dict[str, int] = {}
    for name, run in runs.items():
        run()
        calls[name] = min(MOST_CALLS, max(1, math.ceil(SAMPLE_MS / max(1e-6, sample(run, 1)))))
    found: dict[str, list[float]] = {name: [] for name in runs}
    began, rounds = time.perf_counter(), 0
    while rounds < FEWEST or (rounds < MOST and time.perf_counter() - began < seconds * len(runs)):
        for name, run in runs.items():
            found[name].append(sample(run, calls[name]))
        rounds += 1
    return {name: _times(ms) for name, ms in found.items()}


def peak_memory(run: Run, device: torch.device) -> int:
    """Bytes that a call needs on a GPU at most, beyond what is allocated already."""
    run()
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    kept = run()
    torch.cuda.synchronize(device)
    most = torch.cuda.max_memory_allocated(device)
    del kept
    return most - before


def _cuda_sample(run: Run, calls: int) -> float:
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    first.record()
    for _ in range(calls):
        run()
    last.record()
    last.synchronize()
    return first.elapsed_time(last) / calls


def _cpu_sample(run: Run, calls: int) -> float:
    began = time.perf_counter()
    for _ in range(calls):
        run()
    return 1e3 * (time.perf_counter() - began) / calls


def _times(ms: list[float]) -> Times:
    tenths = statistics.quantiles(ms, n=10, method="inclusive")
    return Times(statistics.median(ms), tenths[0], tenths[-1], len(ms))


def _short(x: float) -> float:
    return float(f"{x:.5g}")
