"""Object discovery on images (section 5.3, Tables 3 and 4): reconstruct through slots."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from slotmesh.models import ObjectDiscovery, to_unit
from slotmesh.training.published import Row, percent
from slotmesh.training.settings import ImageData, Optim, Settings, at_least
from slotmesh.training.tasks.blind import Constant, grid_masks
from slotmesh.training.tasks.experiment import Experiment, Goal, S, Source, Split
from slotmesh.training.tasks.image_model import ImageModel, image_usage
from slotmesh.training.tasks.sources import open_source
from slotmesh.training.variants import VARIANTS, MeshSettings, TransportSettings
from slotmesh.worlds import Sample

if TYPE_CHECKING:
    from PIL.Image import Image
    from torchmetrics import Metric

    from slotmesh.metrics import SlotUsage


@dataclass(frozen=True)
class DiscoverySettings(Settings):
    """Find the objects in an image by reconstructing it from slots (Table 4)."""

    data: ImageData = field(default_factory=ImageData)
    model: ImageModel = field(default_factory=ImageModel)
    transport: TransportSettings = field(default_factory=MeshSettings)


PAPER_OPTIM = Optim(lr=4e-4, warmup=10_000, half_life=100_000, clip=0.1)
EPOCHS = 530
"""Optimiser of the authors' code, for images and videos."""
SMALL = ImageModel(channels=16, slot_dim=32, mlp_dim=64)
"""Network of the ``quick`` preset, unless the easy version of a world has its own."""
SHEET = (
    "Attention and masks are multiplied with the image; each attention map is scaled so that its "
    "largest value is 1, each mask so that an equal share of a pixel can be seen. Segments show in "
    "colour which slot has the largest mask."
)
"""Explains the pictures of object discovery."""


def with_lr(transport: TransportSettings, lr: float) -> TransportSettings:
    """Set the norm of a MESH step over the whole matrix, which grows with the image."""
    return replace(transport, lr=lr) if isinstance(transport, MeshSettings) else transport


def without_easy(start: S, **model: int) -> S:
    """Adapt a preset of an easy world to the scenes of the paper, which need a larger model."""
    settings: Any = start
    if not settings.data.easy:
        return start
    return replace(
        settings,
        data=replace(settings.data, easy=False),
        model=replace(settings.model, **model),
    )


class Discovery(Experiment):
    """Reconstruct images, and measure how well the masks of slots match objects.

    Subclasses choose the images: the world and the reader of their ``name``.
    """

    settings: DiscoverySettings
    settings_type = DiscoverySettings
    how_to_read = SHEET
    goal = Goal("fg_ari", higher=True)
    max_objects: ClassVar[int]
    """Largest number of objects in an image."""
    data: ClassVar[ImageData]
    """Of the ``paper`` preset."""
    model: ClassVar[ImageModel] = ImageModel()
    """Of the ``paper`` preset."""
    quick: ClassVar[tuple[int, int]]
    """Steps and training images of the ``quick`` preset."""
    easy: ClassVar[ImageModel | None] = None
    """Network of the ``quick`` preset if that uses the easy version of the world, else None."""

    @classmethod
    def preset(cls, variant: str, preset: str) -> DiscoverySettings:
        """``paper`` is the authors' code: 530 epochs."""
        transport = VARIANTS[variant].transport()
        if isinstance(transport, MeshSettings):
            transport = replace(transport, lr=8.0, grad="implicit")
        assert cls.data.train_size is not None
        epoch = cls.data.train_size // cls.data.batch_size
        kind: Any = cls.settings_type
        paper: DiscoverySettings = kind(
            task=cls.name,
            variant=variant,
            preset="paper",
            steps=EPOCHS * epoch,
            val_every=epoch,
            save_every=epoch,
            log_every=100,
            data=cls.data,
            model=cls.model,
            transport=transport,
            optim=PAPER_OPTIM,
        )
        if preset == "paper":
            return paper
        steps, scenes = cls.quick
        few = {"train_size": scenes, "val_size": 64, "test_size": 256}
        small = replace(SMALL, n_slots=cls.model.n_slots)
        return replace(
            paper,
            preset="quick",
            steps=steps,
            val_every=steps // 4,
            save_every=steps // 4,
            log_every=20,
            data=replace(cls.data, batch_size=16, size=16, easy=cls.easy is not None, **few),
            model=small if cls.easy is None else cls.easy,
            transport=with_lr(transport, 2.0),
            optim=Optim(lr=2e-3, warmup=50, warmup_part=0.05, cosine=True, clip=1.0),
        )

    @classmethod
    def suited(cls, start: S, root: Path, size: int | None = None, masks: Path | None = None) -> S:
        """A real dataset has no easy version: a quick run on it has the paper's slots."""
        room = {"slot_dim": SMALL.slot_dim, "mlp_dim": SMALL.mlp_dim, "n_iters": SMALL.n_iters}
        return without_easy(start, n_slots=cls.model.n_slots, **room)

    def build(self) -> nn.Module:
        """An object discovery network."""
        s = self.settings
        return s.model.started(
            ObjectDiscovery(s.model.n_slots, s.transport.build(), **s.model.options(s.data.size))
        )

    def source(self, split: Split, device: torch.device) -> tuple[Source, int | None]:
        """The world of the same name, or the dataset."""
        return open_source(self.settings.data, split, device, world=self.name, reader=self.name)

    def losses(self, model: nn.Module, sample: Sample, noise: torch.Generator) -> dict[str, Tensor]:
        """Mean squared error of the reconstruction, colours in [-1, 1]."""
        image = to_unit(sample.image)
        out = model(sample.image, generator=noise)
        return {"loss": (out.reconstruction - image).square().mean()}

    def reads(self, split: Split) -> frozenset[str]:
        """Masks are needed for metrics only."""
        return frozenset({"image"} if split == "train" else {"image", "mask"})

    def metrics(self) -> "dict[str, Metric]":
        """Foreground ARI and mIoU of the slots' masks."""
        from slotmesh.metrics import ForegroundARI, ForegroundMIoU

        sizes = (self.settings.model.n_slots, self.max_objects)
        return {"fg_ari": ForegroundARI(*sizes), "fg_miou": ForegroundMIoU(*sizes)}

    def judge(
        self, model: nn.Module, sample: Sample, noise: torch.Generator, metrics: "dict[str, Metric]"
    ) -> dict[str, Tensor]:
        """Update the metrics; loss and metrics of each image."""
        image = to_unit(sample.image)
        out = model(sample.image, generator=noise)
        predicted = out.masks.argmax(1)
        rows = {"loss": (out.reconstruction - image).square().mean((1, 2, 3))}
        for name, metric in metrics.items():
            metric.update(predicted, sample.mask)
            rows[name] = metric.per_image(predicted, sample.mask)  # pyright: ignore
        return rows

    def blind(self, sample: Sample) -> nn.Module:
        """The mean image, cut into a fixed grid."""
        size = self.settings.data.size
        image = to_unit(sample.image).mean(0)
        masks = grid_masks(self.settings.model.n_slots, size, size).to(image.device)
        # For a video, the same grid in every frame.
        return Constant(reconstruction=image, masks=masks.repeat(*image.shape[:-3], 1, 1, 1))

    def usage(self, model: nn.Module, sample: Sample, noise: torch.Generator) -> "SlotUsage":
        """How the model uses its slots."""
        return image_usage(model, sample, noise, truth=getattr(self, "has_masks", True))

    def picture(self, model: nn.Module, sample: Sample, noise: torch.Generator) -> "Image":
        """Images, reconstructions, attention and masks of every slot."""
        from slotmesh.report.pictures import discovery_sheet

        out = model(sample.image, generator=noise)
        return discovery_sheet(sample.image, out, model.encoder.out_grid)  # pyright: ignore


@dataclass(frozen=True)
class MultiDSpritesSettings(DiscoverySettings):
    """Find the sprites in an image by reconstructing it from slots (Table 3)."""

    def check(self) -> None:
        """Raise a ValueError that names the flag of a wrong setting."""
        super().check()
        if self.data.root is None:
            at_least("data.size", self.data.size, 16)


class MultiDSpritesDiscovery(Discovery):
    """Multi-dSprites, Table 3."""

    settings_type = MultiDSpritesSettings
    name = "multi-dsprites"
    title = "Multi-dSprites"
    about = (
        "Objects found by reconstructing images through slots, without labels (section 5.3, "
        "Table 3)."
    )
    max_objects = 5
    data = ImageData(train_size=60_000, test_size=2880)
    quick = (1600, 4096)
    # One slot per sprite: the background is black and needs none. A slot of 8 numbers cannot
    # represent the whole scene, so slots have to divide it.
    easy = ImageModel(n_slots=3, channels=16, slot_dim=8, mlp_dim=32, he_init=True)
    published = (
        Row("Table 3", "SA (original)", name, None, {}, percent(fg_ari=(91.3, 0.3))),
        *(
            Row(
                "Table 3", variant, "multi-dsprites", variant, {}, percent(fg_ari=ari, fg_miou=miou)
            )
            for variant, ari, miou in (
                ("SA", (92.2, 0.5), (24.3, 5.4)),
                ("SA-SH", (87.2, 1.8), (84.0, 3.1)),
                ("SA-MESH", (95.6, 0.2), (86.2, 2.2)),
            )
        ),
        Row(
            "Appendix, ablations",
            "SA, 5 iterations",
            name,
            "SA",
            {"model.n_iters": 5},
            percent(fg_ari=(81.9, 6.1)),
        ),
        Row(
            "Appendix, ablations",
            "SA, learned slot initialisation",
            name,
            "SA",
            {"model.init": "learned-slots"},
            percent(fg_ari=(93.0, 1.0)),
        ),
    )


class ClevrTexDiscovery(Discovery):
    """ClevrTex, Table 4; twice the channels."""

    name = "clevrtex"
    title = "ClevrTex"
    about = (
        "Objects found by reconstructing images through slots, without labels (section 5.3, "
        "Table 4)."
    )
    max_objects = 10
    data = ImageData(train_size=40_000, test_size=5000)
    model = ImageModel(n_slots=11, channels=64, slot_dim=128, mlp_dim=256)
    # Scenes take longer to draw.
    quick = (1600, 2048)
    easy = ImageModel(n_slots=4, channels=16, slot_dim=32, mlp_dim=64, he_init=True)
    published = tuple(
        Row("Table 4", variant, "clevrtex", variant, {}, percent(fg_ari=ari, fg_miou=miou))
        for variant, ari, miou in (
            ("SA", (52.8, 14.9), (26.3, 14.9)),
            ("SA-SH", (70.8, 5.8), (35.3, 4.4)),
            ("SA-MESH", (79.0, 2.6), (43.2, 4.0)),
        )
    )
