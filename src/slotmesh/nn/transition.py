"""From the slots of one video frame to the first slots of the next."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from slotmesh.ops import _checks as checks
from slotmesh.ops.mesh import gaussian


class TransitionOutput(NamedTuple):
    """First slots of the next frame, and what the transition adds to the loss."""

    slots: Tensor
    """``(..., m, slot_dim)``."""
    kl: Tensor
    """``(...)``: divergence from the prior, summed over dimensions, averaged over slots; 0 where
    nothing is learned."""


class Transition(nn.Module):
    """Slots are passed on as they are: the paper's choice for all but two baselines.

    Example:
        >>> import torch
        >>> from slotmesh.nn import Transition
        >>> slots = torch.randn(2, 7, 64)
        >>> Transition()(slots).slots is slots
        True
    """

    def forward(self, slots: Tensor, generator: torch.Generator | None = None) -> TransitionOutput:
        """``(..., m, slot_dim)`` to the first slots of the next frame."""
        return TransitionOutput(slots, slots.new_zeros(slots.shape[:-2]))


class FixedNoise(Transition):
    """Adds Gaussian noise of a fixed deviation, which tells slots apart that became equal.

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
        checks.check_real("FixedNoise", "std", std)
        self.std = std

    def forward(self, slots: Tensor, generator: torch.Generator | None = None) -> TransitionOutput:
        """Noise in training and in evaluation: it is what breaks ties."""
        kl = slots.new_zeros(slots.shape[:-2])
        return TransitionOutput(slots + self.std * gaussian(slots, generator), kl)

    def extra_repr(self) -> str:
        """The deviation."""
        return f"std={self.std}"


class LearnedNoise(Transition):
    r"""Draws the next slots from a Gaussian that a network predicts from the last ones.

    The network predicts a change of the mean and the logarithm of the variance, both in units of
    the prior "the slot stays where it is, give or take ``prior_std``". The divergence from that
    prior is the one between two full Gaussians, means included.

    Args:
        slot_dim: Size of a slot.
        hidden_dim: Width of the hidden layer; default twice ``slot_dim``.
        prior_std: Standard deviation of the prior.

    Example:
        >>> import torch
        >>> from slotmesh.nn import LearnedNoise
        >>> out = LearnedNoise(64)(torch.randn(2, 7, 64))
        >>> out.slots.shape, out.kl.shape
        (torch.Size([2, 7, 64]), torch.Size([2]))
    """

    def __init__(
        self, slot_dim: int, hidden_dim: int | None = None, prior_std: float = 0.1
    ) -> None:
        super().__init__()
        hidden_dim = 2 * slot_dim if hidden_dim is None else hidden_dim
        checks.check_count("LearnedNoise", "slot_dim", slot_dim, 1)
        checks.check_count("LearnedNoise", "hidden_dim", hidden_dim, 1)
        checks.check_real("LearnedNoise", "prior_std", prior_std, positive=True)
        self.prior_std = prior_std
        self.predict = nn.Sequential(
            nn.LayerNorm(slot_dim),
            nn.Linear(slot_dim, hidden_dim),
            nn.ReLU(),
            nn.Linear(hidden_dim, 2 * slot_dim),
        )

    def forward(self, slots: Tensor, generator: torch.Generator | None = None) -> TransitionOutput:
        """A draw from the predicted Gaussian, in training and in evaluation."""
        # The network speaks in units of the prior, so that its zero is the prior itself.
        shift, log_variance = self.predict(slots).chunk(2, -1)
        kl = 0.5 * (log_variance.exp() + shift.square() - 1.0 - log_variance)
        draw = shift + (0.5 * log_variance).exp() * gaussian(shift, generator)
        return TransitionOutput(slots + self.prior_std * draw, kl.sum(-1).mean(-1))

    def extra_repr(self) -> str:
        """The prior."""
        return f"prior_std={self.prior_std}"
