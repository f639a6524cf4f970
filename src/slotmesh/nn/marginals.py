"""Learned marginals: the mass of each element in the transport."""

from typing import Any

import torch
from torch import Tensor, nn

from slotmesh.ops.logit import logits, use_logits
from slotmesh.ops.problem import compute_dtype


class MarginalHead(nn.Module):
    r"""Mass of each element, :math:`\text{total} \cdot \mathrm{softmax}(h(x))` (paper, appendix A).

    Args:
        dim: Size of an element.
        hidden_dim: Width of the hidden layer. A linear head cannot tell an empty element from a
            symmetric distribution of full ones, so there is always a hidden layer.

    Example:
        >>> import torch
        >>> from slotmesh.nn import MarginalHead
        >>> head = MarginalHead(8, 16)
        >>> round(head(torch.randn(5, 8), total=3.0).sum().item(), 4)
        3.0
    """

    def __init__(self, dim: int, hidden_dim: int) -> None:
        super().__init__()
        # A bias on the logit would cancel in the softmax.
        self.logit = nn.Sequential(
            nn.Linear(dim, hidden_dim), nn.ReLU(), nn.Linear(hidden_dim, 1, bias=False)
        )

    def forward(
        self, elements: Tensor, total: Tensor | float, mask: Tensor | None = None
    ) -> Tensor:
        """``(..., k, dim)`` elements, total mass (a number or ``(..., 1)``) to ``(..., k)``."""
        logit = self._logit(elements)
        logit = logit.to(compute_dtype(logit))
        if mask is not None:
            logit = logit.masked_fill(~mask, torch.finfo(logit.dtype).min)
        share = torch.softmax(logit, -1)
        return total * (share if mask is None else share * mask)

    def _logit(self, elements: Tensor) -> Tensor:
        """``(..., k, dim)`` to ``(..., k)``."""
        # Attributes, as torch.func.functional_call puts plain tensors in place of parameters.
        layers: Any = self.logit
        first, _, last = layers
        weight = first.weight
        if use_logits(elements, weight):
            bias, once = first.bias, last.weight.squeeze(0)
            return logits(elements, weight, bias, once)
        return self.logit(elements).squeeze(-1)
