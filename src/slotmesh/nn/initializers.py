"""Slot initialisers: what the slots are before slot attention."""

from typing import Self

import torch
from torch import Tensor, nn

from slotmesh.nn.noise import gaussian
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
