"""Sources of random numbers, from which slots and MESH's noise are drawn.

They also work in compiled code and over several processes.
"""

import math
from typing import Any, cast

import torch
from torch import Tensor


def gaussian(like: Tensor, source: "torch.Generator | Drawing | Drawn | Seeded | None") -> Tensor:
    """Draw standard normal numbers of the shape, dtype and device of ``like``.

    Args:
        like: Any tensor; its values do not matter.
        source: A generator, one of the sources below, or None for torch's own generator.

    Example:
        >>> import torch
        >>> from slotmesh.nn.noise import gaussian
        >>> gaussian(torch.zeros(2, 3), torch.Generator().manual_seed(0)).shape
        torch.Size([2, 3])
    """
    if source is None:
        return torch.randn_like(like)
    if isinstance(source, (Drawn, Drawing, Seeded)):
        return source.take(like)
    if isinstance(source, ForEachGenerator):
        one = torch.randn(like.shape[-2:], dtype=like.dtype, device=like.device, generator=source)
        return one.expand(like.shape)
    shared = isinstance(source, SharedGenerator)
    shape = (source.total, *like.shape[1:]) if shared else like.shape
    drawn = torch.randn(shape, dtype=like.dtype, device=like.device, generator=source)
    return source.mine(drawn) if shared else drawn


class Drawn:
    """Returns numbers drawn earlier, in the same order, for compiled and captured code.

    Args:
        values: Tensors of the shapes that will be requested.
    """

    def __init__(self, values: list[Tensor]) -> None:
        self.values = values
        self.taken = 0

    def take(self, like: Tensor) -> Tensor:
        """The next numbers, which have the shape of ``like``."""
        value = self.values[self.taken]
        self.taken += 1
        return value


class Drawing:
    """Draws numbers, and records the requested shapes.

    Args:
        generator: Source of the numbers.
    """

    def __init__(self, generator: torch.Generator) -> None:
        self.generator = generator
        self.asked: list[tuple[torch.Size, torch.dtype]] = []

    def take(self, like: Tensor) -> Tensor:
        """New numbers of the shape of ``like``."""
        self.asked.append((like.shape, like.dtype))
        return self._draw(like.shape, like.dtype)

    def again(self) -> list[Tensor]:
        """New numbers of all recorded shapes, in that order."""
        return [self._draw(shape, dtype) for shape, dtype in self.asked]

    def _draw(self, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        source = self.generator
        return torch.randn(shape, dtype=dtype, device=source.device, generator=source)


class Seeded:
    """Draws numbers that are a function of the seed alone, also inside compiled code.

    Args:
        seed: An integer, or a tensor ``()`` of an integer dtype, with which compiled code is not
            compiled again for every seed.
        for_each: Draw the same for each batch element, as :class:`ForEachGenerator` does.

    Example:
        >>> import torch
        >>> from slotmesh.nn.noise import Seeded, gaussian
        >>> x = torch.empty(2, 3)
        >>> torch.equal(gaussian(x, Seeded(5)), gaussian(x, Seeded(torch.tensor(5))))
        True
    """

    def __init__(self, seed: int | Tensor, *, for_each: bool = False) -> None:
        self.seed = seed
        self.for_each = for_each
        self.taken = 0

    def take(self, like: Tensor) -> Tensor:
        """The next numbers, of the shape, dtype and device of ``like``."""
        self.taken += 1
        seed = torch.as_tensor(self.seed, dtype=torch.int64, device=like.device)
        stream = _mixed(_mixed(seed) + self.taken)
        shape = like.shape[-2:] if self.for_each else like.shape
        count = math.prod(shape)
        bits = _mixed(stream + torch.arange(count, device=like.device))
        # Two numbers of 24 bits, which float32 holds exactly, for Box and Muller's method.
        first, second = ((bits >> 40) & _BITS) + 1, (bits >> 8) & _BITS
        radius = (-2.0 * (first.to(torch.float32) / (_BITS + 1)).log()).sqrt()
        angle = second.to(torch.float32) * (2.0 * math.pi / (_BITS + 1))
        drawn = (radius * angle.cos()).to(like.dtype).reshape(shape)
        return drawn.expand(like.shape) if self.for_each else drawn


_BITS = 2**24 - 1


def _mixed(x: Tensor) -> Tensor:
    """Scramble 64-bit integers: the finaliser of SplitMix64, in signed arithmetic."""
    x = x * -7046029254386353131
    x = (x ^ ((x >> 30) & (2**34 - 1))) * -4658895280553007687
    x = (x ^ ((x >> 27) & (2**37 - 1))) * -7723592293110705685
    return x ^ ((x >> 31) & (2**33 - 1))


class ForEachGenerator(torch.Generator):
    """Draws for one batch element, and gives all others the same numbers.

    The numbers of a batch element then depend only on the seed, not on its place in the batch.

    Example:
        >>> import torch
        >>> from slotmesh.nn.noise import ForEachGenerator, gaussian
        >>> three = gaussian(torch.zeros(3, 4, 2), ForEachGenerator("cpu").manual_seed(0))
        >>> alone = gaussian(torch.zeros(1, 4, 2), torch.Generator().manual_seed(0))
        >>> bool((three == alone).all())
        True
    """


class SharedGenerator(torch.Generator):
    """Draws for a whole batch and hands out the part of one process.

    Process ``rank`` of ``n_ranks`` holds the elements ``rank``, ``rank + n_ranks``, ... of a batch
    of ``total``. With the same seed everywhere, n processes draw exactly what one would.

    Example:
        >>> import torch
        >>> from slotmesh.nn.noise import SharedGenerator, gaussian
        >>> one = gaussian(torch.zeros(4, 2), torch.Generator().manual_seed(0))
        >>> part = SharedGenerator("cpu", seed=0, rank=1, n_ranks=2, total=4)
        >>> bool((gaussian(torch.zeros(2, 2), part) == one[1::2]).all())
        True
    """

    rank: int
    n_ranks: int
    total: int

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

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Everything has been set by ``__new__``."""

    def mine(self, drawn: Tensor) -> Tensor:
        """The elements of this process, out of those of all processes ``(total, ...)``."""
        return drawn[self.rank :: self.n_ranks]


SOURCES = (torch.Generator, Drawn, Drawing, Seeded)
"""The classes that :func:`gaussian` draws from."""
