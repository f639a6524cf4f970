"""What all worlds have in common."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from slotmesh.worlds.sample import Sample


class World(ABC):
    """An endless labelled dataset: sample ``i`` is a pure function of (seed, i).

    The factors of a scene are the same bits on every device and in every batch; pixels agree to
    one grey level.

    Args:
        seed: Another seed is another dataset.
        device: Where samples are made.
    """

    name: str
    """The name on the command line."""
    max_objects: int
    """Rows of the table of objects."""

    def __init__(self, *, seed: int = 0, device: torch.device | str = "cpu") -> None:
        self.seed = seed
        self.device = torch.device(device)

    @abstractmethod
    def make(self, index: Tensor) -> Sample:
        """The samples of these indices, int64 ``(batch)`` on the world's device."""

    def sample(self, index: Sequence[int] | range | Tensor) -> Sample:
        """The samples of these indices, as one batch."""
        which = torch.as_tensor(index, dtype=torch.int64, device=self.device)
        if which.ndim != 1 or len(which) == 0 or bool((which < 0).any()):
            raise ValueError(
                f"{type(self).__name__}.sample: the index has shape {tuple(which.shape)}, expected "
                "at least one whole number of at least 0. Pass range(64), or a list."
            )
        return self.make(which)

    def batches(self, batch_size: int, start: int = 0) -> Iterator[Sample]:
        """Batches without end, from sample ``start`` on."""
        while True:
            yield self.sample(range(start, start + batch_size))
            start += batch_size
