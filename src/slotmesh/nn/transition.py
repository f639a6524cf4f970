"""Transitions from the slots of one video frame to the initial slots of the next."""

from typing import NamedTuple, Self

import torch
from torch import Tensor, nn

from slotmesh.nn.noise import gaussian
from slotmesh.nn.part import Part
from slotmesh.ops import checks
from slotmesh.ops.problem import compute_dtype


class TransitionOutput(NamedTuple):
    """Initial slots of the next frame, and the term that the transition adds to the loss."""

    slots: Tensor
    """``(..., m, slot_dim)``."""
    kl: Tensor
    """``(...)``: divergence from the prior, summed over dimensions, averaged over slots; 0 if
    nothing is learned."""


class Transition(Part):
    """The identity, which the paper uses for all but two baselines.

    To write your own transition, subclass it, make parameters in ``build``, and return a
    :class:`TransitionOutput` from ``forward``. :class:`~slotmesh.models.VideoObjectDiscovery` calls
    :meth:`bind`.

    Example:
        >>> import torch
        >>> from slotmesh.nn import Transition
        >>> slots = torch.randn(2, 7, 64)
        >>> Transition()(slots).slots is slots
        True
    """

    def bind(self, *, slot_dim: int) -> Self:
        """Make the parameters for slots of this size, once."""
        self.claim()
        self.build(slot_dim)
        return self

    def build(self, slot_dim: int) -> None:
        """Make the parameters."""

    def forward(self, slots: Tensor, generator: torch.Generator | None = None) -> TransitionOutput:
        """From slots ``(..., m, slot_dim)`` to the initial slots of the next frame."""
        return TransitionOutput(slots, _nothing(slots))


class FixedNoise(Transition):
    """Adds Gaussian noise of a fixed deviation, which separates slots that became equal.

    Args:
        std: Standard deviation.

    Example:
        >>> import torch
        >>> from slotmesh.nn import FixedNoise
        >>> equal = torch.zeros(7, 64)
        >>> round(FixedNoise(0.1)(equal, torch.Generator().manual_seed(0)).slots.std().item(), 1)
        0.1
    """

    def __init__(self, std: float = 0.1) -> None:
        super().__init__()
        self.std = checks.as_real("FixedNoise", "std", std)

    def forward(self, slots: Tensor, generator: torch.Generator | None = None) -> TransitionOutput:
        """Add noise, in training and in evaluation: it breaks ties."""
        return TransitionOutput(slots + self.std * gaussian(slots, generator), _nothing(slots))


class LearnedNoise(Transition):
    r"""Draws slots from a Gaussian that a network predicts from those of the previous frame.

    The network predicts a shift of the mean and the logarithm of the variance, both in units of
    the prior, a Gaussian around the present slot with deviation ``prior_std``. The divergence from
    that prior is the one between two full Gaussians, means included.

    Args:
        hidden_dim: Width of the hidden layer; default twice the size of a slot.
        prior_std: Standard deviation of the prior.

    Example:
        >>> import torch
        >>> from slotmesh.nn import LearnedNoise
        >>> out = LearnedNoise().bind(slot_dim=64)(torch.randn(2, 7, 64))
        >>> out.slots.shape, out.kl.shape
        (torch.Size([2, 7, 64]), torch.Size([2]))
    """

    def __init__(self, *, hidden_dim: int | None = None, prior_std: float = 0.1) -> None:
        super().__init__()
        if hidden_dim is not None:
            hidden_dim = checks.as_count("LearnedNoise", "hidden_dim", hidden_dim, 1)
        prior_std = checks.as_real("LearnedNoise", "prior_std", prior_std, positive=True)
        self.hidden_dim = hidden_dim
        self.prior_std = prior_std

    def build(self, slot_dim: int) -> None:
        """Make the network: LayerNorm and two layers, as in the paper."""
        if self.hidden_dim is None:
            self.hidden_dim = 2 * slot_dim
        self.predict = nn.Sequential(
            nn.LayerNorm(slot_dim),
            nn.Linear(slot_dim, self.hidden_dim),
            nn.ReLU(),
            nn.Linear(self.hidden_dim, 2 * slot_dim),
        )

    def forward(self, slots: Tensor, generator: torch.Generator | None = None) -> TransitionOutput:
        """A draw from the predicted Gaussian, in training and in evaluation."""
        if not self.bound:
            raise self.unbound()
        # In units of the prior, so that predicting zero means the prior itself.
        predicted = self.predict(slots).to(compute_dtype(slots))
        shift, log_variance = predicted.chunk(2, -1)
        kl = 0.5 * (log_variance.exp() + shift.square() - 1.0 - log_variance)
        draw = shift + (0.5 * log_variance).exp() * gaussian(shift, generator)
        moved = (slots + self.prior_std * draw).to(slots.dtype)
        return TransitionOutput(moved, kl.sum(-1).mean(-1))


def _nothing(slots: Tensor) -> Tensor:
    """A divergence of 0 per batch element."""
    return slots.new_zeros(slots.shape[:-2], dtype=compute_dtype(slots))
