"""SA-SH: slot attention by full Sinkhorn."""

from torch import Tensor

from slotmesh.nn.transports.base import MarginalKind, OptimalTransport, Scene
from slotmesh.ops import CostKind, Transport, sinkhorn
from slotmesh.ops import _checks as checks
from slotmesh.ops.sinkhorn import SinkhornGrad


class Sinkhorn(OptimalTransport):
    """SA-SH: entropy-regularised optimal transport with learned marginals.

    Set-equivariant like SA, but slots compete for inputs until the competition is settled, and
    the marginals can leave out background inputs and slots that are not needed.

    Args:
        cost: Kind of pairwise cost, see :func:`slotmesh.ops.pairwise_cost`.
        cost_scale: Factor of the cost (the paper's video model: cosine times 6).
        n_iters: Sinkhorn iterations.
        temperature: Strength of the regularisation.
        marginals: ``"learned"`` by a small network a side, or ``"uniform"``.
        mass: Total mass; default one unit a slot.
        grad: See :func:`slotmesh.sinkhorn`.

    Example:
        >>> import torch
        >>> from slotmesh import SlotAttention
        >>> from slotmesh.nn import Sinkhorn
        >>> attention = SlotAttention(64, 64, 7, transport=Sinkhorn(n_iters=10))
        >>> attention(torch.randn(2, 100, 64)).slots.shape
        torch.Size([2, 7, 64])
    """

    def __init__(
        self,
        *,
        cost: CostKind = "l2",
        cost_scale: float = 1.0,
        n_iters: int = 5,
        temperature: float = 1.0,
        marginals: MarginalKind = "learned",
        mass: float | None = None,
        grad: SinkhornGrad = "unroll",
    ) -> None:
        super().__init__(
            cost=cost,
            cost_scale=cost_scale,
            n_iters=n_iters,
            temperature=temperature,
            marginals=marginals,
            mass=mass,
        )
        checks.check_choice("Sinkhorn", "grad", grad, ("unroll", "implicit"))
        self.grad: SinkhornGrad = grad

    def forward(
        self, queries: Tensor, keys: Tensor, slots: Tensor, scene: Scene
    ) -> tuple[Tensor, Transport]:
        """One Sinkhorn."""
        cost, a = self.pose(queries, keys, slots, scene)
        t = sinkhorn(
            cost,
            a,
            scene.b,
            n_iters=self.n_iters,
            temperature=self.temperature,
            slot_mask=scene.slot_mask,
            input_mask=scene.input_mask,
            grad=self.grad,
        )
        return t.plan, t
