"""Entropy of transport plans."""

import torch
from torch import Tensor

from slotmesh.ops import checks
from slotmesh.ops.problem import compute_dtype


def entropy(plan: Tensor, *, normalized: bool = False) -> Tensor:
    r"""Entropy of a transport plan, :math:`H(P) = -\sum_{ij} P_{ij} \log P_{ij}`.

    Args:
        plan: Masses ``(..., m, n)`` of at least 0; zeros (padding) contribute nothing.
        normalized: Return a number between 0 and 1 instead, which depends neither on the size nor
            on the mass of the plan. 1: slots and inputs are independent, nothing is decided.
            0: each input goes entirely to one slot, or each slot takes from one input only.
            It is :math:`1 - I / \min(H(a), H(b))`, with :math:`I` the mutual information of the
            plan scaled to mass 1 and :math:`a`, :math:`b` its row and column sums. For a square
            plan whose rows and columns sum to 1 this is the paper's :math:`H(P) / (m \log m)`.

    Returns:
        ``(...)``, one number per plan.

    Example:
        >>> import torch
        >>> from slotmesh.ops import entropy
        >>> entropy(torch.full((2, 2), 0.5))
        tensor(1.3863)
        >>> entropy(torch.full((2, 2), 0.5), normalized=True)
        tensor(1.)
        >>> entropy(torch.eye(2), normalized=True)
        tensor(0.)
    """
    checks.check_matrix("entropy", "plan", plan)
    checks.check_finite("entropy", "plan", plan, "A plan holds the mass sent from input to slot.")
    if checks.can_read_values(plan) and bool((plan < 0).any()):
        raise ValueError(
            f"entropy: plan has a negative entry ({plan.min().item():.4g}), expected masses of at "
            "least 0. Pass the plan itself, not its logarithm or its cost."
        )
    p = plan.to(compute_dtype(plan))
    if not normalized:
        return _entr(p).sum((-2, -1))
    p = p / p.sum((-2, -1), keepdim=True).clamp(min=torch.finfo(p.dtype).tiny)
    rows, columns = _entr(p.sum(-1)).sum(-1), _entr(p.sum(-2)).sum(-1)
    most, least = torch.minimum(rows, columns), torch.maximum(rows, columns)
    # A marginal with all mass in one place has entropy 0 up to the rounding of its sum.
    rounding = 64 * torch.finfo(p.dtype).eps
    undecided = (_entr(p).sum((-2, -1)) - least) / most.clamp(min=rounding)
    return torch.where(most > rounding, undecided.clamp(0.0, 1.0), 0.0)


def _entr(p: Tensor) -> Tensor:
    """-p log p with 0 at 0, and a finite gradient there (torch.special.entr has none)."""
    positive = p > 0
    return torch.where(positive, -p * torch.where(positive, p, 1.0).log(), 0.0)
