"""Randomness of a batch that several processes share, and of several models in one batch."""

import math
from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor

from slotmesh.ops._drawn import Drawing


class SharedGenerator(torch.Generator):
    """Draws for a whole batch and hands out the part of one process.

    Process ``rank`` of ``n_ranks`` holds the elements ``rank``, ``rank + n_ranks``, ... of a batch
    of ``total``. With the same seed everywhere, n processes draw exactly what one would.

    Example:
        >>> import torch
        >>> from slotmesh.ops._noise import SharedGenerator
        >>> from slotmesh.ops.mesh import gaussian
        >>> one = gaussian(torch.zeros(4, 2), torch.Generator().manual_seed(0))
        >>> part = SharedGenerator("cpu", seed=0, rank=1, n_ranks=2, total=4)
        >>> bool((gaussian(torch.zeros(2, 2), part) == one[1::2]).all())
        True
    """

    def __new__(
        cls, device: torch.device | str, *, seed: int, rank: int, n_ranks: int, total: int
    ) -> "SharedGenerator":
        """A seeded generator on a device."""
        if not 0 <= rank < n_ranks:
            raise ValueError(f"SharedGenerator: rank is {rank}, expected 0 to {n_ranks - 1}.")
        self = cast(SharedGenerator, super().__new__(cls, device))  # pyright: ignore
        self.manual_seed(seed)
        self.rank, self.n_ranks, self.total = rank, n_ranks, total
        return self

    def __init__(
        self, device: torch.device | str, *, seed: int, rank: int, n_ranks: int, total: int
    ) -> None:
        self.rank: int
        self.n_ranks: int
        self.total: int

    def mine(self, drawn: Tensor) -> Tensor:
        """The elements of this process, of those of all ``(total, ...)``."""
        return drawn[self.rank :: self.n_ranks]


class StackedGenerator(Drawing):
    """Draws for several models at once: for each what a generator of its own would.

    What is asked for begins with the dimensions of ``shape``, which number the models.

    Args:
        device: Where to draw.
        seeds: One for each model, those of a row after one another.
        shape: Leading dimensions of what is asked for; default one, with as many as seeds.

    Example:
        >>> import torch
        >>> from slotmesh.ops._noise import StackedGenerator
        >>> from slotmesh.ops.mesh import gaussian
        >>> both = gaussian(torch.zeros(2, 4, 3), StackedGenerator("cpu", [5, 6]))
        >>> one = gaussian(torch.zeros(4, 3), torch.Generator().manual_seed(6))
        >>> bool((both[1] == one).all())
        True
    """

    def __init__(
        self,
        device: torch.device | str,
        seeds: Sequence[int],
        shape: tuple[int, ...] | None = None,
    ) -> None:
        self.shape = (len(seeds),) if shape is None else shape
        if not seeds or math.prod(self.shape) != len(seeds):
            raise ValueError(
                f"StackedGenerator: {len(seeds)} seeds came for a shape of {self.shape}, expected "
                "one for each of its elements, at least one."
            )
        self.parts = [torch.Generator(device) for _ in seeds]
        """The generators, such as a CUDA graph has to know them."""
        super().__init__(self.parts[0])
        self.seed(seeds)

    def seed(self, seeds: Sequence[int]) -> None:
        """Begin anew with these seeds."""
        for part, seed in zip(self.parts, seeds, strict=True):
            part.manual_seed(seed)
        self.asked.clear()

    def _draw(self, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        lead = len(self.shape)
        if tuple(shape[:lead]) != self.shape:
            raise ValueError(
                f"StackedGenerator: noise of shape {tuple(shape)} was asked for, expected one that "
                f"begins with {self.shape}, as the seeds do."
            )
        drawn = torch.empty(shape, dtype=dtype, device=self.generator.device)
        for row, part in zip(drawn.view(-1, *shape[lead:]), self.parts, strict=True):
            row.normal_(generator=part)
        return drawn
