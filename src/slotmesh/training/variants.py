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
from slotmesh.palette import VARIANT_COLOURS
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
    """SA-SH: Sinkhorn, by default with learned marginals."""

    cost: CostKind = "l2"
    """Pairwise cost of slots and inputs."""
    cost_scale: float = 1.0
    """Factor by which costs are multiplied."""
    n_iters: int = 5
    """Number of Sinkhorn iterations."""
    temperature: float = 1.0
    """Strength of the entropy regularisation."""
    marginals: MarginalKind = "learned"
    """Masses of slots and inputs: learned or uniform."""
    mass: float | None = None
    """Total mass; by default, one unit per slot."""

    def build(self) -> SlotTransport:
        """The transport with these settings."""
        return Sinkhorn(**vars(self))


@dataclass(frozen=True)
class EMDSettings(SinkhornSettings):
    """SA-EMD: exact transport, with the gradient of a Sinkhorn plan."""

    combine: Combine = "sum"
    """How to combine the exact and the Sinkhorn plan: their sum (the paper's), their mean, the
    exact plan with the gradient of the other (straight_through), or the sum without a gradient
    (detached)."""
    approximate: float | None = None
    """Replace the exact plan by a Sinkhorn plan at this temperature."""

    def build(self) -> SlotTransport:
        """The transport with these settings."""
        return EMD(**vars(self))


@dataclass(frozen=True)
class MeshSettings(SinkhornSettings):
    """SA-MESH: costs adjusted until their Sinkhorn plan has low entropy."""

    lr: float | None = 5.0
    """The paper's lambda: norm of a MESH step over the whole matrix."""
    step: float | None = None
    """Root-mean-square change of an entry in a MESH step, independent of the size of the matrix; a
    step as large as the temperature breaks exact ties. Replaces lr; if lr and step are both None,
    it is the temperature."""
    n_steps: int = 4
    """Number of MESH steps."""
    noise: float = 1e-3
    """Standard deviation of the noise that breaks ties."""
    potentials: PotentialsMode = "detach"
    """Potentials that a MESH step starts from: those of the previous step without their graph
    (detach) or with it (reuse), or zeros (fresh)."""
    objective: Literal["entropy", "learned"] = "entropy"
    """What MESH minimises; a learned objective is differentiated through all steps."""
    grad: Literal["straight_through", "implicit"] = "straight_through"
    """How to differentiate the last plan: through its iterations (straight_through), or as if it
    had converged (implicit). A learned objective is always unrolled."""

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
    """Slots are passed from frame to frame unchanged."""

    def build(self) -> Transition:
        """The transition with these settings."""
        return Transition()


@dataclass(frozen=True)
class FixedNoiseSettings(TransitionSettings):
    """Noise is added to slots between frames."""

    std: float = 0.1
    """Standard deviation of the noise, which the paper does not give."""

    def build(self) -> Transition:
        """The transition with these settings."""
        positive("transition.std", self.std)
        return FixedNoise(self.std)


@dataclass(frozen=True)
class LearnedNoiseSettings(TransitionSettings):
    """Slots are drawn from a Gaussian that is predicted from those of the previous frame."""

    prior_std: float = 0.1
    """Standard deviation of the prior."""
    kl_weight: float = 1e-4
    """Weight of the Kullback-Leibler divergence from the prior in the loss."""

    def build(self) -> Transition:
        """The transition with these settings."""
        positive("transition.prior_std", self.prior_std)
        positive("transition.kl_weight", self.kl_weight)
        return LearnedNoise(prior_std=self.prior_std)


@dataclass(frozen=True)
class Variant:
    """A variant of slot attention that tasks can be trained with."""

    name: str
    """Name on the command line and in reports."""
    transport: type[TransportSettings]
    """Settings of its transport; presets start from their defaults."""
    colour: str = "#333333"
    """Colour in figures."""
    transition: TransitionSettings | None = None
    """How slots pass from frame to frame; a variant that has one is for videos only."""


VARIANTS: dict[str, Variant] = {
    variant.name: variant
    for variant in (
        Variant("SA", SoftmaxSettings, VARIANT_COLOURS["SA"]),
        Variant("SA-fixed-noise", SoftmaxSettings, "#4d9a8a", FixedNoiseSettings()),
        Variant("SA-learned-noise", SoftmaxSettings, "#8a63b8", LearnedNoiseSettings()),
        Variant("SA-SH", SinkhornSettings, VARIANT_COLOURS["SA-SH"]),
        Variant("SA-EMD", EMDSettings, VARIANT_COLOURS["SA-EMD"]),
        Variant("SA-MESH", MeshSettings, VARIANT_COLOURS["SA-MESH"]),
    )
}
"""All variants by name, in the order of the paper's tables."""


def register_variant(variant: Variant) -> None:
    """Make a variant available to every task.

    Raises:
        ValueError: If the name is taken.

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
        raise ValueError(f"A variant named {variant.name!r} already exists. Choose another name.")
    VARIANTS[variant.name] = variant
