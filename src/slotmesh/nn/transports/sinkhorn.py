"""SA-SH: entropy-regularised transport by Sinkhorn's algorithm."""

from torch import Tensor

from slotmesh.nn.transports.base import MarginalKind, OptimalTransport, TransportContext
from slotmesh.ops import CostKind, Transport, checks
from slotmesh.ops.relaxed import relaxation
from slotmesh.ops.sinkhorn import SinkhornGrad


class Sinkhorn(OptimalTransport):
    """SA-SH: entropy-regularised optimal transport with learned marginals.

    It is set-equivariant like SA, but slots compete for inputs until both marginals hold, and
    learned marginals can ignore background inputs and unneeded slots.

    Args:
        cost: Kind of pairwise cost, see :func:`slotmesh.ops.pairwise_cost`.
        cost_scale: Factor by which costs are multiplied (the paper's video model: cosine times 6).
        n_iters: Number of Sinkhorn iterations.
        temperature: Strength of the regularisation.
        marginals: ``"learned"`` (by one small network for slots and one for inputs) or
            ``"uniform"``.
        mass: Total mass; default one unit per slot.
        grad: See :func:`slotmesh.sinkhorn`.
        share: Transport only this share of the mass, and leave the rest to the background; see
            :func:`slotmesh.sinkhorn`.
        penalty: Let sums differ from the masses at this cost; see :func:`slotmesh.sinkhorn`.

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
        share: float | None = None,
        penalty: float | tuple[float, float] | None = None,
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
        if share is not None or penalty is not None:
            relaxation("Sinkhorn", share, penalty, grad)  # for its errors
        self.grad: SinkhornGrad = grad
        self.share = checks.plain(share)
        several = isinstance(penalty, tuple | list)
        self.penalty = tuple(map(checks.plain, penalty)) if several else checks.plain(penalty)

    def forward(
        self, queries: Tensor, keys: Tensor, slots: Tensor, context: TransportContext
    ) -> tuple[Tensor, Transport]:
        """Compute the Sinkhorn plan of one iteration."""
        cost, a = self.pose(queries, keys, slots, context)
        relaxed = {"share": self.share, "penalty": self.penalty}
        t = self.sinkhorn(cost, a, context, grad=self.grad, **relaxed)
        return t.plan, t
