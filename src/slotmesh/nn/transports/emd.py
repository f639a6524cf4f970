"""SA-EMD: slot attention by exact transport."""

from typing import Literal

import torch
from torch import Tensor

from slotmesh.nn.transports.base import MarginalKind, OptimalTransport, Scene
from slotmesh.ops import CostKind, Transport, emd, sinkhorn
from slotmesh.ops import _checks as checks

Combine = Literal["sum", "mean", "straight_through", "detached"]

# Temperatures on the way down to a plan that stands in for the exact one, iterations at each.
_COOLING = (10, 20)


class EMD(OptimalTransport):
    """SA-EMD: exact transport, which breaks ties, made learnable by a Sinkhorn plan beside it.

    Args:
        combine: ``"sum"``, the paper's ``emd(C) + sinkhorn(C)``: twice the mass, gradients through
            the Sinkhorn plan. ``"mean"``: half of it, so that mass is kept. ``"straight_through"``:
            the exact plan alone, with the gradient of the Sinkhorn plan. ``"detached"``: the sum
            without its gradient, so that nothing learns where to look.
        approximate: Temperature of a Sinkhorn plan that takes the place of the exact one, to see
            what exactness is worth: the other plan, cooled down in 10 stages of 20 iterations.
            None for the exact plan.
        cost: As for :class:`Sinkhorn`, like the rest.
        cost_scale: Factor of the cost.
        n_iters: Sinkhorn iterations of the plan that gives the gradient.
        temperature: Of that plan.
        marginals: ``"learned"`` or ``"uniform"``, shared by both plans.
        mass: Total mass; default one unit a slot.

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
            checks.check_real("EMD", "approximate", approximate, positive=True)
        self.combine: Combine = combine
        self.approximate = approximate

    def forward(
        self, queries: Tensor, keys: Tensor, slots: Tensor, scene: Scene
    ) -> tuple[Tensor, Transport]:
        """One exact transport and one Sinkhorn; the transport returned is the exact one."""
        cost, a = self.pose(queries, keys, slots, scene)
        soft = sinkhorn(
            cost,
            a,
            scene.b,
            n_iters=self.n_iters,
            temperature=self.temperature,
            slot_mask=scene.slot_mask,
            input_mask=scene.input_mask,
        )
        if self.approximate is None:
            hard = emd(cost, a, scene.b, slot_mask=scene.slot_mask, input_mask=scene.input_mask)
        else:
            hard = self._cooled(cost, a, scene, soft, self.approximate)
        if self.combine == "straight_through":
            return soft.plan + (hard.plan - soft.plan).detach(), hard
        both = hard.plan + soft.plan
        if self.combine == "mean":
            return both / 2, hard
        return both.detach() if self.combine == "detached" else both, hard

    @torch.no_grad()
    def _cooled(
        self, cost: Tensor, a: Tensor | None, scene: Scene, plan: Transport, end: float
    ) -> Transport:
        """A plan of low temperature; from zero potentials it would take thousands of iterations."""
        stages, n_iters = _COOLING
        ratio = (end / self.temperature) ** (1 / stages)
        for i in range(stages):
            plan = sinkhorn(
                cost,
                a,
                scene.b,
                n_iters=n_iters,
                temperature=self.temperature * ratio ** (i + 1),
                # Potentials are in units of the temperature.
                init=(plan.u / ratio, plan.v),
                slot_mask=scene.slot_mask,
                input_mask=scene.input_mask,
            )
        return plan
