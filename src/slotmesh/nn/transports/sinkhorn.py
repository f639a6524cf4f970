"""SA-SH: slot attention by Sinkhorn's algorithm."""

from torch import Tensor

from slotmesh.nn.transports.base import MarginalKind, OptimalTransport, TransportContext
from slotmesh.ops import CostKind, Transport, checks
from slotmesh.ops.relaxed import relaxation
from slotmesh.ops.sinkhorn import SinkhornGrad


class Sinkhorn(OptimalTransport):
    """SA-SH: entropy-regularised optimal transport with learned marginals.

    Set-equivariant like SA, but slots compete for inputs until both marginals hold, and the
    marginals can leave out background inputs and unneeded slots.

    Args:
        cost: Kind of pairwise cost, see :func:`slotmesh.ops.pairwise_cost`.
        cost_scale: Factor of the cost (the paper's video model: cosine times 6).
        n_iters: Sinkhorn iterations.
        temperature: Strength of the regularisation.
        marginals: ``"learned"`` by one small network per side, or ``"uniform"``.
        mass: Total mass; default one unit per slot.
        grad: See :func:`slotmesh.sinkhorn`.
        share: Share of the mass that slots take: what is left of each input may be background. See
            :func:`slotmesh.sinkhorn`, also for ``penalty``.
        penalty: Lets slots and inputs have more or less than their mass.

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
        """One Sinkhorn."""
        cost, a = self.pose(queries, keys, slots, context)
        relaxed = {"share": self.share, "penalty": self.penalty}
        t = self.sinkhorn(cost, a, context, grad=self.grad, **relaxed)
        return t.plan, t
