"""SA-EMD: exact transport."""

from typing import Literal

import torch
from torch import Tensor

from slotmesh.nn.transports.base import MarginalKind, OptimalTransport, TransportContext
from slotmesh.ops import CostKind, Transport, checks, emd

Combine = Literal["sum", "mean", "straight_through", "detached"]

# Number of temperatures on the way to a plan that approximates the exact one, and of iterations at
# each.
_COOLING = (10, 20)


class EMD(OptimalTransport):
    """SA-EMD: exact transport, which breaks ties, plus a Sinkhorn plan that carries the gradient.

    Args:
        combine: ``"sum"``: the paper's ``emd(C) + sinkhorn(C)``, which has twice the mass and the
            gradient of the Sinkhorn plan. ``"mean"``: half of the sum, which preserves mass.
            ``"straight_through"``: the exact plan alone, with the gradient of the Sinkhorn plan.
            ``"detached"``: the sum without a gradient, so that the attention is not learned.
        approximate: Replace the exact plan by a Sinkhorn plan at this temperature, to measure the
            value of exactness. It is computed from the other plan by cooling it down in 10 stages
            of 20 iterations.
        cost: Kind of pairwise cost, see :func:`slotmesh.ops.pairwise_cost`.
        cost_scale: Factor by which costs are multiplied.
        n_iters: Number of iterations of the Sinkhorn plan.
        temperature: Temperature of the Sinkhorn plan.
        marginals: ``"learned"`` or ``"uniform"``, shared by both plans.
        mass: Total mass; default one unit per slot.

    Example:
        >>> import torch
        >>> from slotmesh import SlotAttention
        >>> from slotmesh.nn import EMD
        >>> out = SlotAttention(64, 64, 7, transport=EMD())(torch.randn(2, 100, 64))
        >>> round(out.transport.plan.sum().item(), 3), round(out.attention.sum().item(), 3)
        (14.0, 28.0)
    """

    def __init__(
        self,
        *,
        combine: Combine = "sum",
        approximate: float | None = None,
        cost: CostKind = "l2",
        cost_scale: float = 1.0,
        n_iters: int = 5,
        temperature: float = 1.0,
        marginals: MarginalKind = "learned",
        mass: float | None = None,
    ) -> None:
        super().__init__(
            cost=cost,
            cost_scale=cost_scale,
            n_iters=n_iters,
            temperature=temperature,
            marginals=marginals,
            mass=mass,
        )
        known = ("sum", "mean", "straight_through", "detached")
        checks.check_choice("EMD", "combine", combine, known)
        if approximate is not None:
            approximate = checks.as_real("EMD", "approximate", approximate, positive=True)
        self.combine: Combine = combine
        self.approximate = approximate

    def forward(
        self, queries: Tensor, keys: Tensor, slots: Tensor, context: TransportContext
    ) -> tuple[Tensor, Transport]:
        """One exact transport and one Sinkhorn; returns the exact transport."""
        cost, a = self.pose(queries, keys, slots, context)
        soft = self.sinkhorn(cost, a, context)
        if self.approximate is None:
            hard = emd(
                cost, a, context.b, slot_mask=context.slot_mask, input_mask=context.input_mask
            )
        else:
            hard = self._cooled(cost, a, context, soft, self.approximate)
        if self.combine == "straight_through":
            return soft.plan + (hard.plan - soft.plan).detach(), hard
        both = hard.plan + soft.plan
        if self.combine == "mean":
            return both / 2, hard
        return both.detach() if self.combine == "detached" else both, hard

    @torch.no_grad()
    def _cooled(
        self, cost: Tensor, a: Tensor | None, context: TransportContext, plan: Transport, end: float
    ) -> Transport:
        """A plan of low temperature, which without stages would take thousands of iterations."""
        stages, n_iters = _COOLING
        ratio = (end / self.temperature) ** (1 / stages)
        for i in range(stages):
            # Potentials are in units of the temperature.
            start, temperature = (plan.u / ratio, plan.v), self.temperature * ratio ** (i + 1)
            plan = self.sinkhorn(
                cost, a, context, n_iters=n_iters, temperature=temperature, init=start
            )
        return plan
