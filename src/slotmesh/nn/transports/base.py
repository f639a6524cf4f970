"""What all transports have in common."""

from typing import Literal, NamedTuple, Self

import torch
from torch import Tensor

from slotmesh.nn._part import Part
from slotmesh.nn.marginals import MarginalHead
from slotmesh.ops import Transport
from slotmesh.ops import _checks as checks
from slotmesh.ops.cost import COST_KINDS, CostKind, exact_cost

MarginalKind = Literal["learned", "uniform"]


class Scene(NamedTuple):
    """What stays the same over the iterations of slot attention."""

    b: Tensor | None = None  # (..., n), mass of each input
    noise: Tensor | None = None  # (..., m, n), drawn once, so that ties break the same way
    slot_mask: Tensor | None = None  # (..., m)
    input_mask: Tensor | None = None  # (..., n)


class SlotTransport(Part):
    """How slots take from inputs; base of ``Softmax``, ``Sinkhorn``, ``EMD`` and ``Mesh``.

    :class:`~slotmesh.nn.SlotAttention` binds it, calls :meth:`begin` once a forward pass and then
    the transport itself once an iteration. Subclass it for a transport of your own.
    """

    def bind(self, *, input_dim: int, slot_dim: int, hidden_dim: int) -> Self:
        """Make the parameters for these sizes, once."""
        self.claim()
        self.build(input_dim, slot_dim, hidden_dim)
        return self

    def build(self, input_dim: int, slot_dim: int, hidden_dim: int) -> None:
        """Make the parameters."""

    def begin(
        self,
        inputs: Tensor,
        n_slots: int,
        *,
        slot_mask: Tensor | None = None,
        input_mask: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Scene:
        """Look at the normalised inputs ``(..., n, input_dim)`` once for all iterations."""
        return Scene(slot_mask=slot_mask, input_mask=input_mask)

    def forward(
        self, queries: Tensor, keys: Tensor, slots: Tensor, scene: Scene
    ) -> tuple[Tensor, Transport]:
        """One transport.

        Args:
            queries: Projected slots ``(..., m, d)``.
            keys: Projected inputs ``(..., n, d)``.
            slots: Normalised slots ``(..., m, slot_dim)``.
            scene: What :meth:`begin` returned.

        Returns:
            The attention ``(..., m, n)`` that multiplies the values, and the transport behind it.
        """
        raise TypeError(
            f"{type(self).__name__} has no forward(queries, keys, slots, scene): define one that "
            "returns the attention and its Transport."
        )


class OptimalTransport(SlotTransport):
    """A transport with a pairwise cost and marginals of its own; base of the paper's variants."""

    def __init__(
        self,
        *,
        cost: CostKind,
        cost_scale: float,
        n_iters: int,
        temperature: float,
        marginals: MarginalKind,
        mass: float | None,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        checks.check_choice(name, "cost", cost, COST_KINDS)
        cost_scale = checks.as_real(name, "cost_scale", cost_scale, positive=True)
        n_iters = checks.as_count(name, "n_iters", n_iters, 1)
        temperature = checks.as_real(name, "temperature", temperature, positive=True)
        checks.check_choice(name, "marginals", marginals, ("learned", "uniform"))
        if mass is not None:
            mass = checks.as_real(name, "mass", mass, positive=True)
        self.cost: CostKind = cost
        self.cost_scale = cost_scale
        self.n_iters = n_iters
        self.temperature = temperature
        self.marginals: MarginalKind = marginals
        self.mass = mass

    def build(self, input_dim: int, slot_dim: int, hidden_dim: int) -> None:
        """Make the marginal heads."""
        if self.marginals == "learned":
            self.slot_marginal = MarginalHead(slot_dim, hidden_dim)
            self.input_marginal = MarginalHead(input_dim, hidden_dim)

    def begin(
        self,
        inputs: Tensor,
        n_slots: int,
        *,
        slot_mask: Tensor | None = None,
        input_mask: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Scene:
        """The inputs' marginal, which does not change over the iterations."""
        b = None
        if self.marginals == "learned":
            b = self.input_marginal(inputs, self._total(n_slots, slot_mask, inputs), input_mask)
        return Scene(b, None, slot_mask, input_mask)

    def pose(
        self, queries: Tensor, keys: Tensor, slots: Tensor, scene: Scene
    ) -> tuple[Tensor, Tensor | None]:
        """Cost ``(..., m, n)`` and slot marginal ``(..., m)`` of this iteration."""
        # In float32 also under autocast: rounded distances would make ties of near ones.
        cost = exact_cost(queries, keys, self.cost).to(slots.dtype)
        if self.cost_scale != 1.0:
            cost = self.cost_scale * cost
        total = self._total(slots.shape[-2], scene.slot_mask, slots)
        if self.marginals == "learned":
            return cost, self.slot_marginal(slots, total, scene.slot_mask)
        if self.mass is None:
            return cost, None
        m = slots.shape[-2]
        real = cost.new_ones(m) if scene.slot_mask is None else scene.slot_mask.to(cost.dtype)
        return cost, total * real / real.sum(-1, keepdim=True)

    def _total(self, n_slots: int, slot_mask: Tensor | None, like: Tensor) -> float | Tensor:
        """All mass: the given one, or one unit a real slot."""
        if self.mass is not None:
            return self.mass
        if slot_mask is None:
            return float(n_slots)
        return slot_mask.sum(-1, keepdim=True).to(torch.promote_types(like.dtype, torch.float32))
