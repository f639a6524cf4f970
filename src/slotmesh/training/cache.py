"""A finite part of a world, made once and kept in memory."""

from collections.abc import Collection
from dataclasses import fields, replace
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from slotmesh.training.tasks.experiment import Source, Split
from slotmesh.worlds.record import TensorRecord

_LIMIT = 4 << 30
# Samples made at a time. Always the same blocks, so that no pixel depends on a run's history.
_BLOCKS = {"cpu": 64, "cuda": 1024}


class Cached:
    """The first samples of a world, made when it is opened.

    Args:
        source: A world.
        n: Samples.
        device: Where it makes them.
        console: Shows the progress, if given.
        reads: Fields that are kept besides ``index``; all by default. The others are empty.
    """

    def __init__(
        self,
        source: Source,
        n: int,
        device: torch.device,
        console: Console | None = None,
        reads: Collection[str] | None = None,
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
                made = _only(source.sample(range(first, min(first + block, n))), reads)
                if self._whole is None:
                    self._whole = made._map(lambda x: x.new_empty(n, *x.shape[1:]))
                for kept, new in zip(_tensors(self._whole), _tensors(made), strict=True):
                    kept[first : first + len(new)] = new
                progress.advance(bar, min(block, n - first))

    def sample(self, index: Any) -> TensorRecord:
        """The samples of these indices, as one batch."""
        which = torch.as_tensor(index, dtype=torch.int64)
        device = self._whole.index.device
        if device.type == "cuda" and not which.is_cuda:
            # Out of pinned memory, so that nobody waits for the GPU.
            which = which.pin_memory().to(device, non_blocking=True)
        return self._whole._map(lambda x: x[which])


def cached(
    source: Source,
    n: int | None,
    device: torch.device,
    console: Console | None = None,
    *,
    split: Split = "train",
    reads: Collection[str] | None = None,
    before: bool | None = None,
) -> Source:
    """The source itself, or what it makes kept in memory where it has an end and fits.

    Args:
        source: A world.
        n: Samples; None: it has no end.
        device: Where it makes them. They may take half of the free memory of a GPU.
        console: Shows the progress, and a line where they do not fit, if given.
        split: What they are for.
        reads: Fields that are kept besides ``index``; all by default.
        before: Whether an earlier part of the run kept them. What was rendered stays so: a pixel
            that is made in another block can differ by one grey level.
    """
    if n is None:
        return source
    each = sum(x.nbytes for x in _tensors(_only(source.sample([0]), reads)))
    limit = _limit(device)
    fits = n * each <= limit
    if fits and before is not False:
        return Cached(source, n, device, console, reads)
    if console is not None:
        console.print(_why(n, each, limit, split, before), highlight=False, soft_wrap=True)
    return source


def _limit(device: torch.device) -> int:
    """Bytes that a set may take."""
    if device.type != "cuda":
        return _LIMIT
    return torch.cuda.mem_get_info(device)[0] // 2


def _why(n: int, each: int, limit: int, split: Split, before: bool | None) -> str:
    if n * each <= limit:
        return f"This run renders its {split} samples at every step, as it did before."
    said = (
        f"The {n:,} {split} samples take {n * each / 2**30:.1f} GiB, but there is room for "
        f"{limit / 2**30:.1f}: every step renders its own, which is slower. "
        f"--data.{split}-size {limit // each} would fit."
    )
    if before:
        said += " They were kept before: pixels may differ by one grey level from then."
    return said


def _only(record: TensorRecord, reads: Collection[str] | None) -> TensorRecord:
    """A record whose other fields are empty, but for its index."""
    if reads is None:
        return record
    unread = [field.name for field in fields(record) if field.name not in (*reads, "index")]
    empty = {name: _empty(getattr(record, name)) for name in unread}
    return replace(record, **empty)


def _empty(value: Tensor | dict[str, Tensor]) -> Any:
    return {} if isinstance(value, dict) else value.new_empty(len(value), 0)


def _tensors(record: TensorRecord) -> list[Tensor]:
    found: list[Tensor] = []

    def note(x: Tensor) -> Tensor:
        found.append(x)
        return x

    record._map(note)
    return found
