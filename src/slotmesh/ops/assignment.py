"""One-to-one assignment: the Hungarian algorithm over a batch."""

from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from slotmesh.ops import checks
from slotmesh.ops._fused import use_solver
from slotmesh.ops._private import custom_op, register_vmap
from slotmesh.ops.problem import Given, check_problem, problem

AssignBackend = Literal["auto", "scipy", "triton"]

# Elements of the smaller and of the larger side that the kernel takes.
MOST = (128, 1024)


@custom_op("slotmesh::assign", mutates_args=())
def assign_batch(cost: Tensor, slots: Tensor, inputs: Tensor, maximize: bool) -> Tensor:
    """(batch, m, n), (batch, m), (batch, n) to the input of each slot (batch, m), -1 for none."""
    from scipy.optimize import linear_sum_assignment  # pyright: ignore

    partner = np.full(cost.shape[:2], -1)
    costs = cost.detach().cpu().double().numpy()
    real_slots, real_inputs = slots.cpu().numpy(), inputs.cpu().numpy()
    for i in range(len(costs)):
        rows, columns = np.flatnonzero(real_slots[i]), np.flatnonzero(real_inputs[i])
        solved: Any = linear_sum_assignment(  # pyright: ignore
            costs[i][np.ix_(rows, columns)], maximize=maximize
        )
        partner[i, rows[solved[0]]] = columns[solved[1]]
    return torch.as_tensor(partner, dtype=torch.int64, device=cost.device)


@assign_batch.register_fake
def _(cost: Tensor, slots: Tensor, inputs: Tensor, maximize: bool) -> Tensor:
    return torch.empty(cost.shape[:2], dtype=torch.int64, device=cost.device)


@custom_op("slotmesh::assign_small", mutates_args=())
def assign_small(cost: Tensor, slots: Tensor, inputs: Tensor, maximize: bool) -> Tensor:
    """The same by one kernel; a batch element with a cost that is not finite gets -1 only."""
    from slotmesh.ops._triton import solve

    partner = torch.empty(cost.shape[:2], dtype=torch.int64, device=cost.device)
    solve.assign(cost.contiguous(), slots.contiguous(), inputs.contiguous(), maximize, partner)
    return partner


@assign_small.register_fake
def _(cost: Tensor, slots: Tensor, inputs: Tensor, maximize: bool) -> Tensor:
    return torch.empty(cost.shape[:2], dtype=torch.int64, device=cost.device)


def _vmap(
    solver: Any,
    info: Any,
    in_dims: tuple[int | None, ...],
    cost: Tensor,
    slots: Tensor,
    inputs: Tensor,
    maximize: bool,
) -> tuple[Tensor, int]:
    moved = [
        x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
        for x, dim in zip((cost, slots, inputs), in_dims[:3], strict=True)
    ]
    partner = solver(*(x.flatten(0, 1) for x in moved), maximize)
    return partner.unflatten(0, moved[0].shape[:2]), 0


for _solver in (assign_batch, assign_small):
    register_vmap(_solver, partial(_vmap, _solver))


def assign(
    cost: Tensor,
    *,
    slot_mask: Tensor | None = None,
    input_mask: Tensor | None = None,
    maximize: bool = False,
    backend: AssignBackend = "auto",
) -> Tensor:
    """Match slots with inputs one to one at minimal total cost.

    Args:
        cost: ``(..., m, n)``, rows are slots, columns are inputs.
        slot_mask: ``(..., m)``, True where a slot is real.
        input_mask: ``(..., n)``, True where an input is real.
        maximize: Maximise the total instead.
        backend: ``"scipy"`` (any size, on the CPU: this waits for a GPU), ``"triton"`` (one kernel
            on a CUDA device for at most 128 x 1024 or 1024 x 128, which does not wait), or
            ``"auto"``, the kernel for CUDA tensors of these sizes, else SciPy. Both compute in
            float64; of equally good matchings they may choose different ones.

    Returns:
        ``(..., m)`` int64, the input of each slot; -1 for padded slots, and for slots left over
        if there are more slots than inputs. If a cost is not finite, the kernel on a GPU returns -1
        for all slots of its batch element; SciPy raises ValueError.

    Example:
        >>> import torch
        >>> from slotmesh.ops import assign
        >>> assign(torch.tensor([[4.0, 1.0, 3.0], [2.0, 0.0, 5.0]]))
        tensor([1, 0])
    """
    checks.check_instance("assign", "maximize", maximize, bool, "True or False")
    checks.check_choice("assign", "backend", backend, ("auto", "scipy", "triton"))
    given = Given("assign", cost, None, None, slot_mask, input_mask)
    batch, (m, n) = check_problem(given), cost.shape[-2:]
    if checks.can_read_values(*given.tensors()):
        problem(given)  # for its errors
    most = MOST if m <= n else (MOST[1], MOST[0])
    solver = assign_small if use_solver("assign", backend, cost, most, "scipy") else assign_batch
    partner = solver(
        cost.detach().expand(*batch, m, n).reshape(-1, m, n),
        _flat_mask(slot_mask, batch, m, cost),
        _flat_mask(input_mask, batch, n, cost),
        maximize,
    )
    return partner.reshape(*batch, m)


def _flat_mask(mask: Tensor | None, batch: tuple[int, ...], size: int, cost: Tensor) -> Tensor:
    """(*batch, size) to (B, size), all True if there is none."""
    if mask is None:
        mask = torch.ones((), dtype=torch.bool, device=cost.device)
    return mask.expand(*batch, size).reshape(-1, size)
