"""What all experiments have in common. Nothing here knows how training is run."""

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor, nn

from slotmesh.experiments.settings import InitName, Settings
from slotmesh.nn import FixedGaussian, LearnedGaussian, LearnedSlots, SharedSlot, SlotInitializer
from slotmesh.nn.noise import SharedGenerator

if TYPE_CHECKING:
    from PIL.Image import Image
    from torchmetrics import Metric

Split = Literal["train", "val", "test"]


class Source(Protocol):
    """Where samples come from: a world or a reader."""

    def sample(self, index: Any) -> Any:
        """The samples of these indices, as one batch."""
        ...


@dataclass(frozen=True)
class Goal:
    """The number that an experiment is about."""

    metric: str
    """Its name among the metrics."""
    higher: bool
    """Whether more is better."""


class Experiment(ABC):
    """One experiment of the paper: its model, data, loss and metrics.

    Args:
        settings: Of one run.
    """

    settings_type: ClassVar[type[Settings]]
    variants: ClassVar[tuple[str, ...]] = ("SA", "SA-SH", "SA-EMD", "SA-MESH")
    """Those of the paper's table."""
    goal: ClassVar[Goal]

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @classmethod
    @abstractmethod
    def preset(cls, task: str, variant: str, preset: str) -> Settings:
        """The settings that a run starts from."""

    @abstractmethod
    def build(self) -> nn.Module:
        """The model, with fresh weights."""

    @abstractmethod
    def source(self, split: Split, device: torch.device) -> tuple[Source, int | None]:
        """Where the samples of a split come from, and how many there are; None is no end."""

    @abstractmethod
    def losses(self, model: nn.Module, sample: Any, noise: torch.Generator) -> dict[str, Tensor]:
        """The scalar ``loss`` of a batch, and what else is worth a curve."""

    def reads(self, split: Split) -> frozenset[str] | None:
        """Fields of a sample that ``losses`` reads in training, ``judge`` otherwise; None: all."""
        return None

    @abstractmethod
    def metrics(self) -> "dict[str, Metric]":
        """Fresh metrics over a dataset, by the names that reports use."""

    @abstractmethod
    def judge(
        self, model: nn.Module, sample: Any, noise: torch.Generator, metrics: "dict[str, Metric]"
    ) -> dict[str, Tensor]:
        """Update the metrics with a batch; numbers of each sample ``(batch)``, ``loss`` first."""

    @abstractmethod
    def blind(self, sample: Any) -> nn.Module:
        """A model that looks at nothing, the best constant of a few training samples."""

    @abstractmethod
    def picture(self, model: nn.Module, sample: Any, noise: torch.Generator) -> "Image":
        """What the model makes of a few samples, to look at."""

    def fresh_model(self) -> nn.Module:
        """The model with the first weights of the run's seed, whatever was drawn before."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(mix(self.settings.seed, "weights", 0))
            return self.build()

    def noise(
        self,
        purpose: str,
        step: int,
        *,
        total: int,
        device: torch.device | str = "cpu",
        rank: int = 0,
        n_ranks: int = 1,
    ) -> SharedGenerator:
        """All randomness of one step: a pure function of the seed, the purpose and the step."""
        seed = mix(self.settings.seed, purpose, step)
        return SharedGenerator(device, seed=seed, rank=rank, n_ranks=n_ranks, total=total)


def mix(seed: int, purpose: str, step: int) -> int:
    """One seed from several numbers, so that no two purposes share their randomness."""
    text = f"{seed}/{purpose}/{step}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "little")


INITIALIZERS: dict[InitName, type[SlotInitializer]] = {
    "gaussian": LearnedGaussian,
    "fixed-gaussian": FixedGaussian,
    "learned-slots": LearnedSlots,
    "shared-slot": SharedSlot,
}
