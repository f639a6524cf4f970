"""The Hungarian loss: predictions against targets, matched one to one."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from slotmesh.ops import assign

_ERRORS: dict[str, Callable[[Tensor], Tensor]] = {
    "squared": torch.square,
    # Huber's with threshold 1, on the difference itself.
    "smooth_l1": lambda d: torch.where(d.abs() < 1, 0.5 * d.square(), d.abs() - 0.5),
}


class Match(NamedTuple):
    """The best one-to-one match of predictions and targets."""

    cost: Tensor
    """``(...)``: mean error over pairs and dimensions, with its gradient."""
    partner: Tensor
    """int64 ``(..., k)``: the target of each prediction."""


def match(
    predictions: Tensor, targets: Tensor, error: Literal["squared", "smooth_l1"] = "squared"
) -> Match:
    """Match predictions ``(..., k, dim)`` to targets ``(..., k, dim)`` at the least total error.

    Example:
        >>> import torch
        >>> from slotmesh.training.tasks.matching import match
        >>> x = torch.arange(6.0).view(3, 2)
        >>> found = match(x, x.flip(0))
        >>> found.partner.tolist(), found.cost.item()
        ([2, 1, 0], 0.0)
    """
    of = _ERRORS[error]
    with torch.no_grad():
        pairs = of(predictions.unsqueeze(-2) - targets.unsqueeze(-3)).mean(-1)
    # On a GPU, costs are not checked; those that are not finite have no match, -1.
    partner = assign(pairs).clamp(min=0)
    matched = targets.gather(-2, partner.unsqueeze(-1).expand_as(predictions))
    return Match(of(predictions - matched).mean((-2, -1)), partner)
