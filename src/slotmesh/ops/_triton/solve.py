"""From tensors to the kernels of the exact solvers."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from slotmesh.ops._triton import assign as _assign

_kernels: Any = (_assign,)


def assign(cost: Tensor, slots: Tensor, inputs: Tensor, maximize: bool, partner: Tensor) -> None:
    """Run the assignment kernel on contiguous tensors; ``partner`` (batch, m) is filled."""
    batch, m, n = cost.shape
    if batch == 0:
        return
    with _on(cost.device):
        _kernels[0].assign_kernel[(batch,)](
            cost, slots.view(torch.uint8), inputs.view(torch.uint8), partner, m, n,
            maximize, max(2, _power(max(m, n))), num_warps=1,
        )  # fmt: skip


def _power(x: int) -> int:
    return 1 << max(0, x - 1).bit_length()


def _on(device: torch.device) -> AbstractContextManager[object]:
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
