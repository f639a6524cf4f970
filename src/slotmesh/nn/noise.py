"""Slot initialisers, and the sources of random numbers that they and MESH draw from.

The sources also work in compiled code and over several processes.
"""

import math
from typing import Any, Self, cast

import torch
from torch import Tensor, nn

from slotmesh.nn.part import Part


class SlotInitializer(Part):
    """Base class of slot initialisers. ``learned`` tells whether it has parameters."""

    learned: bool = False

    def bind(self, *, n_slots: int, slot_dim: int) -> Self:
        """Make the parameters for these sizes, once."""
        self.claim()
        self.build(n_slots, slot_dim)
        return self

    def build(self, n_slots: int, slot_dim: int) -> None:
        """Make the parameters."""

    def forward(
        self, batch: tuple[int, ...], n_slots: int, generator: torch.Generator | None = None
    ) -> Tensor:
        """Slots ``(*batch, n_slots, slot_dim)``."""
        raise TypeError(
            f"{type(self).__name__} has no forward(batch, n_slots, generator): define one that "
            "returns the first slots."
        )


class LearnedGaussian(SlotInitializer):
    """Independent draws from a Gaussian with learned mean and deviation, as in slot attention.

    Example:
        >>> from slotmesh.nn import LearnedGaussian
        >>> LearnedGaussian().bind(n_slots=7, slot_dim=64)((2,), 7).shape
        torch.Size([2, 7, 64])
    """

    learned = True

    def build(self, n_slots: int, slot_dim: int) -> None:
        """Mean and log deviation, Xavier-uniform as in the authors' code."""
        self.mean = nn.Parameter(nn.init.xavier_uniform_(torch.empty(1, slot_dim)))
        self.log_std = nn.Parameter(nn.init.xavier_uniform_(torch.empty(1, slot_dim)))

    def forward(
        self, batch: tuple[int, ...], n_slots: int, generator: torch.Generator | None = None
    ) -> Tensor:
        """Draw ``(*batch, n_slots, slot_dim)``."""
        if not self.bound:
            raise self.unbound()
        mean, log_std = _over(self.mean, batch), _over(self.log_std, batch)
        like = mean.expand(*batch, n_slots, -1)
        return mean + log_std.exp() * gaussian(like, generator)


class FixedGaussian(LearnedGaussian):
    """Independent draws from a Gaussian whose mean and deviation are random and not learned.

    Use it with implicit differentiation, where slots at the fixed point do not depend on the
    initial slots.

    Example:
        >>> from slotmesh.nn import FixedGaussian
        >>> sum(p.numel() for p in FixedGaussian().bind(n_slots=7, slot_dim=64).parameters())
        0
    """

    learned = False

    def build(self, n_slots: int, slot_dim: int) -> None:
        """Draw mean and deviation as buffers: saved with the module, not trained."""
        super().build(n_slots, slot_dim)
        for name in ("mean", "log_std"):
            value = getattr(self, name).detach()
            delattr(self, name)
            self.register_buffer(name, value)


class LearnedSlots(SlotInitializer):
    """One learned vector per slot, without randomness; a call cannot ask for more slots.

    Example:
        >>> from slotmesh.nn import LearnedSlots
        >>> LearnedSlots().bind(n_slots=7, slot_dim=64)((2,), 5).shape
        torch.Size([2, 5, 64])
    """

    learned = True

    def build(self, n_slots: int, slot_dim: int) -> None:
        """A matrix of slots, Xavier-uniform."""
        self.slots = nn.Parameter(nn.init.xavier_uniform_(torch.empty(n_slots, slot_dim)))

    def forward(
        self, batch: tuple[int, ...], n_slots: int, generator: torch.Generator | None = None
    ) -> Tensor:
        """The first ``n_slots`` vectors, for each batch element."""
        if not self.bound:
            raise self.unbound()
        learned = self.slots.shape[-2]
        if n_slots > learned:
            raise ValueError(
                f"LearnedSlots: n_slots is {n_slots}, expected at most the {learned} slots that "
                "were learned. Build SlotAttention with more n_slots, or use another initialiser."
            )
        return _over(self.slots[..., :n_slots, :], batch).expand(*batch, -1, -1)


class SharedSlot(SlotInitializer):
    """One learned vector for all slots; useful only with a transport that breaks ties.

    Example:
        >>> from slotmesh.nn import SharedSlot
        >>> slots = SharedSlot().bind(n_slots=7, slot_dim=64)((2,), 7)
        >>> bool((slots == slots[0, 0]).all())
        True
    """

    learned = True

    def build(self, n_slots: int, slot_dim: int) -> None:
        """One vector, Xavier-uniform."""
        self.slot = nn.Parameter(nn.init.xavier_uniform_(torch.empty(1, slot_dim)))

    def forward(
        self, batch: tuple[int, ...], n_slots: int, generator: torch.Generator | None = None
    ) -> Tensor:
        """The same vector, ``(*batch, n_slots, slot_dim)``."""
        if not self.bound:
            raise self.unbound()
        return _over(self.slot, batch).expand(*batch, n_slots, -1)


def _over(value: Tensor, batch: tuple[int, ...]) -> Tensor:
    """A parameter ``(k, slot_dim)``, or ``(*lead, k, slot_dim)`` with the batch's dimensions.

    Stacked modules have parameters with leading dimensions: those that the batch begins with.
    """
    lead = value.ndim - 2
    if lead == 0:
        return value
    if batch[:lead] != value.shape[:lead]:
        raise ValueError(
            f"the batch has shape {tuple(batch)}, expected one that begins with "
            f"{tuple(value.shape[:lead])}, the number of stacked modules."
        )
    return value[(slice(None),) * lead + (None,) * (len(batch) - lead)]


# ---- random numbers ----


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
