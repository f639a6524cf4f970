"""Work on several cores of a CPU at once, a part of the batch each.

Ray casting is thousands of small operations: threads within each of them wait for each other more
than they work, threads that take whole scenes do not.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")
R = TypeVar("R")


def spread(function: Callable[[T], R], parts: Sequence[T], device: torch.device) -> list[R]:
    """``[function(part) for part in parts]``, with as many threads as torch may use on a CPU."""
    allowed = torch.get_num_threads()
    threads = min(allowed, len(parts)) if device.type == "cpu" else 1
    if threads <= 1:
        return [function(part) for part in parts]
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return list(pool.map(function, parts))
    finally:
        # The setting is each thread's own, but threads still to come start with the last one.
        torch.set_num_threads(allowed)
