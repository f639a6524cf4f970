"""Base classes of the transports, and the learned marginals of those with a cost."""

from typing import Any, Literal, NamedTuple, Self

import torch
from torch import Tensor, nn

from slotmesh.nn.part import Part
from slotmesh.ops import Transport, checks, sinkhorn
from slotmesh.ops.cost import COST_KINDS, CostKind, exact_cost
from slotmesh.ops.logit import logits, use_logits
from slotmesh.ops.mesh import N_ITERS
from slotmesh.ops.problem import compute_dtype

MarginalKind = Literal["learned", "uniform"]


class TransportContext(NamedTuple):
    """What stays the same over the iterations of slot attention.

    Example:
        >>> import torch
        >>> from slotmesh.nn import Softmax
        >>> context = Softmax().begin(torch.randn(2, 9, 8), 3, input_mask=torch.ones(2, 9) > 0)
        >>> context.input_mask.shape, context.noise
        (torch.Size([2, 9]), None)
    """

    b: Tensor | None = None  # (..., n), mass of each input
    noise: Tensor | None = None  # (..., m, n), drawn once, so that ties break the same way
    slot_mask: Tensor | None = None  # (..., m)
    input_mask: Tensor | None = None  # (..., n)


class SlotTransport(Part):
    """Attention of slots to inputs; base class of ``Softmax``, ``Sinkhorn``, ``EMD`` and ``Mesh``.

    :class:`~slotmesh.nn.SlotAttention` calls :meth:`bind` once, :meth:`begin` once per forward
    pass, and the transport itself once per iteration. Subclass it to write your own transport.
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
    ) -> TransportContext:
        """Prepare all iterations, given the normalised inputs ``(..., n, input_dim)``."""
        return TransportContext(slot_mask=slot_mask, input_mask=input_mask)

    def forward(
        self, queries: Tensor, keys: Tensor, slots: Tensor, context: TransportContext
    ) -> tuple[Tensor, Transport]:
        """Compute the attention of one iteration.

        Args:
            queries: Projected slots ``(..., m, d)``.
            keys: Projected inputs ``(..., n, d)``.
            slots: Normalised slots ``(..., m, slot_dim)``.
            context: The result of :meth:`begin`.

        Returns:
            The attention ``(..., m, n)`` that multiplies the values, and the transport it was
            computed from.
        """
        raise TypeError(
            f"{type(self).__name__} has no forward(queries, keys, slots, context): define one that "
            "returns the attention and its Transport."
        )


class MarginalHead(nn.Module):
    r"""Mass of each element, :math:`\text{total} \cdot \mathrm{softmax}(h(x))` (paper, appendix A).

    Args:
        dim: Size of an element.
        hidden_dim: Width of the hidden layer. A linear head cannot tell an empty element from a
            symmetric distribution of full ones, so there is always a hidden layer.

    Example:
        >>> import torch
        >>> from slotmesh.nn import MarginalHead
        >>> head = MarginalHead(8, 16)
        >>> round(head(torch.randn(5, 8), total=3.0).sum().item(), 4)
        3.0
    """

    def __init__(self, dim: int, hidden_dim: int) -> None:
        super().__init__()
        # A bias on the logit would cancel in the softmax.
        self.logit = nn.Sequential(
            nn.Linear(dim, hidden_dim), nn.ReLU(), nn.Linear(hidden_dim, 1, bias=False)
        )

    def forward(
        self, elements: Tensor, total: Tensor | float, mask: Tensor | None = None
    ) -> Tensor:
        """``(..., k, dim)`` elements, total mass (a number or ``(..., 1)``) to ``(..., k)``."""
        logit = self._logit(elements)
        logit = logit.to(compute_dtype(logit))
        if mask is not None:
            logit = logit.masked_fill(~mask, torch.finfo(logit.dtype).min)
        share = torch.softmax(logit, -1)
        return total * (share if mask is None else share * mask)

    def _logit(self, elements: Tensor) -> Tensor:
        """``(..., k, dim)`` to ``(..., k)``."""
        # Read at every call: torch.func.functional_call replaces parameters by plain tensors.
        layers: Any = self.logit
        first, _, last = layers
        weight = first.weight
        if use_logits(elements, weight):
            bias, once = first.bias, last.weight.squeeze(0)
            return logits(elements, weight, bias, once)
        return self.logit(elements).squeeze(-1)


class OptimalTransport(SlotTransport):
    """A transport with a pairwise cost and marginals; base class of the paper's variants."""

    def __init__(
        self,
        *,
        cost: CostKind,
        cost_scale: float,
        n_iters: int | None,
        temperature: float,
        marginals: MarginalKind,
        mass: float | None,
    ) -> None:
        super().__init__()
        name = type(self).__name__
        checks.check_choice(name, "cost", cost, COST_KINDS)
        cost_scale = checks.as_real(name, "cost_scale", cost_scale, positive=True)
        if n_iters is not None:
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
    ) -> TransportContext:
        """Compute the inputs' marginal, which all iterations share."""
        b = None
        if self.marginals == "learned":
            if not self.bound:
                raise self.unbound()
            b = self.input_marginal(inputs, self._total(n_slots, slot_mask, inputs), input_mask)
        return TransportContext(b, None, slot_mask, input_mask)

    def pose(
        self, queries: Tensor, keys: Tensor, slots: Tensor, context: TransportContext
    ) -> tuple[Tensor, Tensor | None]:
        """Cost ``(..., m, n)`` and slot marginal ``(..., m)`` of this iteration."""
        # In float32 even under autocast: rounding would turn similar distances into ties.
        cost = exact_cost(queries, keys, self.cost).to(slots.dtype)
        if self.cost_scale != 1.0:
            cost = self.cost_scale * cost
        total = self._total(slots.shape[-2], context.slot_mask, slots)
        if self.marginals == "learned":
            if not self.bound:
                raise self.unbound()
            return cost, self.slot_marginal(slots, total, context.slot_mask)
        if self.mass is None:
            return cost, None
        m = slots.shape[-2]
        real = cost.new_ones(m) if context.slot_mask is None else context.slot_mask.to(cost.dtype)
        return cost, total * real / real.sum(-1, keepdim=True)

    def sinkhorn(
        self, cost: Tensor, a: Tensor | None, context: TransportContext, **options: Any
    ) -> Transport:
        """Call :func:`slotmesh.sinkhorn` with the settings of this transport, or ``options``."""
        n_iters = N_ITERS if self.n_iters is None else self.n_iters
        options = {"n_iters": n_iters, "temperature": self.temperature} | options
        return sinkhorn(
            cost,
            a,
            context.b,
            slot_mask=context.slot_mask,
            input_mask=context.input_mask,
            **options,
        )

    def _total(self, n_slots: int, slot_mask: Tensor | None, like: Tensor) -> float | Tensor:
        """Total mass: the given one, or one unit per real slot."""
        if self.mass is not None:
            return self.mass
        if slot_mask is None:
            return float(n_slots)
        return slot_mask.sum(-1, keepdim=True).to(torch.promote_types(like.dtype, torch.float32))
