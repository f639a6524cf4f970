"""Elementwise functions as kernels of their own.

A function is compiled once: numbers of rows are symbols, what tells rows apart is a tensor, and the
caller's grad mode and autocast are set aside.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

Fuse = Callable[[Callable[..., Any]], Callable[..., Any]]
"""`plain` or `compiled`."""

_FEW = 64
"""Fewer rows are not compiled for: sizes 0 and 1 would be special, and little is to be gained."""
_cache: dict[Callable[..., Any], Callable[..., Any]] = {}


def plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function itself."""
    return function


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function compiled for any number of rows, the first dimension of its first tensor."""
    if function not in _cache:
        fused = torch.compile(function)

        def call(*args: Any) -> Any:
            tensors = list(_tensors(args))
            rows = len(tensors[0])
            if rows < _FEW:
                return function(*args)
            for x in tensors:
                if len(x) == rows:
                    torch._dynamo.maybe_mark_dynamic(x, 0)
            return fused(*args)

        _cache[function] = call
    return _cache[function]


def _tensors(args: Any) -> Iterator[Tensor]:
    for x in args:
        if isinstance(x, Tensor):
            yield x
        elif isinstance(x, tuple | list):
            yield from _tensors(x)


@contextmanager
def set_apart(device: torch.device) -> Iterator[None]:
    """Always in inference mode and without autocast, whatever the caller's.

    Each mode would be compiled for on its own, and so would tensors that know what they view.
    """
    with torch.inference_mode(), torch.autocast(device.type, enabled=False):
        yield
