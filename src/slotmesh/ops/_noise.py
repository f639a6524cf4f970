"""Randomness of a batch that several processes share."""

from typing import cast

import torch
from torch import Tensor


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
