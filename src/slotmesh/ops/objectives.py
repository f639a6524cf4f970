"""Objectives that MESH minimises: functions of the plan, each given by its derivative.

MESH does not need the value of its objective, only the derivative with respect to the entries of
the plan. Writing that derivative out keeps autograd out of the inner loop. An objective is any
object with a method ``derivative(plan)``; what it holds gets gradients if ``mesh`` runs with
``grad="unroll"``.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor


@runtime_checkable
class Objective(Protocol):
    """A scalar function J of a plan, given by its derivative."""

    def derivative(self, plan: Tensor) -> Tensor:
        """dJ/dP, ``(..., m, n)`` for a plan ``(..., m, n)``; finite even where the plan is 0."""
        ...


@dataclass(frozen=True)
class EntropyObjective:
    r"""The entropy :math:`H(P) = -\sum_{ij} P_{ij} \log P_{ij}`: the default.

    Example:
        >>> import torch
        >>> from slotmesh.ops import EntropyObjective
        >>> EntropyObjective().derivative(torch.tensor([[1.0, 0.0]]))
        tensor([[-1.,  0.]])
    """

    def derivative(self, plan: Tensor) -> Tensor:
        """-(log P + 1), and 0 where there is no mass."""
        positive = plan > 0
        return torch.where(positive, -1.0 - torch.where(positive, plan, 1.0).log(), 0.0)


@dataclass(frozen=True)
class SimilarityObjective:
    r"""Entropy plus a penalty for moving away from the plan of the original cost.

    The paper's appendix "Enforcing C' to be similar to C":
    :math:`H(P) + \alpha \lVert S^\top P - P_0 \rVert^2`, in the layout with slots as rows. Mass may
    move freely among slots that are similar according to the matrix :math:`S`, but not otherwise.

    Args:
        similarity: ``(..., m, m)``, columns sum to 1 (see :class:`slotmesh.nn.SlotSimilarity`).
        reference: ``(..., m, n)``, the Sinkhorn plan :math:`P_0` of the original cost.
        alpha: Weight of the penalty.

    Example:
        >>> import torch
        >>> from slotmesh.ops import SimilarityObjective
        >>> objective = SimilarityObjective(torch.full((2, 2), 0.5), torch.full((2, 2), 0.5))
        >>> objective.derivative(torch.eye(2))  # either hard plan is as good: only the entropy acts
        tensor([[-1.,  0.],
                [ 0., -1.]])
    """

    similarity: Tensor
    reference: Tensor
    alpha: float = 1.0

    def derivative(self, plan: Tensor) -> Tensor:
        """The entropy's derivative plus 2 alpha S (S^T P - P0)."""
        s, p0 = self.similarity.to(plan.dtype), self.reference.to(plan.dtype)
        return EntropyObjective().derivative(plan) + 2 * self.alpha * (s @ (s.mT @ plan - p0))
