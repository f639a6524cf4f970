"""The sets that replicas are trained and evaluated on, kept on the device."""

from collections.abc import Sequence

import torch
from torch import Tensor

from slotmesh.training.stream import Order
from slotmesh.training.tasks.experiment import Split
from slotmesh.training.tasks.random_objects import RandomObjectsTask
from slotmesh.worlds import RandomObjects as World

# Steps prepared at a time.
BLOCK = 100
# Sets generated at a time: each takes a few kilobytes meanwhile.
_PIECE = 8192


class Sets:
    """The sets of one split of several experiments; equal worlds are generated once.

    Args:
        experiments: The experiments.
        split: The split.
        device: Device on which the sets are generated.
    """

    def __init__(
        self, experiments: Sequence[RandomObjectsTask], split: Split, device: torch.device
    ) -> None:
        kinds = [(made.settings.data.seed, made.settings.data.sigma) for made in experiments]
        kept = list(dict.fromkeys(kinds))
        self._worlds: list[World] = []
        for kind in kept:
            world, _ = experiments[kinds.index(kind)].source(split, device)
            assert isinstance(world, World)
            self._worlds.append(world)
        self._device = device
        self.which = torch.tensor([[kept.index(kind)] for kind in kinds], device=device)
        """``(R, 1)``: index of each experiment's world."""

    def targets(self, first: int, last: int) -> Tensor:
        """Return the targets of sets ``first`` to ``last``: ``(worlds, sets, n_objects, dim)``."""
        pieces = [range(i, min(i + _PIECE, last)) for i in range(first, last, _PIECE)]
        made = [
            torch.cat([world.make(self._index(piece)).targets for piece in pieces])
            for world in self._worlds
        ]
        return torch.stack(made)

    def inputs(self, targets: Tensor) -> Tensor:
        """Return the inputs for targets ``(..., n_objects, dim)``: the targets, then zeros."""
        zeros = targets.new_zeros(1, self._worlds[0].n_background, targets.shape[-1])
        return torch.cat((targets, zeros.expand(*targets.shape[:-2], -1, -1)), -2)

    def _index(self, piece: range) -> Tensor:
        return torch.arange(piece.start, piece.stop, device=self._device)


class Batches:
    """The training batches of several experiments, one block of steps at a time.

    Args:
        experiments: Experiments with the same batch size and dataset size.
        device: Device that holds the batches.
    """

    def __init__(self, experiments: Sequence[RandomObjectsTask], device: torch.device) -> None:
        data = experiments[0].settings.data
        self._size, self._n = data.batch_size, data.train_size
        self._orders = [
            Order(self._n, batch_size=self._size, seed=made.settings.seed) for made in experiments
        ]
        self._sets = Sets(experiments, "train", device)
        # A finite dataset is kept whole, an endless one only as far as a block needs.
        self._kept = self._sets.targets(0, self._n or BLOCK * self._size)
        shape = (BLOCK, len(experiments), self._size)
        self._index = torch.zeros(shape, dtype=torch.int64, device=device)

    def prepare(self, step: int, count: int) -> None:
        """Prepare the batches of ``count`` steps, at most ``BLOCK``, without synchronising."""
        steps = range(step, step + count)
        index = torch.tensor([[order.batch(s) for order in self._orders] for s in steps])
        if self._n is None:
            first, last = step * self._size, (step + count) * self._size
            index -= first
            self._kept[:, : last - first].copy_(self._sets.targets(first, last))
        if self._index.is_cuda:
            index = index.pin_memory()
        self._index[:count].copy_(index, non_blocking=True)

    def at(self, row: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs and targets ``(R, batch, n, dim)`` of one step of the block.

        Args:
            row: Index of the step in the block, an int64 scalar.
        """
        index = self._index.index_select(0, row.view(1)).squeeze(0)
        targets = self._kept[self._sets.which, index]
        return self._sets.inputs(targets), targets
