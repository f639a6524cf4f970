"""Use several CPU cores, one part of the batch per thread.

Ray casting consists of thousands of small operations: threads within one operation mostly wait for
each other; threads that each render whole scenes do not.
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
        # The setting is per thread, but new threads inherit the last one.
        torch.set_num_threads(allowed)
