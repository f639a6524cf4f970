"""Mean over the images of a dataset, whose values may be undefined."""

import math
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

# Values are rounded to this grid, by at most 1.2e-10: sums of up to two million of them are exact
# in float64, and so do not depend on batches, order or the number of processes.
_GRID = 2.0**32


class MeanOverImages(Metric):
    """Mean of one value per image; NaN is left out, and counted.

    Args:
        state: Prefix of the states. Metrics that sum different things need different names: a
            ``MetricCollection`` treats equal states as the same metric.
        undefined: What an undefined image counts as in the mean; NaN leaves it out.
        **kwargs: Arguments of :class:`torchmetrics.Metric`.
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False
    n_undefined: Tensor | None
    """Number of undefined images of all processes, as of the last ``compute()``; None before."""

    def __init__(self, state: str, undefined: float = float("nan"), **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._state = state
        self._undefined = undefined
        self.n_undefined = None
        zero = torch.zeros((), dtype=torch.float64)
        self.add_state(f"{state}_total", zero, dist_reduce_fx="sum")
        self.add_state(f"{state}_defined", zero.long(), dist_reduce_fx="sum")
        self.add_state(f"{state}_undefined", zero.long(), dist_reduce_fx="sum")

    def add(self, values: Tensor) -> None:
        """Add these values, NaN where undefined."""
        defined = ~values.isnan()
        kept = torch.where(defined, (values.double() * _GRID).round() / _GRID, 0.0)
        for name, amount in (("total", kept), ("defined", defined), ("undefined", ~defined)):
            key = f"{self._state}_{name}"
            setattr(self, key, getattr(self, key) + amount.sum())

    def compute(self) -> Tensor:
        """The mean over all images of all processes, float64; NaN if none is defined."""
        total, defined, undefined = (
            getattr(self, f"{self._state}_{name}") for name in ("total", "defined", "undefined")
        )
        # States are local again after compute: keep the reduced number here.
        self.n_undefined = undefined.clone()
        if not math.isnan(self._undefined):
            total, defined = total + self._undefined * undefined, defined + undefined
        return total / defined

    def reset(self) -> None:
        """Forget all images."""
        super().reset()
        self.n_undefined = None
