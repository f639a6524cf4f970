"""The variants of slot attention: one entry of :data:`VARIANTS` each.

The command line, presets and reports read that table. :func:`register_variant` adds to it from
outside the package.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

from slotmesh.nn import (
    EMD,
    FixedNoise,
    LearnedNoise,
    LearnedObjective,
    Mesh,
    Sinkhorn,
    SlotTransport,
    Softmax,
    Transition,
)
from slotmesh.nn.transports.base import MarginalKind
from slotmesh.nn.transports.emd import Combine
from slotmesh.ops import CostKind
from slotmesh.ops.mesh import PotentialsMode
from slotmesh.training.settings import positive


@dataclass(frozen=True)
class TransportSettings(ABC):
    """Settings of a transport, which the command line shows as ``--transport.NAME``."""

    @abstractmethod
    def build(self) -> SlotTransport:
        """The transport with these settings."""


@dataclass(frozen=True)
class SoftmaxSettings(TransportSettings):
    """SA: softmax over slots."""

    eps: float = 1e-8
    """Added to each attention before it is normalised over inputs."""

    def build(self) -> SlotTransport:
        """The transport with these settings."""
        return Softmax(eps=self.eps)


@dataclass(frozen=True)
class SinkhornSettings(TransportSettings):
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
    """Total mass; one unit per slot by default."""

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
    """SA-MESH: costs adjusted until their Sinkhorn plan has low entropy."""

    lr: float | None = 5.0
    """The paper's lambda: length of a MESH step over the whole matrix. None to set step instead."""
    step: float | None = None
    """Root-mean-square change of a cost in one MESH step, at any size; 1 breaks exact ties."""
    n_steps: int = 4
    """MESH steps."""
    noise: float = 1e-3
    """Standard deviation of the noise that breaks ties."""
    potentials: PotentialsMode = "detach"
    """Potentials that a MESH step starts from: those of the last step without their graph (detach),
    with it (reuse), or zeros (fresh)."""
    objective: Literal["entropy", "learned"] = "entropy"
    """What MESH minimises; a learned objective is differentiated through all steps."""
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


@dataclass(frozen=True)
class TransitionSettings:
    """Slots are handed on from frame to frame as they are."""

    def build(self) -> Transition:
        """The transition with these settings."""
        return Transition()


@dataclass(frozen=True)
class FixedNoiseSettings(TransitionSettings):
    """Noise is added to the slots that are handed on."""

    std: float = 0.1
    """Its standard deviation, which the paper does not give."""

    def build(self) -> Transition:
        """The transition with these settings."""
        positive("transition.std", self.std)
        return FixedNoise(self.std)


@dataclass(frozen=True)
class LearnedNoiseSettings(TransitionSettings):
    """The next slots are drawn from a Gaussian that is predicted from the last."""

    prior_std: float = 0.1
    """Standard deviation of the prior."""
    kl_weight: float = 1e-4
    """Weight of the divergence from the prior in the loss."""

    def build(self) -> Transition:
        """The transition with these settings."""
        positive("transition.prior_std", self.prior_std)
        positive("transition.kl_weight", self.kl_weight)
        return LearnedNoise(prior_std=self.prior_std)


@dataclass(frozen=True)
class Variant:
    """One slot attention that tasks can be trained with."""

    name: str
    """On the command line and in reports."""
    transport: type[TransportSettings]
    """Settings of its cross-attention; their defaults are where presets start."""
    colour: str = "#333333"
    """In figures."""
    transition: TransitionSettings | None = None
    """How slots get from frame to frame; a variant that has one is for videos only."""


VARIANTS: dict[str, Variant] = {
    variant.name: variant
    for variant in (
        Variant("SA", SoftmaxSettings, "#7a869a"),
        Variant("SA-fixed-noise", SoftmaxSettings, "#4d9a8a", FixedNoiseSettings()),
        Variant("SA-learned-noise", SoftmaxSettings, "#8a63b8", LearnedNoiseSettings()),
        Variant("SA-SH", SinkhornSettings, "#2f7fb8"),
        Variant("SA-EMD", EMDSettings, "#c7832b"),
        Variant("SA-MESH", MeshSettings, "#b3245f"),
    )
}
"""All variants by name, in the order of the paper's tables."""


def register_variant(variant: Variant) -> None:
    """Offer a variant to every task.

    Raises:
        ValueError: If there is one of that name.

    Example:
        >>> from slotmesh.training.variants import SinkhornSettings, Variant, register_variant
        >>> register_variant(Variant("SA-20", type("Twenty", (SinkhornSettings,), {})))
        >>> from slotmesh.training.tasks import preset
        >>> preset("clevr-properties", "SA-20").variant
        'SA-20'
        >>> from slotmesh.training.variants import VARIANTS
        >>> del VARIANTS["SA-20"]
    """
    if variant.name in VARIANTS:
        raise ValueError(f"There is a variant {variant.name!r} already: choose another name.")
    VARIANTS[variant.name] = variant
