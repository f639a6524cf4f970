"""The base classes of all worlds."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor

from slotmesh.ops import checks
from slotmesh.worlds.indices import as_indices
from slotmesh.worlds.record import TensorRecord
from slotmesh.worlds.sample import Sample

R = TypeVar("R", bound=TensorRecord)


class Endless(ABC, Generic[R]):
    """A dataset without end: sample ``i`` is a pure function of (seed, i)."""

    name: str
    """The name on the command line."""
    classes: ClassVar[Mapping[str, Sequence[str]]] = {}
    """Names of the classes, by the columns of the table of objects that hold their indices."""

    def __init__(self, *, seed: int = 0, device: torch.device | str = "cpu") -> None:
        whole: Any = checks.plain(seed)
        if not isinstance(whole, int) or isinstance(whole, bool):
            raise ValueError(
                f"{type(self).__name__}: seed is {seed!r}, expected a whole number. Pass 0."
            )
        self.seed = whole
        self.device = torch.device(device)
        if self.device.type == "mps":
            raise ValueError(
                f"{type(self).__name__}: device is {device}, which has no float64 to make scenes "
                "in. Leave it out, and move samples with .to(device)."
            )

    @abstractmethod
    def make(self, index: Tensor) -> R:
        """Make the samples of these indices, int64 ``(batch)`` on the world's device."""

    def sample(self, index: Sequence[int] | range | Tensor) -> R:
        """Make the samples of these indices, as one batch.

        Indices are checked before they are moved to the device of the world, except for a tensor on
        a GPU, as reading it would wait for the GPU.
        """
        # Ranges are created on the device; everything else is checked before it is moved.
        inside = isinstance(index, range) and index and min(index[0], index[-1]) >= 0
        if isinstance(index, range) and inside and max(index.start, index.stop) < 2**63:
            return self.make(torch.arange(index.start, index.stop, index.step, device=self.device))
        which = as_indices(f"{type(self).__name__}.sample", index)
        # A copy to the host would wait anyway.
        return self.make(which.to(self.device, non_blocking=self.device.type == "cuda"))

    def batches(self, batch_size: int, start: int = 0, *, ahead: int = 1) -> Iterator[R]:
        """Iterate over batches without end, starting at sample ``start``.

        Args:
            batch_size: Samples per batch.
            start: The first sample.
            ahead: How many batches to draw at once. The samples do not depend on it; on a GPU,
                where small batches wait for kernel launches, a larger number is faster. Batches
                drawn together are slices that share memory.

        Raises:
            ValueError: If one of them is too small.
        """
        name = f"{type(self).__name__}.batches"
        return self._batches(
            checks.as_count(name, "batch_size", batch_size, 1),
            checks.as_count(name, "start", start, 0),
            checks.as_count(name, "ahead", ahead, 1),
        )

    def _batches(self, batch_size: int, start: int, ahead: int) -> Iterator[R]:
        step = batch_size * ahead
        while True:
            drawn = self.sample(range(start, start + step))
            for first in range(0, step, batch_size):
                yield drawn[first : first + batch_size]
            # Free the memory before the next ones are drawn.
            del drawn
            start += step


class World(Endless[Sample]):
    """An endless labelled dataset: sample ``i`` is a pure function of (seed, i).

    The factors of a scene are bit-identical on every device and in every batch; pixels agree to one
    grey level. Subclasses implement :meth:`make`.

    Args:
        seed: Each seed is a different dataset.
        device: Where samples are computed.
    """

    max_objects: int
    """Rows of the table of objects."""
