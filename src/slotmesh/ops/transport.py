"""The result of every transport operation."""

from typing import NamedTuple

import torch
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
    """``(..., m, n)``: the cost for which the plan was computed; for MESH, the adjusted cost."""
    marginal_error: Tensor
    """``(...)``: fraction of misplaced mass, over both marginals."""
    n_iters: Tensor
    """``(...)``: iterations of the (last) Sinkhorn for each batch element; 0 for EMD."""
    converged: Tensor
    """``(...)``: whether ``marginal_error`` is within the tolerance (1e-3 if none was given);
    for EMD, whether the solver proved the plan optimal."""
    temperature: Tensor
    """``(...)``: the temperature; 0 for EMD."""

    @property
    def log_plan(self) -> Tensor:
        """Logarithm of the plan ``(..., m, n)``, for losses such as a negative log-likelihood.

        It is computed from the potentials, so its value and gradient are finite even where entries
        of the plan underflow to 0 and ``plan.log()`` gives infinities and NaN. It is -inf, with a
        gradient of zero, for padding, elements without mass and pairs that are not allowed, and for
        EMD wherever the plan is 0.

        Raises:
            ValueError: If a gradient is needed and the potentials have none, as with
                ``grad="implicit"``.

        Example:
            >>> import torch
            >>> from slotmesh import sinkhorn
            >>> t = sinkhorn(torch.tensor([[0.0, 900.0], [900.0, 0.0]], dtype=torch.float64))
            >>> t.plan.log()
            tensor([[0., -inf],
                    [-inf, 0.]], dtype=torch.float64)
            >>> t.log_plan
            tensor([[   0., -900.],
                    [-900.,    0.]], dtype=torch.float64)
        """
        graph = torch.is_grad_enabled() and self.plan.requires_grad
        if graph and not self.u.requires_grad:
            raise ValueError(
                "log_plan: the potentials of this transport carry no gradient, as with "
                "grad='implicit', so log_plan would have a wrong one. Use the default grad "
                "('unroll' for sinkhorn, 'straight_through' for mesh), or torch.no_grad() for the "
                "values alone."
            )
        soft = (self.temperature > 0)[..., None, None]
        tau = torch.where(self.temperature > 0, self.temperature, 1.0)[..., None, None]
        # Infinite costs have no derivative by the temperature.
        finite = self.cost.isfinite()
        cost = torch.where(finite, self.cost, 0.0).to(self.u.dtype)
        sums = self.u.unsqueeze(-1) + self.v.unsqueeze(-2)
        # A batch element without any mass has potentials all the same.
        some = (self.plan.detach() != 0).flatten(-2).any(-1)[..., None, None]
        log = torch.where(finite & sums.isfinite() & some, sums - cost / tau, -torch.inf)
        return torch.where(soft, log, self.plan.detach().to(log.dtype).log())

    def entropy(self, *, normalized: bool = False) -> Tensor:
        """Entropy of the plan ``(...)``; see :func:`slotmesh.ops.entropy`."""
        return plan_entropy(self.plan, normalized=normalized)
