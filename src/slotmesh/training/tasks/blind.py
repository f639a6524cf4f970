"""Blind baselines: models that ignore their input, which every trained model has to outperform.

They are evaluated by the same code on the same samples. FG-ARI needs them most: a fixed grid
of regions scores far above 0.
"""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn


class Constant(nn.Module):
    """The same prediction for every input.

    Args:
        **values: Outputs by name, each without the batch dimension.
    """

    def __init__(self, **values: Tensor) -> None:
        super().__init__()
        for name, value in values.items():
            self.register_buffer(name, value)

    def forward(self, inputs: Tensor, **options: Any) -> SimpleNamespace:
        """One of each value for each of ``inputs``."""
        return SimpleNamespace(
            **{k: v.expand(len(inputs), *v.shape) for k, v in self.named_buffers()}
        )


def grid_masks(n_slots: int, height: int, width: int) -> Tensor:
    """Divide the picture into regions of about equal size, ``(n_slots, height, width)``.

    Example:
        >>> from slotmesh.training.tasks.blind import grid_masks
        >>> grid_masks(6, 64, 64).sum((1, 2)).int().tolist()
        [704, 672, 672, 704, 672, 672]
    """
    rows = max(r for r in range(1, n_slots + 1) if r * r <= n_slots)
    # The last row takes the remainder.
    lengths = [n_slots // rows] * (rows - 1)
    lengths.append(n_slots - sum(lengths))
    y = torch.arange(height) * rows // height
    x = torch.arange(width)
    starts = torch.tensor([sum(lengths[:r]) for r in range(rows)])
    across = torch.tensor(lengths)
    region = starts[y][:, None] + x[None] * across[y][:, None] // width
    return nn.functional.one_hot(region, n_slots).movedim(-1, 0).float()
