"""SA-MESH: Sinkhorn on costs that are adjusted for low entropy."""

from typing import Any

import torch
from torch import Tensor

from slotmesh.nn.noise import gaussian
from slotmesh.nn.objectives import MeshObjective
from slotmesh.nn.transports.base import MarginalKind, OptimalTransport, TransportContext
from slotmesh.ops import CostKind, Transport, checks, mesh
from slotmesh.ops.mesh import DEFAULT_STEP, MeshGrad, PotentialsMode
from slotmesh.ops.problem import compute_dtype


class Mesh(OptimalTransport):
    """SA-MESH, the paper's method and the default: it breaks ties, and is differentiable and fast.

    Args:
        step: Root-mean-square change of an entry of the cost in one MESH step, as for
            :func:`slotmesh.mesh`; default: the temperature, unless ``lr`` is given. For training,
            smaller steps (0.04 to 0.13) work better.
        lr: The paper's lambda, instead of ``step``: the Frobenius norm of one step over the whole
            matrix.
        n_steps: Number of MESH steps.
        noise: Standard deviation of the noise that breaks ties, drawn once per forward pass. Even
            with 0, equal slots may not stay equal: a matrix product can round their costs
            differently, and MESH amplifies the difference.
        potentials: See :func:`slotmesh.mesh`.
        grad: ``"straight_through"`` (the paper's), ``"implicit"`` (more stable if gradients pass
            through several iterations of slot attention), ``"unroll"`` or ``"truncated"``; see
            :func:`slotmesh.mesh`.
        objective: What to minimise instead of the entropy:
            :class:`~slotmesh.nn.LearnedObjective` or :class:`~slotmesh.nn.SlotSimilarity`. They
            learn only with ``grad="unroll"`` or ``"truncated"``.
        cost: Kind of pairwise cost, see :func:`slotmesh.ops.pairwise_cost`.
        cost_scale: Factor by which costs are multiplied.
        n_iters: Number of Sinkhorn iterations in each MESH step, and for the plan at the end; the
            default is that of :func:`slotmesh.mesh`.
        temperature: Temperature of every Sinkhorn.
        marginals: ``"learned"`` (by one small network for slots and one for inputs) or
            ``"uniform"``.
        mass: Total mass; default one unit per slot.

    Example:
        >>> import torch
        >>> from slotmesh import SlotAttention
        >>> from slotmesh.nn import Mesh, SharedSlot
        >>> attention = SlotAttention(64, 64, 4, transport=Mesh(), init=SharedSlot())
        >>> slots = attention(torch.randn(1, 50, 64)).slots  # equal slots come out different
        >>> bool((slots[0, 0] - slots[0, 1]).abs().max() > 1e-3)
        True
    """

    def __init__(
        self,
        *,
        step: float | None = None,
        lr: float | None = None,
        n_steps: int = 4,
        noise: float = 1e-3,
        potentials: PotentialsMode | None = None,
        grad: MeshGrad = "straight_through",
        objective: MeshObjective | None = None,
        cost: CostKind = "l2",
        cost_scale: float = 1.0,
        n_iters: int | None = None,
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
        step, lr = checks.step_or_lr("Mesh", step, lr, DEFAULT_STEP * self.temperature)
        noise = checks.as_real("Mesh", "noise", noise)
        n_steps = checks.as_count("Mesh", "n_steps", n_steps, 0)
        if objective is not None:
            say = "LearnedObjective(), SlotSimilarity() or another MeshObjective"
            checks.check_instance("Mesh", "objective", objective, MeshObjective, say)
        if objective is not None and objective.trainable and grad not in ("unroll", "truncated"):
            raise ValueError(
                f"Mesh: a {type(objective).__name__} gets no gradient with "
                f"grad='{grad}'. Pass grad='unroll', or trainable=False to the objective."
            )
        self.step = step
        self.lr = lr
        self.n_steps = n_steps
        self.noise = noise
        self.potentials: PotentialsMode = checks.check_gradient("Mesh", grad, potentials)
        self.grad: MeshGrad = grad
        self.objective = objective

    @classmethod
    def upgraded(cls, settings: dict[str, Any]) -> dict[str, Any]:
        """Update old settings: unrolling with detached potentials is now called "truncated"."""
        if settings.get("grad") == "unroll" and settings.get("potentials") == "detach":
            return settings | {"grad": "truncated"}
        return settings

    def build(self, input_dim: int, slot_dim: int, hidden_dim: int) -> None:
        """Make the marginal heads, and bind the objective."""
        super().build(input_dim, slot_dim, hidden_dim)
        if self.objective is not None:
            self.objective.bind(slot_dim=slot_dim)

    def begin(
        self,
        inputs: Tensor,
        n_slots: int,
        *,
        slot_mask: Tensor | None = None,
        input_mask: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> TransportContext:
        """Compute the inputs' marginal and draw the noise, which all iterations share."""
        context = super().begin(
            inputs, n_slots, slot_mask=slot_mask, input_mask=input_mask, generator=generator
        )
        if self.noise == 0:
            return context
        shape = (*inputs.shape[:-2], n_slots, inputs.shape[-2])
        like = inputs.new_empty(shape, dtype=compute_dtype(inputs))
        return context._replace(noise=self.noise * gaussian(like, generator))

    def forward(
        self, queries: Tensor, keys: Tensor, slots: Tensor, context: TransportContext
    ) -> tuple[Tensor, Transport]:
        """Compute the MESH plan of one iteration."""
        cost, a = self.pose(queries, keys, slots, context)
        objective = None
        if self.objective is not None:
            objective = self.objective.objective(
                slots, lambda: self.sinkhorn(cost, a, context).plan, context.slot_mask
            )
        t = mesh(
            cost,
            a,
            context.b,
            lr=self.lr,
            step=self.step,
            n_steps=self.n_steps,
            n_iters=self.n_iters,
            temperature=self.temperature,
            noise=0.0 if context.noise is None else context.noise,
            potentials=self.potentials,
            objective=objective,
            grad=self.grad,
            slot_mask=context.slot_mask,
            input_mask=context.input_mask,
        )
        return t.plan, t
