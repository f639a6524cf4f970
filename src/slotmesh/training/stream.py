"""Batches in an order that is a pure function of the seed and the step."""

import signal
from collections.abc import Collection, Generator, Iterator, Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from rich.console import Console
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from slotmesh.progress import Count
from slotmesh.training.tasks.experiment import Experiment, Source, Split, mix
from slotmesh.worlds.record import TensorRecord

# Number of batches that a world makes at a time on a GPU, which few samples would leave idle.
_AHEAD = 16
# Largest size of a set in memory, in bytes; on a GPU, half of the free memory.
_LIMIT = 4 << 30
# Number of samples made at a time: always the same blocks, so that no pixel depends on a run's
# history.
_BLOCKS = {"cpu": 64, "cuda": 1024}


class Order:
    """Which samples each training step sees.

    A dataset of ``n`` samples is read in epochs, each in a new order, without the last samples if
    they do not fill a batch; an endless one (``n`` None) from its first sample on.
    Process ``rank`` of ``n_ranks`` gets every ``n_ranks``-th sample of a batch.

    Example:
        >>> from slotmesh.training.stream import Order
        >>> Order(None, batch_size=4, seed=0).batch(2)
        [8, 9, 10, 11]
        >>> Order(None, batch_size=4, seed=0, rank=1, n_ranks=2).batch(2)
        [9, 11]
        >>> epoch = Order(9, batch_size=4, seed=0)
        >>> len({*epoch.batch(0), *epoch.batch(1)})
        8
    """

    def __init__(
        self, n: int | None, *, batch_size: int, seed: int, rank: int = 0, n_ranks: int = 1
    ) -> None:
        if n is not None and n < batch_size:
            raise ValueError(
                f"--data.batch-size is {batch_size}, but there are only {n} training samples."
            )
        self.n = n
        self.batch_size = batch_size
        self.seed = seed
        self.rank = rank
        self.n_ranks = n_ranks
        self._epoch: tuple[int, list[int]] = (-1, [])

    def batch(self, step: int) -> list[int]:
        """The samples of a step for this process."""
        size = self.batch_size
        if self.n is None:
            return list(range(step * size, (step + 1) * size))[self.rank :: self.n_ranks]
        epoch, place = divmod(step, self.n // size)
        if self._epoch[0] != epoch:
            dice = torch.Generator().manual_seed(mix(self.seed, "order", epoch))
            self._epoch = (epoch, torch.randperm(self.n, generator=dice).tolist())
        return self._epoch[1][place * size : (place + 1) * size][self.rank :: self.n_ranks]


def train_batches(
    source: Source, order: Order, step: int, *, ahead: int = 1, workers: int = 0
) -> Generator[Any]:
    """Endless training batches from a step on; close the iterator to end the reading processes."""
    if workers:
        yield from _loader(source, _Steps(order, step), workers)
    while True:
        batches = [order.batch(step + i) for i in range(ahead)]
        made = source.sample([i for batch in batches for i in batch])
        size = len(batches[0])
        for i in range(ahead):
            yield made if ahead == 1 else made[i * size : (i + 1) * size]
        step += ahead


class EvalBatches:
    """The first ``n`` samples in order, in batches; processes share each batch."""

    def __init__(
        self,
        source: Source,
        n: int,
        *,
        batch_size: int,
        rank: int = 0,
        n_ranks: int = 1,
        workers: int = 0,
    ) -> None:
        self.source = source
        self.workers = workers
        whole = [range(i, min(i + batch_size, n)) for i in range(0, n, batch_size)]
        self.totals = [len(batch) for batch in whole]
        """Samples of each batch, over all processes."""
        self._mine = [batch[rank::n_ranks] for batch in whole]
        # Only the last batch can be too small for every process to get a part.
        self._mine = [batch for batch in self._mine if batch]

    def __len__(self) -> int:
        return len(self._mine)

    def __iter__(self) -> Iterator[Any]:
        if self.workers:
            yield from _loader(self.source, [list(batch) for batch in self._mine], self.workers)
            return
        for batch in self._mine:
            yield self.source.sample(list(batch))


class RunData:
    """The training and validation batches of a run.

    ``in_memory`` says which sets an earlier part of the run kept in memory, and is updated when
    sets are opened. ``kept`` may contain sets of another run, and afterwards contains those of this
    one.
    """

    def __init__(
        self,
        experiment: Experiment,
        device: torch.device,
        *,
        rank: int = 0,
        n_ranks: int = 1,
        console: Console | None = None,
        in_memory: dict[str, bool] | None = None,
        kept: "KeptSets | None" = None,
    ) -> None:
        self.experiment = experiment
        self.device = device
        self.console = console
        self.in_memory = {} if in_memory is None else in_memory
        self.kept = KeptSets() if kept is None else kept
        self._share = {
            "batch_size": experiment.settings.data.batch_size,
            "rank": rank,
            "n_ranks": n_ranks,
        }
        data = experiment.settings.data
        # Only real datasets are read by worker processes; worlds need none.
        self._is_real = getattr(data, "root", None) is not None
        self._workers = data.workers if self._is_real else 0

    def train(self, step: int) -> Generator[Any]:
        """Endless training batches from a step on."""
        source, n = self._source("train")
        order = Order(n, seed=self.experiment.settings.seed, **self._share)
        ahead = _AHEAD if self.device.type == "cuda" and not self._workers else 1
        return train_batches(source, order, step, ahead=ahead, workers=self._workers)

    def val(self) -> EvalBatches:
        """The validation set."""
        source, n = self._source("val")
        assert n is not None
        return EvalBatches(source, n, workers=self._workers, **self._share)

    def _source(self, split: Split) -> tuple[Source, int | None]:
        """A finite world is made once instead of in every epoch."""
        source, n = self.experiment.source(split, self.device)
        if self._is_real:
            return source, n
        reads, before = self.experiment.reads(split), self.in_memory.get(split)
        settings = self.experiment.settings
        # Everything that determines the pixels, and more.
        kind = (type(self.experiment), settings.data, settings.hardware, self.device, reads)
        made: Source | None = self.kept.get(split, kind) if before is not False else None
        if made is None:
            made = cached(
                source, n, self.device, self.console, split=split, reads=reads, before=before
            )
        if isinstance(made, Cached):
            self.kept.put(split, kind, made)
        self.in_memory[split] = isinstance(made, Cached)
        return made, n


class _Steps:
    """The batches of all steps from one on."""

    def __init__(self, order: Order, step: int) -> None:
        self.order = order
        self.step = step

    def __iter__(self) -> Iterator[list[int]]:
        step = self.step
        while True:
            yield self.order.batch(step)
            step += 1


class _Batched(Dataset[Any]):
    """Reads a whole batch at a time."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def __getitem__(self, index: list[int]) -> Any:
        return self.source.sample(index)


def _ignore_signals(worker: int) -> None:
    """Leave signals to the training process, which needs this one until it has saved."""
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, signal.SIG_IGN)


def _loader(source: Source, batches: Sequence[list[int]] | _Steps, workers: int) -> Any:
    return DataLoader(
        _Batched(source),
        batch_size=None,
        sampler=batches,  # pyright: ignore[reportArgumentType]
        num_workers=workers,
        worker_init_fn=_ignore_signals,
        persistent_workers=False,
        pin_memory=False,
    )


# ---- worlds that are kept in memory ----


class Cached:
    """The first samples of a world, kept in memory: their index and the fields ``reads``."""

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
        with Count(console, "making samples", n) as count:
            for first in range(0, n, block):
                made = _only(source.sample(range(first, min(first + block, n))), reads)
                if self._whole is None:
                    self._whole = made._map(lambda x: x.new_empty(n, *x.shape[1:]))
                for kept, new in zip(tensors(self._whole), tensors(made), strict=True):
                    kept[first : first + len(new)] = new
                count.advance(min(block, n - first))

    def sample(self, index: Any) -> TensorRecord:
        """The samples of these indices, as one batch."""
        which = torch.as_tensor(index, dtype=torch.int64)
        device = self._whole.index.device
        if device.type == "cuda" and not which.is_cuda:
            # From pinned memory, so that nothing waits for the GPU.
            which = which.pin_memory().to(device, non_blocking=True)
        return self._whole._map(lambda x: x[which])


class KeptSets:
    """Sets kept in memory for a later run with the same data, one for each split."""

    def __init__(self) -> None:
        self._sets: dict[str, tuple[Any, Cached]] = {}

    def get(self, split: Split, kind: Any) -> Cached | None:
        """Return the set of a split if the data are the same; otherwise, free it."""
        if split in self._sets and self._sets[split][0] == kind:
            return self._sets[split][1]
        self._sets.pop(split, None)
        return None

    def put(self, split: Split, kind: Any, made: Cached) -> None:
        """Keep the set of a split."""
        self._sets[split] = (kind, made)


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
    """Return the source, or its samples in memory if they are finite and fit.

    Args:
        source: A world.
        n: Number of samples; None if it is endless.
        device: Device on which it makes them. On a GPU, they may take half of the free memory.
        console: Shows the progress, and a line if they do not fit, if given.
        split: The split that they belong to.
        reads: Fields that are kept besides ``index``; all by default.
        before: Whether an earlier part of the run kept them. If it rendered them at every step,
            this part does too: a pixel of another block can differ by one grey level.
    """
    if n is None:
        return source
    each = sum(x.nbytes for x in tensors(_only(source.sample([0]), reads)))
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
    # Memory of an earlier run in this process is free, but torch still holds it.
    torch.cuda.empty_cache()
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
        said += " They were kept before: pixels may now differ by one grey level."
    return said


def _only(record: TensorRecord, reads: Collection[str] | None) -> TensorRecord:
    """Keep the index and the fields that are read; the others become empty."""
    if reads is None:
        return record
    unread = [field.name for field in fields(record) if field.name not in (*reads, "index")]
    empty = {name: _empty(getattr(record, name)) for name in unread}
    return replace(record, **empty)


def _empty(value: Tensor | dict[str, Tensor]) -> Any:
    return {} if isinstance(value, dict) else value.new_empty(len(value), 0)


def tensors(record: Any) -> list[Tensor]:
    """All tensors of a batch, always in the same order."""
    found: list[Tensor] = []

    def note(x: Tensor) -> Tensor:
        found.append(x)
        return x

    record._map(note)
    return found
