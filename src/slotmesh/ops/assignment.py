"""One-to-one assignment: the Hungarian algorithm over a batch."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from slotmesh.ops import _checks as checks
from slotmesh.ops._problem import problem


@torch.library.custom_op("slotmesh::assign", mutates_args=())
def assign_batch(cost: Tensor, slots: Tensor, inputs: Tensor, maximize: bool) -> Tensor:
    """(batch, m, n), (batch, m), (batch, n) to the input of each slot (batch, m), -1 for none."""
    from scipy.optimize import linear_sum_assignment  # pyright: ignore

    partner = np.full(cost.shape[:2], -1)
    costs = cost.detach().to("cpu", torch.float64).numpy()
    real_slots, real_inputs = slots.cpu().numpy(), inputs.cpu().numpy()
    for i in range(len(costs)):
        rows, columns = np.flatnonzero(real_slots[i]), np.flatnonzero(real_inputs[i])
        solved: Any = linear_sum_assignment(  # pyright: ignore
            costs[i][np.ix_(rows, columns)], maximize=maximize
        )
        partner[i, rows[solved[0]]] = columns[solved[1]]
    return torch.as_tensor(partner, dtype=torch.int64, device=cost.device)


@assign_batch.register_fake  # pyright: ignore
def _(cost: Tensor, slots: Tensor, inputs: Tensor, maximize: bool) -> Tensor:
    return torch.empty(cost.shape[:2], dtype=torch.int64, device=cost.device)


@torch.library.register_vmap(assign_batch)  # pyright: ignore
def _(
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
    partner = assign_batch(*(x.flatten(0, 1) for x in moved), maximize)
    return partner.unflatten(0, moved[0].shape[:2]), 0


def assign(
    cost: Tensor,
    *,
    slot_mask: Tensor | None = None,
    input_mask: Tensor | None = None,
    maximize: bool = False,
) -> Tensor:
    """Match slots with inputs one to one so that the total cost is least.

    Args:
        cost: ``(..., m, n)``, rows are slots, columns are inputs.
        slot_mask: ``(..., m)``, True where a slot is real.
        input_mask: ``(..., n)``, True where an input is real.
        maximize: Make the total as large as possible instead.

    Returns:
        ``(..., m)`` int64, the input of each slot; -1 for padded slots, and for slots left over
        where there are more slots than inputs.

    Example:
        >>> import torch
        >>> from slotmesh.ops import assign
        >>> assign(torch.tensor([[4.0, 1.0, 3.0], [2.0, 0.0, 5.0]]))
        tensor([1, 0])
    """
    checks.check_instance("assign", "maximize", maximize, bool, "True or False")
    task = problem("assign", cost, None, None, slot_mask, input_mask)
    batch, (m, n) = task.cost.shape[:-2], task.cost.shape[-2:]
    everything = torch.ones_like(task.cost, dtype=torch.bool)
    slots = everything[..., 0] if task.slots is None else task.slots
    inputs = everything[..., 0, :] if task.inputs is None else task.inputs
    flat = assign_batch(
        task.cost.detach().reshape(-1, m, n),
        slots.reshape(-1, m),
        inputs.reshape(-1, n),
        maximize,
    )
    return flat.reshape(*batch, m)
