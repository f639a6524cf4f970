"""Types for the few torch functions that have none."""

from typing import Any

import torch
from torch import Tensor

_torch: Any = torch

# Makes an operator that torch.compile and CUDA graphs take as a whole.
custom_op: Any = torch.library.custom_op


def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The common shape; RuntimeError where there is none."""
    return tuple(_torch.broadcast_shapes(*shapes))


def broadcasts_to(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Whether a tensor of this shape can be expanded to the wanted one."""
    try:
        return broadcast_shapes(shape, wanted) == tuple(wanted)
    except RuntimeError:
        return False


def solve(matrix: Tensor, right: Tensor) -> Tensor:
    """Solve (*batch, m, m) systems without the check for singular ones, which waits for the GPU."""
    return _torch.linalg.solve_ex(matrix, right.unsqueeze(-1))[0].squeeze(-1)
