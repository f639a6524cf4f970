"""Object discovery on video (section 5.4, Table 5): slots handed on from frame to frame."""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Literal

import torch
import tyro
from torch import Tensor, nn

from slotmesh.models import VideoObjectDiscovery, to_unit
from slotmesh.nn import FixedNoise, LearnedNoise
from slotmesh.nn import Transition as TransitionPart
from slotmesh.training.settings import ImageData, Optim, Settings, positive
from slotmesh.training.tasks.blind import Constant, grid_masks
from slotmesh.training.tasks.discovery import (
    EPOCHS,
    PAPER_OPTIM,
    quick_transport,
)
from slotmesh.training.tasks.experiment import Experiment, Goal, Source, Split
from slotmesh.training.tasks.image_model import ImageModel
from slotmesh.training.tasks.sources import open_source
from slotmesh.training.variants import TRANSPORTS, MeshSettings, SinkhornSettings, Transport
from slotmesh.worlds import Sample

if TYPE_CHECKING:
    from PIL.Image import Image
    from torchmetrics import Metric


@dataclass(frozen=True)
class PassOn:
    """Slots are handed on as they are."""

    def build(self) -> TransitionPart:
        """The transition with these settings."""
        return TransitionPart()


@dataclass(frozen=True)
class FixedNoiseSettings:
    """Noise is added to the slots that are handed on."""

    std: float = 0.1
    """Its standard deviation, on which the paper is silent."""

    def build(self) -> TransitionPart:
        """The transition with these settings."""
        positive("transition.std", self.std)
        return FixedNoise(self.std)


@dataclass(frozen=True)
class LearnedNoiseSettings:
    """The next slots are drawn from a Gaussian that is predicted from the last."""

    prior_std: float = 0.1
    """Standard deviation of the prior."""
    kl_weight: float = 1e-4
    """Weight of the divergence from the prior in the loss."""

    def build(self) -> TransitionPart:
        """The transition with these settings."""
        positive("transition.prior_std", self.prior_std)
        positive("transition.kl_weight", self.kl_weight)
        return LearnedNoise(prior_std=self.prior_std)


Transition = PassOn | FixedNoiseSettings | LearnedNoiseSettings

_TRANSITIONS: dict[str, Transition] = {
    "SA-fixed-noise": FixedNoiseSettings(),
    "SA-learned-noise": LearnedNoiseSettings(),
}
# Two frames of a real video may show this many different detections.
_MAX_OBJECTS = 14
_FRAMES = {"clevrer-s": (0, 16), "clevrer-l": (0, 127)}


@dataclass(frozen=True)
class VideoDiscoverySettings(Settings):
    """Find and follow the objects of two frames of a video (Table 5)."""

    variant: Literal["SA", "SA-fixed-noise", "SA-learned-noise", "SA-SH", "SA-MESH"] = "SA-MESH"
    """Which slot attention: the paper's names."""
    data: ImageData = field(default_factory=ImageData)
    model: ImageModel = field(default_factory=ImageModel)
    transport: Annotated[Transport, tyro.conf.AvoidSubcommands] = field(
        default_factory=MeshSettings
    )
    transition: Annotated[Transition, tyro.conf.AvoidSubcommands] = field(default_factory=PassOn)

    def check(self) -> None:
        """Raise a ValueError that names the flag of a wrong setting."""
        super().check()
        self.transition.build()


class VideoDiscovery(Experiment):
    """Reconstruction of every frame; masks, and whether an object keeps its slot."""

    settings: VideoDiscoverySettings
    settings_type = VideoDiscoverySettings
    variants = ("SA", "SA-fixed-noise", "SA-learned-noise", "SA-SH", "SA-MESH")
    goal = Goal("fg_ari", higher=True)

    @classmethod
    def preset(cls, task: str, variant: str, preset: str) -> VideoDiscoverySettings:
        """``paper`` is the authors' code: cosine cost times 6, total mass 18, 8 slots."""
        transport = TRANSPORTS[variant]()
        if isinstance(transport, SinkhornSettings):
            transport = replace(transport, cost="cosine", cost_scale=6.0, mass=18.0)
        if isinstance(transport, MeshSettings):
            transport = replace(transport, lr=8.0, grad="implicit")
        data = ImageData(train_size=9998, test_size=5000)
        assert data.train_size is not None
        epoch = data.train_size // data.batch_size
        model = ImageModel(n_slots=8)
        paper = VideoDiscoverySettings(
            task=task,
            variant=variant,  # pyright: ignore[reportArgumentType]
            preset="paper",
            steps=EPOCHS * epoch,
            val_every=5 * epoch,
            save_every=epoch,
            log_every=100,
            data=data,
            model=model,
            transport=transport,
            transition=_TRANSITIONS.get(variant, PassOn()),
            optim=PAPER_OPTIM,
        )
        if preset == "paper":
            return paper
        return replace(
            paper,
            preset="quick",
            steps=600,
            val_every=150,
            save_every=150,
            log_every=20,
            data=replace(data, batch_size=8, train_size=512, val_size=64, test_size=128, size=16),
            model=ImageModel(n_slots=8, channels=16, slot_dim=32, mlp_dim=64),
            transport=quick_transport(transport, 4.0),
            optim=Optim(lr=2e-3, warmup=50, cosine=True, clip=1.0),
        )

    def build(self) -> nn.Module:
        """A video object discovery network."""
        s = self.settings
        return VideoObjectDiscovery(
            s.model.n_slots,
            s.transport.build(),
            transition=s.transition.build(),
            **s.model.options(s.data.size),
        )

    def source(self, split: Split, device: torch.device) -> tuple[Source, int | None]:
        """The CLEVRER world, or CLEVRER."""
        task, data = self.settings.task, self.settings.data
        frames = _FRAMES[task]
        return open_source(data, split, device, world=task, reader="clevrer", frames=frames)

    def losses(self, model: nn.Module, sample: Sample, noise: torch.Generator) -> dict[str, Tensor]:
        """Mean squared error of the frames, and what a learned transition costs."""
        video = to_unit(sample.image)
        out = model(video, generator=noise)
        error = (out.reconstruction - video).square().mean()
        if not isinstance(self.settings.transition, LearnedNoiseSettings):
            return {"loss": error}
        kl = out.kl.mean()
        weight = self.settings.transition.kl_weight
        return {"loss": error + weight * kl, "reconstruction": error, "kl": kl}

    def reads(self, split: Split) -> frozenset[str]:
        """Masks, and which objects are there, are for judging only."""
        return frozenset({"image"} if split == "train" else {"image", "mask", "present"})

    def metrics(self) -> "dict[str, Metric]":
        """Foreground ARI and mIoU over all frames, and temporal consistency."""
        from slotmesh.metrics import ForegroundARI, ForegroundMIoU, TemporalConsistency

        n = self.settings.model.n_slots
        return {
            "fg_ari": ForegroundARI(n, _MAX_OBJECTS),
            "fg_miou": ForegroundMIoU(n, _MAX_OBJECTS),
            "tc": TemporalConsistency(n),
        }

    def judge(
        self, model: nn.Module, sample: Sample, noise: torch.Generator, metrics: "dict[str, Metric]"
    ) -> dict[str, Tensor]:
        """Update the metrics; loss and metrics of each video, those of frames averaged."""
        video = to_unit(sample.image)
        out = model(video, generator=noise)
        predicted = out.masks.argmax(2)
        rows = {"loss": (out.reconstruction - video).square().mean((1, 2, 3, 4))}
        for name in ("fg_ari", "fg_miou"):
            metrics[name].update(predicted, sample.mask)
            rows[name] = metrics[name].per_image(predicted, sample.mask).nanmean(-1)  # pyright: ignore
        metrics["tc"].update(predicted, sample.mask, sample.present)
        rows["tc"] = metrics["tc"].per_image(predicted, sample.mask, sample.present)  # pyright: ignore
        return rows

    def blind(self, sample: Sample) -> nn.Module:
        """The mean frame, cut into a grid that stays where it is."""
        size, n_frames = self.settings.data.size, sample.image.shape[1]
        masks = grid_masks(self.settings.model.n_slots, size, size).to(sample.image.device)
        return Constant(
            reconstruction=to_unit(sample.image).mean(0), masks=masks.repeat(n_frames, 1, 1, 1)
        )

    def picture(self, model: nn.Module, sample: Sample, noise: torch.Generator) -> "Image":
        """Frames, reconstructions, attention and masks of every slot."""
        from slotmesh.report.pictures import discovery_sheet

        out = model(sample.image, generator=noise)
        return discovery_sheet(sample.image, out, model.encoder.out_grid)  # pyright: ignore
