"""Median times, by CUDA events on a GPU and by the clock on a CPU.

Inputs are the same in every call, so on a GPU they come from the L2 cache if they fit.
"""

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

Timed = Callable[[], object]

# A sample has as many calls as take this long: clocks are not precise below it, and the first call
# after waiting for the device takes longer than others.
SAMPLE_MS = 5.0
MOST_CALLS = 100
FEWEST, MOST = 5, 50
"""Minimum and maximum number of samples."""


@dataclass(frozen=True)
class Times:
    """The time of a call, in milliseconds."""

    ms: float
    """The median."""
    p10: float
    p90: float
    samples: int

    def over(self, calls: int) -> "Times":
        """Return the times of one call if this many were timed as one."""
        return Times(self.ms / calls, self.p10 / calls, self.p90 / calls, self.samples)

    def row(self) -> dict[str, Any]:
        """Return the part of a measurement with the times, with five digits."""
        return {
            "ms": _short(self.ms),
            "p10_ms": _short(self.p10),
            "p90_ms": _short(self.p90),
            "samples": self.samples,
        }


def time_together(
    runs: Mapping[str, Timed], device: torch.device, seconds: float
) -> dict[str, Times]:
    """Time several computations in turn, so that a slow phase of the machine affects all.

    Args:
        runs: Functions without arguments, by name.
        device: Device they run on.
        seconds: Seconds per function; at least five samples are taken.

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


def peak_memory(run: Timed, device: torch.device) -> int:
    """Return the peak memory of a call on a GPU in bytes, beyond what is already allocated."""
    run()
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    kept = run()
    torch.cuda.synchronize(device)
    most = torch.cuda.max_memory_allocated(device)
    del kept
    return most - before


def _cuda_sample(run: Timed, calls: int) -> float:
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    first.record()
    for _ in range(calls):
        run()
    last.record()
    last.synchronize()
    return first.elapsed_time(last) / calls


def _cpu_sample(run: Timed, calls: int) -> float:
    began = time.perf_counter()
    for _ in range(calls):
        run()
    return 1e3 * (time.perf_counter() - began) / calls


def _times(ms: list[float]) -> Times:
    tenths = statistics.quantiles(ms, n=10, method="inclusive")
    return Times(statistics.median(ms), tenths[0], tenths[-1], len(ms))


def _short(x: float) -> float:
    return float(f"{x:.5g}")
