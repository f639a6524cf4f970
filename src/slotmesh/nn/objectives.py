"""Learned objectives for MESH: the paper's two alternatives to the entropy."""

from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn

from slotmesh.nn.part import Part
from slotmesh.ops import Objective, SimilarityObjective, checks


class MeshObjective(Part):
    """An objective that :class:`~slotmesh.nn.Mesh` can minimise.

    ``trainable`` says whether its parameters learn, which needs ``Mesh(grad="unroll")``.
    """

    trainable: bool = True

    def bind(self, *, slot_dim: int) -> Self:
        """Make the parameters for slots of this size, once."""
        self.claim()
        self.build(slot_dim)
        return self

    def build(self, slot_dim: int) -> None:
        """Make the parameters."""

    def objective(
        self, slots: Tensor, reference: Callable[[], Tensor], slot_mask: Tensor | None
    ) -> Objective:
        """The objective for these slots ``(..., m, slot_dim)``.

        ``reference()`` computes the Sinkhorn plan ``(..., m, n)`` of the original cost.
        """
        raise TypeError(
            f"{type(self).__name__} has no objective(slots, reference, slot_mask): define one."
        )


class LearnedObjective(MeshObjective):
    r"""A small network in place of the entropy (paper, appendix "Alternative MESH objective").

    The objective is :math:`\sum_{ij} f(P_{ij})` with :math:`f` a scalar network of two layers and
    ReLUs. Its derivative is a step function of :math:`P_{ij}`: each hidden unit switches on or off
    at its kink. MESH uses only that derivative, so the positions of the kinks get no gradient; they
    are spread evenly over (0, 1) and follow the first layer's weights.

    Args:
        hidden_dim: Hidden units.
        trainable: Whether to learn the network.

    Example:
        >>> import torch
        >>> from slotmesh import SlotAttention
        >>> from slotmesh.nn import LearnedObjective, Mesh
        >>> transport = Mesh(objective=LearnedObjective(), grad="unroll")
        >>> out = SlotAttention(8, 8, 3, transport=transport)(torch.randn(2, 10, 8))
        >>> out.slots.sum().backward()
        >>> transport.objective.out_weight.grad.shape
        torch.Size([32])
    """

    def __init__(self, *, hidden_dim: int = 32, trainable: bool = True) -> None:
        super().__init__()
        hidden_dim = checks.as_count("LearnedObjective", "hidden_dim", hidden_dim, 1)
        self.hidden_dim = hidden_dim
        self.trainable = trainable
        sign = 1.0 - 2.0 * torch.randint(0, 2, (hidden_dim,))
        weight = sign * torch.empty(hidden_dim).uniform_(0.5, 1.0)
        out = torch.empty(hidden_dim).uniform_(-1.0, 1.0) * hidden_dim**-0.5
        self.in_weight = nn.Parameter(weight, requires_grad=trainable)
        self.out_weight = nn.Parameter(out, requires_grad=trainable)
        kinks = (torch.arange(hidden_dim) + 0.5) / hidden_dim
        self.register_buffer("bias", -weight * kinks)
        self.bias: Tensor

    def objective(
        self, slots: Tensor, reference: Callable[[], Tensor], slot_mask: Tensor | None
    ) -> Objective:
        """The network itself, which depends on the plan alone."""
        return self

    def forward(self, p: Tensor) -> Tensor:
        """f(p), elementwise."""
        return torch.relu(p.unsqueeze(-1) * self.in_weight + self.bias) @ self.out_weight

    def derivative(self, plan: Tensor) -> Tensor:
        """f'(p), elementwise: a table look-up between kinks."""
        kinks = (-self.bias / self.in_weight).detach()
        order = kinks.sort().values
        # One probe in each of the hidden_dim + 1 intervals between kinks.
        ends = torch.cat((order[:1] - 1.0, order, order[-1:] + 1.0))
        probes = (ends[1:] + ends[:-1]) / 2
        slopes = self.in_weight * self.out_weight
        active = (probes.unsqueeze(-1) - kinks) * torch.sign(self.in_weight.detach()) > 0
        table = (active.to(slopes.dtype) * slopes).sum(-1)
        return table.to(plan.dtype)[torch.bucketize(plan.detach().to(order.dtype), order)]


class SlotSimilarity(MeshObjective):
    """Entropy plus a penalty for moving mass between slots that are not similar.

    The paper's appendix "Enforcing C' to be similar to C", with its similarity network: a small
    network scores each pair of slots, and a softmax makes each column of scores sum to 1.

    Args:
        alpha: Weight of the penalty.
        hidden_dim: Hidden units of the network.
        trainable: Whether to learn the network.

    Example:
        >>> import torch
        >>> from slotmesh import SlotAttention
        >>> from slotmesh.nn import Mesh, SlotSimilarity
        >>> transport = Mesh(objective=SlotSimilarity(alpha=0.5), grad="unroll")
        >>> SlotAttention(8, 8, 3, transport=transport)(torch.randn(2, 10, 8)).slots.shape
        torch.Size([2, 3, 8])
        >>> torch.allclose(transport.objective(torch.randn(3, 8)).sum(0), torch.ones(3))
        True
    """

    def __init__(self, *, alpha: float = 1.0, hidden_dim: int = 32, trainable: bool = True) -> None:
        super().__init__()
        alpha = checks.as_real("SlotSimilarity", "alpha", alpha)
        hidden_dim = checks.as_count("SlotSimilarity", "hidden_dim", hidden_dim, 1)
        self.alpha = alpha
        self.hidden_dim = hidden_dim
        self.trainable = trainable

    def build(self, slot_dim: int) -> None:
        """Make the network over pairs, whose first layer acts on each slot separately."""
        self.first = nn.Linear(slot_dim, self.hidden_dim, bias=False)
        self.second = nn.Linear(slot_dim, self.hidden_dim)
        # A bias on the score would cancel in the softmax.
        self.score = nn.Linear(self.hidden_dim, 1, bias=False)
        self.requires_grad_(self.trainable)

    def forward(self, slots: Tensor, slot_mask: Tensor | None = None) -> Tensor:
        """Slots ``(..., m, slot_dim)`` to similarities ``(..., m, m)`` whose columns sum to 1.

        Rows and columns of padded slots are 0.
        """
        if not self.bound:
            raise self.unbound()
        pairs = self.first(slots).unsqueeze(-2) + self.second(slots).unsqueeze(-3)
        score = self.score(torch.relu(pairs)).squeeze(-1)
        if slot_mask is None:
            return torch.softmax(score, -2)
        score = score.masked_fill(~slot_mask.unsqueeze(-1), torch.finfo(score.dtype).min)
        # A column of a padded slot would add a penalty that no real slot can lower.
        return torch.softmax(score, -2) * slot_mask.unsqueeze(-2)

    def objective(
        self, slots: Tensor, reference: Callable[[], Tensor], slot_mask: Tensor | None
    ) -> Objective:
        """The objective with the similarities of these slots."""
        return SimilarityObjective(self(slots, slot_mask), reference(), self.alpha)
