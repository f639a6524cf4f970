"""A finite part of a world, made once and kept in memory."""

from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from slotmesh.experiments.experiment import Source
from slotmesh.worlds._record import Record

_LIMITS = {"cpu": 4 << 30, "cuda": 16 << 30}
# Samples made at a time. Always the same blocks, so that no pixel depends on a run's history.
_BLOCKS = {"cpu": 64, "cuda": 1024}


class Cached:
    """The first samples of a world, made when it is opened.

    Args:
        source: A world.
        n: Samples.
        device: Where it makes them.
        console: Shows the progress, if given.
    """

    def __init__(
        self, source: Source, n: int, device: torch.device, console: Console | None = None
    ) -> None:
        block = _BLOCKS.get(device.type, 64)
        self._whole: Any = None
        columns = (
            TextColumn("making samples"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
        )
        quiet = console is None or not console.is_terminal
        with Progress(*columns, console=console, transient=True, disable=quiet) as progress:
            bar = progress.add_task("making samples", total=n)
            for first in range(0, n, block):
                made = source.sample(range(first, min(first + block, n)))
                if self._whole is None:
                    self._whole = made._map(lambda x: x.new_empty(n, *x.shape[1:]))
                for kept, new in zip(_tensors(self._whole), _tensors(made), strict=True):
                    kept[first : first + len(new)] = new
                progress.advance(bar, len(made))

    def sample(self, index: Any) -> Record:
        """The samples of these indices, as one batch."""
        which = torch.as_tensor(index, dtype=torch.int64)
        device = self._whole.index.device
        if device.type == "cuda" and not which.is_cuda:
            # Out of pinned memory, so that nobody waits for the GPU.
            which = which.pin_memory().to(device, non_blocking=True)
        return self._whole._map(lambda x: x[which])


def cached(
    source: Source, n: int | None, device: torch.device, console: Console | None = None
) -> Source:
    """The source itself, or what it makes kept in memory where it has an end and fits."""
    if n is None:
        return source
    size = n * sum(x.nbytes for x in _tensors(source.sample([0])))
    if size > _LIMITS.get(device.type, 4 << 30):
        return source
    return Cached(source, n, device, console)


def _tensors(record: Record) -> list[Tensor]:
    found: list[Tensor] = []

    def note(x: Tensor) -> Tensor:
        found.append(x)
        return x

    record._map(note)
    return found
