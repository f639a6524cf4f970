"""Compile elementwise functions into kernels.

A function is compiled once: the number of rows is symbolic, what differs between rows is a tensor,
and the caller's grad mode and autocast do not matter.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

Fuse = Callable[[Callable[..., Any]], Callable[..., Any]]
"""`plain` or `compiled`."""

_FEW = 64
"""Fewer rows run uncompiled: sizes 0 and 1 would be special cases, and there is little to gain."""
_cache: dict[Callable[..., Any], Callable[..., Any]] = {}


def plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function itself."""
    return function


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile the function for any number of rows, the first dimension of its first tensor."""
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
    """Enter inference mode and leave autocast, whatever the caller's modes.

    Otherwise each mode would be compiled separately, and so would views with autograd metadata.
    """
    with torch.inference_mode(), torch.autocast(device.type, enabled=False):
        yield
