"""Object discovery on images (section 5.3, Tables 3 and 4): reconstruct through slots."""

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Literal

import torch
import tyro
from torch import Tensor, nn

from slotmesh.models import ObjectDiscovery, to_unit
from slotmesh.training.settings import ImageData, Optim, Settings, at_least
from slotmesh.training.tasks.blind import Constant, grid_masks
from slotmesh.training.tasks.experiment import Experiment, Goal, Source, Split
from slotmesh.training.tasks.image_model import ImageModel
from slotmesh.training.tasks.sources import open_source
from slotmesh.training.variants import TRANSPORTS, MeshSettings, Transport
from slotmesh.worlds import Sample

if TYPE_CHECKING:
    from PIL.Image import Image
    from torchmetrics import Metric


@dataclass(frozen=True)
class DiscoverySettings(Settings):
    """Find the objects of an image by reconstructing it from slots (Tables 3 and 4)."""

    variant: Literal["SA", "SA-SH", "SA-MESH"] = "SA-MESH"
    """Which slot attention: the paper's names."""
    data: ImageData = field(default_factory=ImageData)
    model: ImageModel = field(default_factory=ImageModel)
    transport: Annotated[Transport, tyro.conf.AvoidSubcommands] = field(
        default_factory=MeshSettings
    )

    def check(self) -> None:
        """Raise a ValueError that names the flag of a wrong setting."""
        super().check()
        if self.task == "multi-dsprites" and self.data.root is None:
            at_least("data.size", self.data.size, 16)


PAPER_OPTIM = Optim(lr=4e-4, warmup=10_000, half_life=100_000, clip=0.1)
EPOCHS = 530
"""Of the authors' code, for images and videos."""
_MAX_OBJECTS = {"multi-dsprites": 5, "clevrtex": 10}


def quick_transport(transport: Transport, lr: float) -> Transport:
    """A smaller MESH step for smaller images: it is shared by all entries of the matrix."""
    return replace(transport, lr=lr) if isinstance(transport, MeshSettings) else transport


class Discovery(Experiment):
    """Reconstruction; how well the slots' masks are the objects'."""

    settings: DiscoverySettings
    settings_type = DiscoverySettings
    variants = ("SA", "SA-SH", "SA-MESH")
    goal = Goal("fg_ari", higher=True)

    @classmethod
    def preset(cls, task: str, variant: str, preset: str) -> DiscoverySettings:
        """``paper`` is the authors' code: 530 epochs; ClevrTex has twice the channels."""
        transport = TRANSPORTS[variant]()
        if isinstance(transport, MeshSettings):
            transport = replace(transport, lr=8.0, grad="implicit")
        data = ImageData(train_size=60_000, test_size=2880)
        model = ImageModel()
        if task == "clevrtex":
            data = ImageData(train_size=40_000, test_size=5000)
            model = ImageModel(n_slots=11, channels=64, slot_dim=128, mlp_dim=256)
        assert data.train_size is not None
        epoch = data.train_size // data.batch_size
        paper = DiscoverySettings(
            task=task,
            variant=variant,  # pyright: ignore[reportArgumentType]
            preset="paper",
            steps=EPOCHS * epoch,
            val_every=epoch,
            save_every=epoch,
            log_every=100,
            data=data,
            model=model,
            transport=transport,
            optim=PAPER_OPTIM,
        )
        if preset == "paper":
            return paper
        # Scenes of ClevrTex take longer to draw, and have nearly twice the slots.
        steps, scenes = (500, 512) if task == "clevrtex" else (800, 1024)
        quick = {"train_size": scenes, "val_size": 64, "test_size": 256}
        return replace(
            paper,
            preset="quick",
            steps=steps,
            val_every=steps // 4,
            save_every=steps // 4,
            log_every=20,
            data=replace(data, batch_size=16, size=16, **quick),
            model=ImageModel(n_slots=model.n_slots, channels=16, slot_dim=32, mlp_dim=64),
            transport=quick_transport(transport, 2.0),
            optim=Optim(lr=2e-3, warmup=50, cosine=True, clip=1.0),
        )

    def build(self) -> nn.Module:
        """An object discovery network."""
        s = self.settings
        return ObjectDiscovery(s.model.n_slots, s.transport.build(), **s.model.options(s.data.size))

    def source(self, split: Split, device: torch.device) -> tuple[Source, int | None]:
        """The world of the same name, or the dataset."""
        task = self.settings.task
        return open_source(self.settings.data, split, device, world=task, reader=task)

    def losses(self, model: nn.Module, sample: Sample, noise: torch.Generator) -> dict[str, Tensor]:
        """Mean squared error of the reconstruction, colours in [-1, 1]."""
        image = to_unit(sample.image)
        out = model(image, generator=noise)
        return {"loss": (out.reconstruction - image).square().mean()}

    def reads(self, split: Split) -> frozenset[str]:
        """Masks are for judging only."""
        return frozenset({"image"} if split == "train" else {"image", "mask"})

    def metrics(self) -> "dict[str, Metric]":
        """Foreground ARI and mIoU of the slots' masks."""
        from slotmesh.metrics import ForegroundARI, ForegroundMIoU

        sizes = (self.settings.model.n_slots, _MAX_OBJECTS[self.settings.task])
        return {"fg_ari": ForegroundARI(*sizes), "fg_miou": ForegroundMIoU(*sizes)}

    def judge(
        self, model: nn.Module, sample: Sample, noise: torch.Generator, metrics: "dict[str, Metric]"
    ) -> dict[str, Tensor]:
        """Update the metrics; loss and metrics of each image."""
        image = to_unit(sample.image)
        out = model(image, generator=noise)
        predicted = out.masks.argmax(1)
        rows = {"loss": (out.reconstruction - image).square().mean((1, 2, 3))}
        for name, metric in metrics.items():
            metric.update(predicted, sample.mask)
            rows[name] = metric.per_image(predicted, sample.mask)  # pyright: ignore
        return rows

    def blind(self, sample: Sample) -> nn.Module:
        """The mean image, cut into a fixed grid."""
        size = self.settings.data.size
        masks = grid_masks(self.settings.model.n_slots, size, size).to(sample.image.device)
        return Constant(reconstruction=to_unit(sample.image).mean(0), masks=masks)

    def picture(self, model: nn.Module, sample: Sample, noise: torch.Generator) -> "Image":
        """Images, reconstructions, attention and masks of every slot."""
        from slotmesh.report.pictures import discovery_sheet

        out = model(sample.image, generator=noise)
        return discovery_sheet(sample.image, out, model.encoder.out_grid)  # pyright: ignore
