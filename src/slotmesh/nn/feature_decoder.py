"""Decoder from slots to the features of every patch."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from slotmesh.nn.convolutional import check_resolution
from slotmesh.ops import checks
from slotmesh.ops.problem import compute_dtype, full_precision


class DecodedFeatures(NamedTuple):
    """What :class:`FeatureDecoder` returns."""

    features: Tensor
    """``(..., n, out_dim)``: the features of the slots, weighted by their masks."""
    masks: Tensor
    """``(..., m, rows, columns)``: the share of each slot in each patch; sums to 1 over slots."""


class FeatureDecoder(nn.Module):
    """Decodes each slot at each patch with an MLP, from the slot plus a learned position.

    The MLP returns a feature and a logit. The softmax of the logits over slots gives the masks,
    with which the features of the slots are weighted and summed. This is the MLP decoder of
    DINOSAUR (Seitzer et al., 2023).

    Because the first and the last layer are linear, the first is applied to slots and positions
    separately, and the last after the masks have mixed the slots. The result is the same up to
    rounding, and only the hidden layers in between, and the logits, are computed for every pair of
    slot and patch.

    Args:
        slot_dim: Size of a slot.
        out_dim: Size of a feature.
        grid: Rows and columns of the patches.
        hidden: Widths of the hidden layers, at least one.

    Example:
        >>> import torch
        >>> from slotmesh.nn import FeatureDecoder
        >>> decoder = FeatureDecoder(64, 384, grid=(16, 16), hidden=(128, 128))
        >>> decoded = decoder(torch.randn(2, 7, 64))
        >>> decoded.features.shape, decoded.masks.shape
        (torch.Size([2, 256, 384]), torch.Size([2, 7, 16, 16]))
    """

    def __init__(
        self,
        slot_dim: int,
        out_dim: int,
        grid: Sequence[int],
        hidden: Sequence[int] = (2048, 2048, 2048),
    ) -> None:
        super().__init__()
        slot_dim = checks.as_count("FeatureDecoder", "slot_dim", slot_dim, 1)
        out_dim = checks.as_count("FeatureDecoder", "out_dim", out_dim, 1)
        if len(hidden) == 0:
            raise ValueError("FeatureDecoder: hidden is empty, expected the width of a layer.")
        for width in hidden:
            checks.check_count("FeatureDecoder", "hidden", width, 1)
        self.grid = check_resolution("FeatureDecoder", grid)
        rows, columns = self.grid
        self.position = nn.Parameter(torch.randn(rows * columns, slot_dim) * slot_dim**-0.5)
        self.first = nn.Linear(slot_dim, hidden[0])
        between: list[nn.Module] = [nn.ReLU()]
        for width, wider in pairwise(hidden):
            between += [nn.Linear(width, wider), nn.ReLU()]
        self.between = nn.Sequential(*between)
        self.to_feature = nn.Linear(hidden[-1], out_dim)
        self.to_logit = nn.Linear(hidden[-1], 1)

    def forward(self, slots: Tensor) -> DecodedFeatures:
        """Slots ``(..., m, slot_dim)`` to the features and masks of all patches."""
        slot_dim = self.first.in_features
        checks.check_matrix("FeatureDecoder", "slots", slots, f"(..., slots m, {slot_dim})")
        if slots.shape[-1] != slot_dim:
            raise ValueError(
                f"FeatureDecoder: slots have shape {tuple(slots.shape)}, expected (..., m, "
                f"{slot_dim}). Make the decoder for slots of this size."
            )
        places = nn.functional.linear(self.position, self.first.weight)
        hidden = self.between(self.first(slots).unsqueeze(-2) + places)
        logits = self.to_logit(hidden).squeeze(-1)
        with full_precision(logits):
            shares = torch.softmax(logits.to(compute_dtype(logits)), -2)
        # Slots are mixed patch by patch: (..., n, 1, m) @ (..., n, m, hidden).
        mixed = (shares.to(hidden.dtype).mT.unsqueeze(-2) @ hidden.transpose(-3, -2)).squeeze(-2)
        # Autocast would leave the features in half precision.
        features = self.to_feature(mixed).to(slots.dtype)
        return DecodedFeatures(features, shares.unflatten(-1, self.grid))
