"""SA: the softmax attention of the original slot attention."""

import torch
from torch import Tensor

from slotmesh.nn.transports.base import SlotTransport, TransportContext
from slotmesh.ops import Transport, checks
from slotmesh.ops.problem import compute_dtype, full_precision, marginal_error


class Softmax(SlotTransport):
    r"""SA: dot products divided by :math:`\sqrt d`, softmax over slots, normalised over inputs.

    This is one iteration of Sinkhorn on the negative dot product with uniform marginals. It is
    set-equivariant: equal slots stay equal.

    Args:
        eps: Added to each attention before it is normalised over inputs, as in the original code,
            so that a slot that no input chooses attends to all of them.

    Example:
        >>> from slotmesh import SlotAttention
        >>> from slotmesh.nn import Softmax
        >>> SlotAttention(64, 64, 7, transport=Softmax()).transport
        Softmax(eps=1e-08)
    """

    def __init__(self, *, eps: float = 1e-8) -> None:
        super().__init__()
        self.eps = checks.as_real("Softmax", "eps", eps)

    def forward(
        self, queries: Tensor, keys: Tensor, slots: Tensor, context: TransportContext
    ) -> tuple[Tensor, Transport]:
        """Compute the attention of one iteration, as a transport with uniform marginals."""
        dtype = compute_dtype(queries)
        with full_precision(queries):
            scores = queries.to(dtype) @ keys.to(dtype).mT * queries.shape[-1] ** -0.5
            lowest = torch.finfo(dtype).min
            masked = scores
            if context.slot_mask is not None:
                masked = masked.masked_fill(~context.slot_mask.unsqueeze(-1), lowest)
            v = -torch.logsumexp(masked, -2)
            share = torch.softmax(masked, -2) + self.eps
            if context.slot_mask is not None:
                share = share * context.slot_mask.unsqueeze(-1)
            if context.input_mask is not None:
                share = share * context.input_mask.unsqueeze(-2)
            total = share.sum(-1, keepdim=True)
            plan = share / total.clamp(min=torch.finfo(dtype).tiny)
        a = plan.detach().sum(-1)
        inputs = torch.ones_like(v) if context.input_mask is None else context.input_mask.to(dtype)
        b = a.sum(-1, keepdim=True) * inputs / inputs.sum(-1, keepdim=True)
        error = marginal_error(plan, a, b)
        # Autocast leaves slots in float32, but not queries.
        plan = plan.to(slots.dtype)
        return plan, Transport(
            plan=plan,
            u=-total.clamp(min=torch.finfo(dtype).tiny).log().squeeze(-1),
            v=v,
            cost=-scores,
            marginal_error=error,
            n_iters=torch.ones(error.shape, dtype=torch.int64, device=error.device),
            converged=error <= 1e-3,
            temperature=torch.ones_like(error),
        )
