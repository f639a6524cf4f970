"""Where a computation spends its time: GPU kernels by kind and by name."""

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.timing import Timed

KINDS: dict[str, str] = {
    "transport": r"^(forward|backward|emd|adjoint_\w+|\w+_small)_kernel",
    "distance": r"^distance_",
    "marginal": r"^logit_",
    "convolution": r"fprop|dgrad|wgrad|conv|cudnn",
    "matrix product": r"gemm|gemv|nvjet|cutlass|cublas|splitk",
    "compiled": r"^triton_",
    "memory": r"^mem(cpy|set)",
}
"""A kernel is of the first kind whose pattern occurs in its name, else ``other``."""
LONGEST = 12
"""Number of kernels that are listed by name."""
_NAME = 60


def kind_of(name: str) -> str:
    """Return the kind of a kernel.

    Example:
        >>> from benchmarks.kernels import kind_of
        >>> kind_of("distance_backward_kernel"), kind_of("triton_red_fused_mul_sum_3")
        ('distance', 'compiled')
    """
    for kind, pattern in KINDS.items():
        if re.search(pattern, name, re.IGNORECASE):
            return kind
    return "other"


def profiled(run: Timed, calls: int) -> dict[str, Any]:
    """Return milliseconds per call by kind of kernel, and the longest kernels.

    Kernels that run at the same time all count, and idle time of the GPU does not.

    Args:
        run: A computation on a GPU.
        calls: Calls that it consists of.
    """
    run()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as found:
        run()
        torch.cuda.synchronize()
    on_gpu = [
        (event.name, event.time_range.elapsed_us() / 1e3)
        for event in found.events() or ()
        if event.device_type.name == "CUDA"
    ]
    return summary(on_gpu, calls)


def summary(events: Iterable[tuple[str, float]], calls: int) -> dict[str, Any]:
    """Summarise names and milliseconds of kernels per call."""
    kinds: dict[str, float] = defaultdict(float)
    names: dict[str, list[float]] = defaultdict(list)
    for name, ms in events:
        kinds[kind_of(name)] += ms
        names[name[:_NAME]].append(ms)
    longest = sorted(names.items(), key=lambda item: -sum(item[1]))[:LONGEST]
    return {
        "kinds": {kind: round(ms / calls, 4) for kind, ms in sorted(kinds.items())},
        "longest": [
            {"kernel": name, "calls": round(len(ms) / calls, 2), "ms": round(sum(ms) / calls, 4)}
            for name, ms in longest
        ],
    }
