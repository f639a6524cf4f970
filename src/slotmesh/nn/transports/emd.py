"""SA-EMD: slot attention by exact transport."""

from typing import Literal

from torch import Tensor

from slotmesh.nn.transports.base import MarginalKind, OptimalTransport, Scene
from slotmesh.ops import CostKind, Transport, emd, sinkhorn
from slotmesh.ops import _checks as checks

Combine = Literal["sum", "straight_through"]


class EMD(OptimalTransport):
    """SA-EMD: exact transport, which breaks ties, made learnable by a Sinkhorn plan beside it.

    Args:
        combine: ``"sum"``, the paper's ``emd(C) + sinkhorn(C)``: twice the mass, gradients through
            the Sinkhorn plan. ``"straight_through"``: the exact plan alone, with the gradient of
            the Sinkhorn plan.
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
        checks.check_choice("EMD", "combine", combine, ("sum", "straight_through"))
        self.combine: Combine = combine

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
        exact = emd(cost, a, scene.b, slot_mask=scene.slot_mask, input_mask=scene.input_mask)
        if self.combine == "sum":
            return exact.plan + soft.plan, exact
        return soft.plan + (exact.plan - soft.plan).detach(), exact
