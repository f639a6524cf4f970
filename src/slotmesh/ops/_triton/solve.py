"""From tensors to the kernels of the exact solvers."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from slotmesh.ops._triton import assign as _assign
from slotmesh.ops._triton import emd as _emd

_kernels: Any = (_assign, _emd)


@dataclass(frozen=True)
class Case:
    """What the transport kernel is compiled for."""

    M: int  # slots, padded to a power of two
    N: int  # inputs in a block of single precision
    block: int  # inputs in a block of double precision
    strip: int  # inputs of one slot at a time
    warps: int
    temperatures: int  # of the smoothed problem that the potentials start from
    steps: int  # of Newton's method at each temperature


# Numbers of a block that one thread holds, in single precision, the most warps, and the loads that
# are under way at once.
NUMBERS, WARPS, STAGES = 16, 8, 2
# Four times colder each: fewer save time where costs are even, and cost some where they are not.
TEMPERATURES, STEPS = 8, 3


def choose(m: int, n: int) -> Case:
    """Blocks that fit into registers."""
    rows, width = max(2, _power(m)), _power(n)
    warps = max(1, rows * rows // 256, rows * width // (32 * NUMBERS))
    warps = min(WARPS, warps)
    columns = max(16 * warps, min(width, 32 * NUMBERS * warps // rows))
    strip = max(16, min(width, 256 * warps))
    return Case(rows, columns, max(16, columns // 2), strip, warps, TEMPERATURES, STEPS)


def emd(
    cost: Tensor, a: Tensor, b: Tensor, plan: Tensor, u: Tensor, v: Tensor, steps: Tensor, most: int
) -> None:
    """Run the transport kernel on contiguous tensors.

    Args:
        cost: ``(batch, m, n)``, any floating dtype.
        a: float64 masses ``(batch, m)``.
        b: float64 masses ``(batch, n)`` of the same total.
        plan: float64 ``(batch, m, n)``, filled like the rest.
        u: float64 ``(batch, m)``.
        v: float64 ``(batch, n)``.
        steps: int32 ``(batch,)``, the number of paths, negative where ``most`` did not suffice.
        most: Paths before giving up.
    """
    batch, m, n = cost.shape
    if batch == 0:
        return
    case = choose(m, n)
    own = torch.empty((batch, n), dtype=torch.int32, device=cost.device)
    scratch = torch.empty((batch, case.M, case.M), dtype=torch.float32, device=cost.device)
    with _on(cost.device):
        _kernels[1].emd_kernel[(batch,)](
            cost, a, b, plan, own, scratch, u, v, steps, m, n, most, case,
            num_warps=case.warps, num_stages=STAGES,
        )  # fmt: skip


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
