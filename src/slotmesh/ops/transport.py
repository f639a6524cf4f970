"""What every transport operation returns."""

from typing import NamedTuple

from torch import Tensor

from slotmesh.ops.entropy import entropy as plan_entropy


class Transport(NamedTuple):
    r"""A transport plan and how it came about.

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
    """``(..., m, n)``: the cost that the plan belongs to; for MESH the changed one."""
    marginal_error: Tensor
    """``(...)``: share of the mass that is in the wrong place, both marginals together."""
    n_iters: Tensor
    """``(...)``: iterations of the (last) Sinkhorn that each batch element took; 0 for EMD."""
    converged: Tensor
    """``(...)``: whether ``marginal_error`` is within the tolerance (1e-3 where none was given);
    for EMD, whether the solver proved the plan optimal."""

    def entropy(self, *, normalized: bool = False) -> Tensor:
        """Entropy of the plan ``(...)``; see :func:`slotmesh.ops.entropy`."""
        return plan_entropy(self.plan, normalized=normalized)
