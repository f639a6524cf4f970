"""Normalised root mean squared error between sets."""

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from slotmesh.ops import assign, checks, pairwise_cost


def matched_squared_error(predicted: Tensor, target: Tensor) -> Tensor:
    """Mean squared error of the best one-to-one match.

    Args:
        predicted: ``(..., n, dim)``.
        target: ``(..., n, dim)``.

    Returns:
        float64 ``(...)``; not finite if a prediction is not.

    Example:
        >>> import torch
        >>> from slotmesh.metrics import matched_squared_error
        >>> matched_squared_error(torch.tensor([[0.0], [3.0]]), torch.tensor([[3.0], [1.0]]))
        tensor(0.5000, dtype=torch.float64)
    """
    op = "matched_squared_error"
    for name, value in (("predicted", predicted), ("target", target)):
        checks.check_matrix(op, name, value, "(..., n, dim)")
    if predicted.shape != target.shape or predicted.device != target.device:
        raise ValueError(
            f"{op}: predicted has shape {tuple(predicted.shape)} on {predicted.device}, target "
            f"{tuple(target.shape)} on {target.device}, expected the same (..., n, dim) on one "
            "device. Pad the smaller set."
        )
    found, wanted = predicted.detach().double(), target.detach().double()
    cost = pairwise_cost(found, wanted, "sqeuclidean")
    # If a prediction has diverged, any match will do: the error is not finite anyway.
    partner = assign(torch.where(cost.isfinite(), cost, 0.0))
    matched = wanted.gather(-2, partner.unsqueeze(-1).expand_as(found))
    return (found - matched).square().mean((-2, -1))


def normalised_rmse(predicted: Tensor, target: Tensor, *, sigma: float) -> Tensor:
    """Root mean squared error over all sets, divided by the targets' standard deviation.

    Predictions are matched with targets one to one. Predicting the mean scores 1.

    Args:
        predicted: ``(..., n, dim)``.
        target: ``(..., n, dim)``.
        sigma: Standard deviation of the targets.

    Returns:
        float64, a scalar.

    Example:
        >>> import torch
        >>> from slotmesh.metrics import normalised_rmse
        >>> normalised_rmse(torch.tensor([[0.0], [3.0]]), torch.tensor([[3.0], [1.0]]), sigma=0.5)
        tensor(1.4142, dtype=torch.float64)
    """
    sigma = checks.as_real("normalised_rmse", "sigma", sigma, positive=True)
    return matched_squared_error(predicted, target).mean().sqrt() / sigma


class NormalisedRMSE(Metric):
    """:func:`normalised_rmse` over a dataset: squared errors are pooled before the root.

    No set is undefined; if a prediction is not finite, neither is the result.

    Args:
        sigma: Standard deviation of the targets.
        **kwargs: Arguments of :class:`torchmetrics.Metric`.

    Example:
        >>> import torch
        >>> from slotmesh.metrics import NormalisedRMSE
        >>> metric = NormalisedRMSE(sigma=1.0)
        >>> metric.update(torch.zeros(8, 5, 32), torch.ones(8, 5, 32))
        >>> metric.compute()
        tensor(1., dtype=torch.float64)
    """

    is_differentiable = False
    higher_is_better = False
    full_state_update = False
    rmse_total: Tensor
    rmse_numbers: Tensor

    def __init__(self, sigma: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.sigma = checks.as_real("NormalisedRMSE", "sigma", sigma, positive=True)
        zero = torch.zeros((), dtype=torch.float64)
        self.add_state("rmse_total", zero, dist_reduce_fx="sum")
        self.add_state("rmse_numbers", zero.long(), dist_reduce_fx="sum")

    def per_image(self, predicted: Tensor, target: Tensor) -> Tensor:
        """The value of each set, float64 ``(...)``; the state does not change.

        For sets of one size, the value of the dataset is the root of the mean of their squares.
        """
        return matched_squared_error(predicted, target).sqrt() / self.sigma

    def update(self, predicted: Tensor, target: Tensor) -> None:
        """Add sets: ``(..., n, dim)``."""
        errors = matched_squared_error(predicted, target)
        numbers = predicted.shape[-2] * predicted.shape[-1]
        self.rmse_total = self.rmse_total + errors.sum() * numbers
        self.rmse_numbers = self.rmse_numbers + predicted.numel()

    def compute(self) -> Tensor:
        """The value of all sets of all processes, float64."""
        return (self.rmse_total / self.rmse_numbers).sqrt() / self.sigma
