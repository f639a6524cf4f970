"""SA-MESH: slot attention by Sinkhorn on costs changed to have low entropy."""

import torch
from torch import Tensor

from slotmesh.nn.objectives import MeshObjective
from slotmesh.nn.transports.base import MarginalKind, OptimalTransport, Scene
from slotmesh.ops import CostKind, Transport, mesh, sinkhorn
from slotmesh.ops import _checks as checks
from slotmesh.ops._problem import compute_dtype
from slotmesh.ops.mesh import MeshGrad, PotentialsMode, gaussian


class Mesh(OptimalTransport):
    """SA-MESH: breaks ties, fast, differentiable. The paper's method, and the default.

    Args:
        step: Root-mean-square change of a cost in one MESH step, whatever the size of the matrix.
            Default 0.05 where ``lr`` is not given either.
        lr: The paper's lambda, instead of ``step``: the norm of the change of the whole matrix.
        n_steps: MESH steps.
        noise: Standard deviation of the noise that breaks ties, drawn once a forward pass. 0 adds
            none, but does not keep equal slots equal: their costs may differ by the rounding of a
            matrix product, which is amplified instead, and differently on each processor.
        potentials: See :func:`slotmesh.mesh`, like ``grad``.
        grad: ``"straight_through"`` (the paper's), ``"implicit"`` (steadier where gradients go
            through several iterations of slot attention) or ``"unroll"``.
        objective: Something else to make small than the entropy:
            :class:`~slotmesh.nn.LearnedObjective` or :class:`~slotmesh.nn.SlotSimilarity`. They
            learn only with ``grad="unroll"``.
        cost: As for :class:`Sinkhorn`, like the rest.
        cost_scale: Factor of the cost.
        n_iters: Sinkhorn iterations in each MESH step, and for the plan at the end.
        temperature: Of every Sinkhorn.
        marginals: ``"learned"`` or ``"uniform"``.
        mass: Total mass; default one unit a slot.

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
        potentials: PotentialsMode = "detach",
        grad: MeshGrad = "straight_through",
        objective: MeshObjective | None = None,
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
        if step is not None and lr is not None:
            raise ValueError(
                f"Mesh: both step={step} and lr={lr} came, expected one of them. Leave out lr, or "
                "step for parity with the paper."
            )
        if step is None and lr is None:
            step = 0.05
        step = None if step is None else checks.as_real("Mesh", "step", step)
        lr = None if lr is None else checks.as_real("Mesh", "lr", lr)
        noise = checks.as_real("Mesh", "noise", noise)
        n_steps = checks.as_count("Mesh", "n_steps", n_steps, 0)
        checks.check_gradient("Mesh", grad, potentials)
        if objective is not None:
            say = "LearnedObjective(), SlotSimilarity() or another MeshObjective"
            checks.check_instance("Mesh", "objective", objective, MeshObjective, say)
        if objective is not None and objective.trainable and grad != "unroll":
            raise ValueError(
                f"Mesh: a {type(objective).__name__} gets no gradient with "
                f"grad='{grad}'. Pass grad='unroll', or trainable=False to the objective."
            )
        self.step = step
        self.lr = lr
        self.n_steps = n_steps
        self.noise = noise
        self.potentials: PotentialsMode = potentials
        self.grad: MeshGrad = grad
        self.objective = objective

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
    ) -> Scene:
        """The inputs' marginal, and the noise that all iterations share."""
        scene = super().begin(
            inputs, n_slots, slot_mask=slot_mask, input_mask=input_mask, generator=generator
        )
        if self.noise == 0:
            return scene
        shape = (*inputs.shape[:-2], n_slots, inputs.shape[-2])
        like = inputs.new_empty(shape, dtype=compute_dtype(inputs))
        return scene._replace(noise=self.noise * gaussian(like, generator))

    def forward(
        self, queries: Tensor, keys: Tensor, slots: Tensor, scene: Scene
    ) -> tuple[Tensor, Transport]:
        """One MESH."""
        cost, a = self.pose(queries, keys, slots, scene)
        objective = None
        if self.objective is not None:
            objective = self.objective.objective(
                slots, lambda: self._unchanged_plan(cost, a, scene), scene.slot_mask
            )
        t = mesh(
            cost,
            a,
            scene.b,
            lr=0.0 if self.lr is None else self.lr,
            step=self.step,
            n_steps=self.n_steps,
            n_iters=self.n_iters,
            temperature=self.temperature,
            noise=0.0 if scene.noise is None else scene.noise,
            potentials=self.potentials,
            objective=objective,
            grad=self.grad,
            slot_mask=scene.slot_mask,
            input_mask=scene.input_mask,
        )
        return t.plan, t

    def _unchanged_plan(self, cost: Tensor, a: Tensor | None, scene: Scene) -> Tensor:
        return sinkhorn(
            cost,
            a,
            scene.b,
            n_iters=self.n_iters,
            temperature=self.temperature,
            slot_mask=scene.slot_mask,
            input_mask=scene.input_mask,
        ).plan
