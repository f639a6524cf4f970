"""Exact transport as an operator of torch on top of the kernel for few slots."""

from typing import Any

import torch
from torch import Tensor

from slotmesh.ops._private import custom_op, register_vmap

# Slots and inputs that the kernel takes.
MOST = (32, 16_384)


@custom_op("slotmesh::emd_small", mutates_args=())
def emd_small(
    cost: Tensor,
    a: Tensor,
    b: Tensor,
    slots: Tensor | None = None,
    inputs: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """(batch, m, n), (batch, m), (batch, n) and masks to plan, u, v, paths, marginal error.

    ``b`` is rescaled to the total of ``a``. The plan is in float64, and NaN where a cost is not
    finite; the rest has the dtype of ``a``. The number of paths is negative where the plan is not
    optimal.
    """
    from slotmesh.ops._triton import solve

    outputs = _outputs(cost, a)
    m, n = cost.shape[1:]
    # Nearly every path settles an input for good; ties and bad starts need no more than this.
    most = 16 * (n + m * m)
    slots, inputs = (None if x is None else x.contiguous() for x in (slots, inputs))
    solve.emd(cost.contiguous(), a.contiguous(), b.contiguous(), slots, inputs, outputs, most)
    return outputs


@emd_small.register_fake
def _(
    cost: Tensor,
    a: Tensor,
    b: Tensor,
    slots: Tensor | None = None,
    inputs: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return _outputs(cost, a)


def _outputs(cost: Tensor, a: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    batch, m, n = cost.shape
    return (
        cost.new_empty((batch, m, n), dtype=torch.float64),
        a.new_empty((batch, m)),
        a.new_empty((batch, n)),
        cost.new_empty((batch,), dtype=torch.int32),
        a.new_empty((batch,)),
    )


@register_vmap(emd_small)
def _(info: Any, in_dims: tuple[int | None, ...], *args: Tensor | None) -> Any:
    moved: list[Tensor | None] = []
    for x, dim in zip(args, in_dims, strict=True):
        if x is not None:
            x = x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)
        moved.append(x)
    batch = moved[0].shape[:2]  # pyright: ignore[reportOptionalMemberAccess]
    results = emd_small(*(None if x is None else x.flatten(0, 1) for x in moved))
    return tuple(x.unflatten(0, batch) for x in results), (0,) * len(results)
