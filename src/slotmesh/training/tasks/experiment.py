"""The base class of tasks, which is independent of the training loop."""

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeVar

import torch
from torch import Tensor, nn

from slotmesh.nn import FixedGaussian, LearnedGaussian, LearnedSlots, SharedSlot, SlotInitializer
from slotmesh.nn.noise import SharedGenerator
from slotmesh.training.places import check_fits
from slotmesh.training.published import Row
from slotmesh.training.settings import InitName, Settings
from slotmesh.training.variants import VARIANTS

if TYPE_CHECKING:
    from PIL.Image import Image
    from torchmetrics import Metric

    from slotmesh.metrics import SlotUsage
    from slotmesh.report.mosaic import Mosaic

Split = Literal["train", "val", "test"]
S = TypeVar("S", bound=Settings)


class Source(Protocol):
    """A source of samples: a world or a reader."""

    def sample(self, index: Any) -> Any:
        """The samples of these indices, as one batch."""
        ...


@dataclass(frozen=True)
class Goal:
    """The main metric of a task."""

    metric: str
    """Name of the metric."""
    higher: bool
    """Whether higher is better."""


class Experiment(ABC):
    """A task: its model, data, loss and metrics. ``TASKS`` has one entry per subclass."""

    name: ClassVar[str]
    """Name on the command line."""
    title: str
    """Name in reports."""
    about: str
    """Description of the task in a sentence or two, for reports."""
    how_to_read: ClassVar[str] = ""
    """Description of the pictures of samples, for reports."""
    settings_type: ClassVar[type[Settings]]
    goal: Goal
    published: ClassVar[tuple[Row, ...]] = ()
    """Results of a paper, to compare runs with."""
    has_world: ClassVar[bool] = True
    """Whether there is a world to train on; otherwise ``--data.root`` is required."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @classmethod
    def variants(cls) -> tuple[str, ...]:
        """Names of the variants that the task supports."""
        video = "transition" in cls.settings_type.__dataclass_fields__
        return tuple(
            name for name, variant in VARIANTS.items() if video or variant.transition is None
        )

    @classmethod
    @abstractmethod
    def preset(cls, variant: str, preset: str) -> Settings:
        """The default settings of a run: those of ``quick`` or ``paper``."""

    @classmethod
    def suited(cls, start: S, root: Path, size: int | None = None, masks: Path | None = None) -> S:
        """A preset with defaults that depend on the data, such as the number of steps.

        Args:
            start: From :meth:`preset`.
            root: The data.
            size: Size of the images, if the caller sets it.
            masks: Folder of the masks, if the caller sets it.
        """
        return start

    def about_data(self) -> str | None:
        """A message about the data to print before training, or None."""
        settings: Any = self.settings
        if not getattr(settings.data, "easy", False):
            return None
        paper: Any = type(self).preset(settings.variant, "paper")
        more = paper.model.n_slots != settings.model.n_slots
        return (
            "Scenes are from the easy version of the world, with a few large objects in clear "
            "colours. For the paper's scenes, train with --data.no-easy"
            f"{f' --model.n-slots {paper.model.n_slots}' if more else ''}."
        )

    def next_command(self) -> tuple[str, ...]:
        """The command to suggest after training."""
        return ("slotmesh", "evaluate", str(self.settings.folder))

    def check_data(self) -> None:  # noqa: B027 (most have nothing to check)
        """Raise a ValueError, before anything is written, if the data cannot be trained on."""

    @abstractmethod
    def build(self) -> nn.Module:
        """The model, with new weights."""

    @abstractmethod
    def source(self, split: Split, device: torch.device) -> tuple[Source, int | None]:
        """The source of a split's samples, and how many there are; None if endless."""

    @abstractmethod
    def losses(self, model: nn.Module, sample: Any, noise: torch.Generator) -> dict[str, Tensor]:
        """Compute the scalar ``loss`` of a batch, and any other numbers to log."""

    def reads(self, split: Split) -> frozenset[str] | None:
        """Fields of a sample that ``losses`` (train) or ``judge`` (else) reads; None for all."""
        return None

    @abstractmethod
    def metrics(self) -> "dict[str, Metric]":
        """New metrics over a dataset, by the names that reports use."""

    @abstractmethod
    def judge(
        self, model: nn.Module, sample: Any, noise: torch.Generator, metrics: "dict[str, Metric]"
    ) -> dict[str, Tensor]:
        """Update the metrics with a batch; return values per sample ``(batch)``, ``loss`` first."""

    @abstractmethod
    def blind(self, sample: Any) -> nn.Module:
        """A model that ignores its input: the best constant for these samples."""

    @abstractmethod
    def picture(self, model: nn.Module, sample: Any, noise: torch.Generator) -> "Image":
        """Draw the output of the model for a few samples."""

    def usage(self, model: nn.Module, sample: Any, noise: torch.Generator) -> "SlotUsage | None":
        """Measure how the model uses its slots; None if it has no masks of images."""
        return None

    def mosaic(self, model: nn.Module, sample: Any, noise: torch.Generator) -> "Mosaic":
        """Draw one sample without an image, for reports: by default :meth:`picture`."""
        from slotmesh.report.mosaic import Mosaic, tile

        return Mosaic([tile("", self.picture(model, sample, noise))], [], [], None)

    def fresh_model(self) -> nn.Module:
        """Build the model with the initial weights of the run's seed, whatever was drawn before."""
        check_fits(self.build)
        with torch.random.fork_rng(devices=[]):
            # torch.manual_seed would seed all devices, but only the CPU is restored.
            torch.default_generator.manual_seed(mix(self.settings.seed, "weights", 0))
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
        """A generator for all randomness of one step: a pure function of (seed, purpose, step)."""
        seed = mix(self.settings.seed, purpose, step)
        return SharedGenerator(device, seed=seed, rank=rank, n_ranks=n_ranks, total=total)


def mix(seed: int, purpose: str, step: int) -> int:
    """Hash several numbers into one seed, so that no two purposes share their randomness."""
    text = f"{seed}/{purpose}/{step}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "little")


INITIALIZERS: dict[InitName, type[SlotInitializer]] = {
    "gaussian": LearnedGaussian,
    "fixed-gaussian": FixedGaussian,
    "learned-slots": LearnedSlots,
    "shared-slot": SharedSlot,
}
