"""Settings of the paper's variants: what the command line offers for each."""

from dataclasses import dataclass
from typing import Any, Literal

from slotmesh.nn import EMD, LearnedObjective, Mesh, Sinkhorn, SlotTransport, Softmax
from slotmesh.nn.transports.base import MarginalKind
from slotmesh.nn.transports.emd import Combine
from slotmesh.ops import CostKind
from slotmesh.ops.mesh import PotentialsMode


@dataclass(frozen=True)
class SoftmaxSettings:
    """SA: softmax over slots."""

    eps: float = 1e-8
    """Added to each attention before it is normalised over inputs."""

    def build(self) -> SlotTransport:
        """The transport with these settings."""
        return Softmax(eps=self.eps)


@dataclass(frozen=True)
class SinkhornSettings:
    """SA-SH: full Sinkhorn with learned marginals."""

    cost: CostKind = "l2"
    """Pairwise cost of slots and inputs."""
    cost_scale: float = 1.0
    """Factor of the cost."""
    n_iters: int = 5
    """Sinkhorn iterations."""
    temperature: float = 1.0
    """Strength of the entropy regularisation."""
    marginals: MarginalKind = "learned"
    """How much mass each slot and input has."""
    mass: float | None = None
    """Total mass; one unit a slot by default."""

    def build(self) -> SlotTransport:
        """The transport with these settings."""
        return Sinkhorn(**vars(self))


@dataclass(frozen=True)
class EMDSettings(SinkhornSettings):
    """SA-EMD: exact transport, with the gradient of a Sinkhorn plan beside it."""

    combine: Combine = "sum"
    """The paper's sum of both plans, their mean, the exact plan with the other's gradient, or the
    sum without a gradient."""
    approximate: float | None = None
    """Temperature of a Sinkhorn plan in place of the exact one; none for the exact one."""

    def build(self) -> SlotTransport:
        """The transport with these settings."""
        return EMD(**vars(self))


@dataclass(frozen=True)
class MeshSettings(SinkhornSettings):
    """SA-MESH: costs changed until their Sinkhorn plan has low entropy."""

    lr: float | None = 5.0
    """The paper's lambda: length of a MESH step over the whole matrix. None to set step instead."""
    step: float | None = None
    """Root-mean-square change of a cost in one MESH step, at any size; 1 breaks exact ties."""
    n_steps: int = 4
    """MESH steps."""
    noise: float = 1e-3
    """Standard deviation of the noise that breaks ties."""
    potentials: PotentialsMode = "detach"
    """What a MESH step hands on to the next: detach, reuse (with its graph) or fresh."""
    objective: Literal["entropy", "learned"] = "entropy"
    """What MESH makes small; a learned one is differentiated through all steps."""
    grad: Literal["straight_through", "implicit"] = "straight_through"
    """Gradient of the last plan, for the entropy: through its iterations, or as if converged."""

    def build(self) -> SlotTransport:
        """The transport with these settings."""
        options: dict[str, Any] = vars(self) | {"objective": None}
        if self.lr is not None and self.step is not None:
            raise ValueError(
                f"got both --transport.lr {self.lr} and --transport.step {self.step}. Pass either "
                "lr or step, not both: --transport.lr None turns lr off."
            )
        if self.objective == "learned":
            grad = "truncated" if self.potentials == "detach" else "unroll"
            options |= {"objective": LearnedObjective(), "grad": grad}
        return Mesh(**options)


Transport = SoftmaxSettings | SinkhornSettings | EMDSettings | MeshSettings

TRANSPORTS: dict[str, type[Transport]] = {
    "SA": SoftmaxSettings,
    "SA-SH": SinkhornSettings,
    "SA-EMD": EMDSettings,
    "SA-MESH": MeshSettings,
    "SA-fixed-noise": SoftmaxSettings,
    "SA-learned-noise": SoftmaxSettings,
}
"""The names of the paper, with the baselines of its video table."""
