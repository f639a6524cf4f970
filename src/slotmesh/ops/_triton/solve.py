"""Launches of the exact solvers."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from slotmesh.ops._triton import assign as _assign
from slotmesh.ops._triton import emd as _emd
from slotmesh.ops._triton.launch import run_on

_kernels: Any = (_assign, _emd)
_torch: Any = torch


@dataclass(frozen=True)
class EmdCase:
    """The sizes and options that the transport kernel is compiled for."""

    M: int  # slots, padded to a power of two
    N: int  # inputs in a block of single precision
    block: int  # inputs in a block of double precision
    strip: int  # inputs of one slot at a time
    warps: int
    temperatures: int  # of the smoothed problem that the potentials start from


# Numbers of a block that one thread holds, in single precision, the most warps, and the loads that
# are under way at once.
NUMBERS, WARPS, STAGES = 16, 8, 2
# With few slots a thread has registers for twice as many: a third faster for 6 x 4096 on an H200,
# and a sixth slower for 10 x 1024.
WIDE_SLOTS, WIDE_NUMBERS = 8, 32
# Such blocks take 72 to 96 KiB of shared memory for costs in single precision.
WIDE_MEMORY = 96 * 1024
# With more there are hardly fewer paths to find; with one there are a thousand and more.
TEMPERATURES = 6


def choose(m: int, n: int, wide: bool) -> EmdCase:
    """Blocks that fit into registers; ``wide`` allows the larger ones for few slots."""
    rows, width = max(2, _power(m)), _power(n)
    numbers = NUMBERS
    # Not if there is only one block: more threads are then better.
    if wide and rows <= WIDE_SLOTS and rows * width >= 32 * WIDE_NUMBERS * WARPS:
        numbers = WIDE_NUMBERS
    warps = max(1, rows * rows // 256, rows * width // (32 * numbers))
    warps = min(WARPS, warps)
    columns = max(16 * warps, min(width, 32 * numbers * warps // rows))
    strip = max(16, min(width, 256 * warps))
    return EmdCase(rows, columns, max(16, columns // 2), strip, warps, TEMPERATURES)


@lru_cache
def _memory(device: torch.device) -> int:
    """Bytes of shared memory of a processor."""
    if device.type != "cuda":
        return 0
    return _torch.cuda.get_device_properties(device).shared_memory_per_multiprocessor


def emd(
    cost: Tensor,
    a: Tensor,
    b: Tensor,
    slot_mask: Tensor | None,
    input_mask: Tensor | None,
    outputs: tuple[Tensor, ...],
    most: int,
) -> None:
    """Run the transport kernel on contiguous tensors.

    Args:
        cost: ``(batch, m, n)``, any floating dtype; padding may hold anything.
        a: Masses ``(batch, m)``, 0 for padding.
        b: Masses ``(batch, n)``, 0 for padding; rescaled to the total of ``a``.
        slot_mask: boolean ``(batch, m)``.
        input_mask: boolean ``(batch, n)``.
        outputs: float64 plan ``(batch, m, n)``; u ``(batch, m)`` and v ``(batch, n)``; int32
            ``(batch,)``, the number of paths, negative where ``most`` did not suffice; marginal
            error ``(batch,)``.
        most: Paths before giving up.
    """
    batch, m, n = cost.shape
    if batch == 0:
        return
    case = choose(m, n, cost.element_size() <= 4 and _memory(cost.device) >= WIDE_MEMORY)
    own = torch.empty((batch, n), dtype=torch.int32, device=cost.device)
    even = torch.empty((batch, n), dtype=torch.float64, device=cost.device)
    scratch = torch.empty((batch, case.M, case.M), dtype=torch.float32, device=cost.device)
    plan, *results = outputs
    run_on(
        cost.device, _kernels[1].emd_kernel, (batch,),
        cost, a, b, _bytes(slot_mask, cost), _bytes(input_mask, cost),
        plan, own, even, scratch, *results, m, n, most,
        slot_mask is not None, input_mask is not None, case,
        num_warps=case.warps, num_stages=STAGES,
    )  # fmt: skip


def assign(cost: Tensor, slots: Tensor, inputs: Tensor, maximize: bool, partner: Tensor) -> None:
    """Run the assignment kernel on contiguous tensors; ``partner`` (batch, m) is filled."""
    batch, m, n = cost.shape
    if batch == 0:
        return
    size = max(2, _power(max(m, n)))
    run_on(
        cost.device, _kernels[0].assign_kernel, (batch,),
        cost, slots.view(torch.uint8), inputs.view(torch.uint8), partner, m, n,
        maximize, size, num_warps=max(1, size // 256),
    )  # fmt: skip


def _power(x: int) -> int:
    return 1 << max(0, x - 1).bit_length()


def _bytes(mask: Tensor | None, stand_in: Tensor) -> Tensor:
    """Something to point at, also where there is no mask."""
    return stand_in if mask is None else mask.view(torch.uint8)
