"""Exact transport as one operator of torch, on top of the kernel for few slots."""

from typing import Any

import torch
from torch import Tensor

from slotmesh.ops._typed import custom_op

# Slots and inputs that the kernel takes.
MOST = (32, 16_384)


@custom_op("slotmesh::emd_small", mutates_args=())
def emd_small(cost: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As ``emd_batch``, by one kernel; the plan is NaN where a cost is not finite."""
    from slotmesh.ops._triton import solve

    plan, u, v, steps = _outputs(cost)
    m, n = cost.shape[1:]
    # Each path moves an input for good, but for a few; ties and bad starts need no more than this.
    most = 16 * (n + m * m)
    solve.emd(cost.contiguous(), a.contiguous(), b.contiguous(), plan, u, v, steps, most)
    return plan, u, v, steps


@emd_small.register_fake
def _(cost: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _outputs(cost)


def _outputs(cost: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    batch, m, n = cost.shape
    return (
        cost.new_empty((batch, m, n), dtype=torch.float64),
        cost.new_empty((batch, m), dtype=torch.float64),
        cost.new_empty((batch, n), dtype=torch.float64),
        cost.new_empty((batch,), dtype=torch.int32),
    )


@torch.library.register_vmap(emd_small)  # pyright: ignore
def _(info: Any, in_dims: tuple[int | None, ...], cost: Tensor, a: Tensor, b: Tensor) -> Any:
    moved = [
        x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
        for x, dim in zip((cost, a, b), in_dims, strict=True)
    ]
    batch = moved[0].shape[:2]
    results = emd_small(*(x.flatten(0, 1) for x in moved))
    return tuple(x.unflatten(0, batch) for x in results), (0, 0, 0, 0)
