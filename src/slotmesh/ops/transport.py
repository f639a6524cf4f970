"""The result of every transport operation."""

from typing import NamedTuple

from torch import Tensor

from slotmesh.ops.entropy import entropy as plan_entropy


class Transport(NamedTuple):
    r"""A transport plan, its potentials and how far it converged.

    Rows are slots, columns are inputs. For :func:`~slotmesh.sinkhorn` and :func:`~slotmesh.mesh`
    the potentials are logarithmic scalings, ``plan = exp(u[:, None] + v - cost / temperature)``;
    for :func:`~slotmesh.emd` they are the dual variables, ``u[:, None] + v <= cost`` with equality
    wherever the plan has mass.

    The plan has the dtype of the cost that was passed in; everything else keeps the precision it
    was computed in (float32, or float64 for a float64 cost).
    """

    plan: Tensor
    """``(..., m, n)``: the mass that slot i takes from input j."""
    u: Tensor
    """``(..., m)``: potentials of the slots."""
    v: Tensor
    """``(..., n)``: potentials of the inputs."""
    cost: Tensor
    """``(..., m, n)``: the cost that the plan belongs to; for MESH the adjusted one."""
    marginal_error: Tensor
    """``(...)``: share of the mass in the wrong place, for both marginals together."""
    n_iters: Tensor
    """``(...)``: iterations of the (last) Sinkhorn for each batch element; 0 for EMD."""
    converged: Tensor
    """``(...)``: whether ``marginal_error`` is within the tolerance (1e-3 if none was given);
    for EMD, whether the solver proved the plan optimal."""

    def entropy(self, *, normalized: bool = False) -> Tensor:
        """Entropy of the plan ``(...)``; see :func:`slotmesh.ops.entropy`."""
        return plan_entropy(self.plan, normalized=normalized)
