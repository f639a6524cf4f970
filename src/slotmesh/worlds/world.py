"""What all worlds have in common."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from slotmesh.worlds.record import TensorRecord
from slotmesh.worlds.sample import Sample

R = TypeVar("R", bound=TensorRecord)


class Endless(ABC, Generic[R]):
    """Sample ``i`` is a pure function of (seed, i); subclasses give a batch of them."""

    name: str
    """The name on the command line."""
    classes: ClassVar[Mapping[str, Sequence[str]]] = {}
    """Names of the classes, by the columns of the table of objects that hold their numbers."""

    def __init__(self, *, seed: int = 0, device: torch.device | str = "cpu") -> None:
        self.seed = seed
        self.device = torch.device(device)
        if self.device.type == "mps":
            raise ValueError(
                f"{type(self).__name__}: device is {device}, which has no float64 to make scenes "
                "in. Leave it out, and move samples with .to(device)."
            )

    @abstractmethod
    def make(self, index: Tensor) -> R:
        """The samples of these indices, int64 ``(batch)`` on the world's device."""

    def sample(self, index: Sequence[int] | range | Tensor) -> R:
        """The samples of these indices, as one batch.

        Numbers are checked before they go to the world's device; those of a tensor on a GPU are
        not, since one would have to wait for it.
        """
        # Whole ranges are made where they are needed; all else is checked before it is moved.
        if isinstance(index, range) and index and min(index[0], index[-1]) >= 0:
            return self.make(torch.arange(index.start, index.stop, index.step, device=self.device))
        which = torch.as_tensor(index, dtype=torch.int64)
        here = which.device.type == "cpu"
        if which.ndim != 1 or len(which) == 0 or (here and bool((which < 0).any())):
            raise ValueError(
                f"{type(self).__name__}.sample: the index has shape {tuple(which.shape)}, expected "
                "at least one whole number of at least 0. Pass range(64), or a list."
            )
        # To the host one has to wait in any case.
        return self.make(which.to(self.device, non_blocking=self.device.type == "cuda"))

    def batches(self, batch_size: int, start: int = 0, *, ahead: int = 1) -> Iterator[R]:
        """Batches without end, from sample ``start`` on.

        Args:
            batch_size: Samples a batch.
            start: The first sample.
            ahead: How many batches are drawn in one go. They hold the same samples with any
                number; on a GPU, where small batches wait for kernel launches, a larger one is
                faster. The batches of one go are slices that share its memory.

        Raises:
            ValueError: If one of them is too small.
        """
        if batch_size < 1 or start < 0 or ahead < 1:
            raise ValueError(
                f"{type(self).__name__}.batches: batch_size is {batch_size}, start {start} and "
                f"ahead {ahead}, expected at least 1, 0 and 1."
            )
        return self._batches(batch_size, start, ahead)

    def _batches(self, batch_size: int, start: int, ahead: int) -> Iterator[R]:
        step = batch_size * ahead
        while True:
            drawn = self.sample(range(start, start + step))
            for first in range(0, step, batch_size):
                yield drawn[first : first + batch_size]
            # Let go of before the next ones are drawn.
            del drawn
            start += step


class World(Endless[Sample]):
    """An endless labelled dataset: sample ``i`` is a pure function of (seed, i).

    The factors of a scene are the same bits on every device and in every batch; pixels agree to
    one grey level.

    Args:
        seed: Another seed is another dataset.
        device: Where samples are made.
    """

    max_objects: int
    """Rows of the table of objects."""
