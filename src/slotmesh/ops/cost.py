"""Pairwise costs between two sets of vectors."""

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from slotmesh.ops import checks
from slotmesh.ops._distance import distances, use_distance
from slotmesh.ops.problem import compute_dtype, full_precision

CostKind = Literal["l2", "sqeuclidean", "cosine", "dot"]
COST_KINDS: tuple[CostKind, ...] = ("l2", "sqeuclidean", "cosine", "dot")


def pairwise_cost(queries: Tensor, keys: Tensor, kind: CostKind = "l2") -> Tensor:
    """Cost of matching each query (slot) with each key (input).

    Args:
        queries: ``(..., m, d)``.
        keys: ``(..., n, d)``; leading dimensions broadcast.
        kind: ``"l2"``, the Euclidean distance (the paper's), whose gradient at distance zero is
            zero; ``"sqeuclidean"``, its square; ``"cosine"``, one minus the cosine of the angle
            (the paper's choice on video), with vectors shorter than 1e-6 taken as 1e-6 long;
            ``"dot"``, the negative dot product. The first two support only first derivatives in
            reverse mode; for others, use ``(queries[..., :, None, :] - keys[..., None, :,
            :]).square().sum(-1)``.

    Returns:
        ``(..., m, n)`` in the dtype of the queries; half precision is computed in float32
        internally.

    Example:
        >>> import torch
        >>> from slotmesh.ops import pairwise_cost
        >>> pairwise_cost(torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
        tensor([[5., 0.]])
    """
    checks.check_choice("pairwise_cost", "kind", kind, COST_KINDS)
    checks.check_matrix("pairwise_cost", "queries", queries, "(..., queries m, features d)")
    checks.check_matrix("pairwise_cost", "keys", keys, "(..., keys n, features d)")
    if queries.shape[-1] != keys.shape[-1]:
        raise ValueError(
            f"pairwise_cost: queries have {queries.shape[-1]} features and keys have "
            f"{keys.shape[-1]} (shapes {tuple(queries.shape)} and {tuple(keys.shape)}), expected "
            "the same number. Project one of them to the size of the other."
        )
    try:
        checks.broadcast_shapes(queries.shape[:-2], keys.shape[:-2])
    except RuntimeError:
        raise ValueError(
            f"pairwise_cost: queries of shape {tuple(queries.shape)} and keys of shape "
            f"{tuple(keys.shape)} have leading dimensions that do not broadcast, expected the same "
            "batch. Add dimensions of size 1 where one of them is shared."
        ) from None
    if queries.device != keys.device:
        raise ValueError(
            f"pairwise_cost: queries are on {queries.device} and keys on {keys.device}, expected "
            "one device. Move one of them with .to(device)."
        )
    return exact_cost(queries, keys, kind).to(queries.dtype)


def exact_cost(queries: Tensor, keys: Tensor, kind: CostKind) -> Tensor:
    """Pairwise costs of checked arguments, in float32 at least."""
    dtype = torch.promote_types(compute_dtype(queries), compute_dtype(keys))
    if kind in ("l2", "sqeuclidean") and use_distance(queries, keys):
        return distances(queries, keys, kind == "sqeuclidean")
    # Autocast would round the dot products to half precision; distances between near neighbours
    # would be noise.
    with full_precision(queries):
        q, k = queries.to(dtype), keys.to(dtype)
        if kind == "dot":
            return -(q @ k.mT)
        if kind == "cosine":
            return 1.0 - F.normalize(q, dim=-1, eps=1e-6) @ F.normalize(k, dim=-1, eps=1e-6).mT
        # From differences, not the expanded square: exact for vectors that are nearly equal.
        cost = torch.cdist(q, k, compute_mode="donot_use_mm_for_euclid_dist")
        return cost.square() if kind == "sqeuclidean" else cost
