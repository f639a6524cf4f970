"""Batches in an order that is a pure function of the seed and the step."""

import signal
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

from slotmesh.training.tasks.experiment import Source, mix


class Order:
    """Which samples each training step sees.

    A dataset of ``n`` samples is gone through in epochs, each in a new order, the last samples
    that do not fill a batch left out; an endless one (``n`` None) from its first sample on.
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
        """The samples of a step, those of this process."""
        size = self.batch_size
        if self.n is None:
            return list(range(step * size, (step + 1) * size))[self.rank :: self.n_ranks]
        epoch, place = divmod(step, self.n // size)
        if self._epoch[0] != epoch:
            dice = torch.Generator().manual_seed(mix(self.seed, "order", epoch))
            self._epoch = (epoch, torch.randperm(self.n, generator=dice).tolist())
        return self._epoch[1][place * size : (place + 1) * size][self.rank :: self.n_ranks]


class TrainBatches:
    """Training batches from a step on, without end.

    Args:
        source: A world or a reader.
        order: Which samples each step sees.
        start: Asked for the first step when iteration begins, so that a resumed run goes on.
        ahead: Batches that a world makes at a time; a GPU is idle with few samples.
        workers: Processes that read a dataset.
    """

    def __init__(
        self,
        source: Source,
        order: Order,
        *,
        start: Callable[[], int],
        ahead: int = 1,
        workers: int = 0,
    ) -> None:
        self.source = source
        self.order = order
        self.start = start
        self.ahead = ahead
        self.workers = workers
        self._running: Generator[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        self._running = self._batches()
        return self._running

    def close(self) -> None:
        """End the processes that read, which would wait for more."""
        if self._running is not None:
            self._running.close()

    def _batches(self) -> Generator[Any]:
        step = self.start()
        if self.workers:
            yield from _loader(self.source, _Steps(self.order, step), self.workers)
        while True:
            batches = [self.order.batch(step + i) for i in range(self.ahead)]
            made = self.source.sample([i for batch in batches for i in batch])
            size = len(batches[0])
            for i in range(self.ahead):
                yield made if self.ahead == 1 else made[i * size : (i + 1) * size]
            step += self.ahead


class EvalBatches:
    """The first ``n`` samples in order, in batches; processes share each batch.

    Args:
        source: A world or a reader.
        n: Samples.
        batch_size: Over all processes.
        rank: This process.
        n_ranks: Processes.
        workers: Processes that read a dataset.
    """

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
        # Only the last can be too small for every process to have a part.
        self._mine = [batch for batch in self._mine if batch]

    def __len__(self) -> int:
        return len(self._mine)

    def __iter__(self) -> Iterator[Any]:
        if self.workers:
            yield from _loader(self.source, [list(batch) for batch in self._mine], self.workers)
            return
        for batch in self._mine:
            yield self.source.sample(list(batch))


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
    """A signal to all processes is for the one that trains, which needs the others to save."""
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
