"""Euclidean distances as an operator of torch on top of a kernel.

``torch.cdist`` starts a block of threads for every pair, which on a GPU takes longer than MESH.
"""

import math
from typing import Any

import torch
from torch import Tensor

from slotmesh.ops._fused import cannot_run
from slotmesh.ops._private import custom_op
from slotmesh.ops.checks import broadcast_shapes

# Per vector: blocks of longer ones would not fit into the shared memory of every GPU.
MOST_FEATURES = 256


def use_distance(queries: Tensor, keys: Tensor) -> bool:
    """Whether the kernel runs: on a GPU, in single precision or less."""
    fits = queries.is_cuda and 0 < queries.shape[-1] <= MOST_FEATURES
    return fits and cannot_run("queries", queries) is None and cannot_run("keys", keys) is None


def distances(queries: Tensor, keys: Tensor, squared: bool) -> Tensor:
    """``(..., m, d)`` and ``(..., n, d)`` to float32 ``(..., m, n)``; batches broadcast."""
    batch = broadcast_shapes(queries.shape[:-2], keys.shape[:-2])
    whole = [x.expand(*batch, *x.shape[-2:]) for x in (queries, keys)]
    q, k = (x.reshape(math.prod(batch), *x.shape[-2:]) for x in whole)
    cost = distance_op(q, k, squared)
    return cost.view(*batch, *cost.shape[1:])


@custom_op("slotmesh::distance", mutates_args=())
def distance_op(queries: Tensor, keys: Tensor, squared: bool) -> Tensor:
    """(B, m, d) and (B, n, d) to float32 (B, m, n)."""
    from slotmesh.ops._triton import distance

    cost = _cost(queries, keys)
    if cost.numel():
        distance.forward(queries.contiguous(), keys.contiguous(), cost, squared)
    return cost


@distance_op.register_fake
def _(queries: Tensor, keys: Tensor, squared: bool) -> Tensor:
    return _cost(queries, keys)


@custom_op("slotmesh::distance_backward", mutates_args=())
def distance_backward(
    queries: Tensor, keys: Tensor, cost: Tensor, grad: Tensor, squared: bool
) -> tuple[Tensor, Tensor]:
    """Gradients of queries and keys, in their dtypes."""
    if cost.numel() == 0:
        return torch.zeros_like(queries), torch.zeros_like(keys)
    from slotmesh.ops._triton import distance

    q, k = queries.contiguous(), keys.contiguous()
    grad_queries, grad_keys = torch.empty_like(q), torch.empty_like(k)
    distance.backward(q, k, cost, grad.contiguous(), grad_queries, grad_keys, squared)
    return grad_queries, grad_keys


@distance_backward.register_fake
def _(
    queries: Tensor, keys: Tensor, cost: Tensor, grad: Tensor, squared: bool
) -> tuple[Tensor, Tensor]:
    contiguous = torch.contiguous_format
    return (
        torch.empty_like(queries, memory_format=contiguous),
        torch.empty_like(keys, memory_format=contiguous),
    )


def _cost(queries: Tensor, keys: Tensor) -> Tensor:
    shape = (queries.shape[0], queries.shape[1], keys.shape[1])
    return queries.new_empty(shape, dtype=torch.float32)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    queries, keys, squared = inputs
    ctx.save_for_backward(queries, keys, output)
    ctx.squared = squared


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
    return *distance_backward(*ctx.saved_tensors, grad, ctx.squared), None


distance_op.register_autograd(_backward, setup_context=_setup)
