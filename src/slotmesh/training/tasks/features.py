"""Object discovery on the features of a frozen vision model, which photographs need."""

from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from slotmesh.models import FeatureDiscovery
from slotmesh.nn import BackboneError, FrozenFeatures
from slotmesh.readers import ImageReader
from slotmesh.training.feature_cache import Rows, cached_features
from slotmesh.training.feature_source import (
    DatasetRows,
    FeatureSource,
    FolderRows,
    LoadedRows,
)
from slotmesh.training.settings import ImageData, InitName, Optim, Settings, at_least
from slotmesh.training.tasks.blind import Constant, grid_masks
from slotmesh.training.tasks.discovery import SHEET, with_lr
from slotmesh.training.tasks.experiment import INITIALIZERS, Experiment, Goal, S, Source, Split
from slotmesh.training.tasks.folder import load, skipped
from slotmesh.training.tasks.folder_task import (
    FolderData,
    FolderTask,
    first_process_console,
    run_folder,
)
from slotmesh.training.tasks.images import Images
from slotmesh.training.tasks.sources import open_source
from slotmesh.training.variants import VARIANTS, MeshSettings, TransportSettings
from slotmesh.worlds import WORLDS

if TYPE_CHECKING:
    from PIL.Image import Image

    from slotmesh.metrics import SlotUsage

_WORLD_SIZE = 10_000


@dataclass(frozen=True)
class FeaturesData(FolderData):
    """The data to train and evaluate on."""

    batch_size: int = 32
    """Samples per step, over all processes."""
    train_size: int | None = None
    """Number of different training samples; by default all of them, or 10,000 of a world."""
    root: Path | None = None
    """The folder of images; nested folders are searched too. With --data.world, the folder of the
    real dataset."""
    world: str | None = None
    """A procedural world, such as clevrtex, instead of a folder of images; with --data.root, the
    real dataset that the world imitates."""
    size: int | None = None  # pyright: ignore[reportIncompatibleVariableOverride]
    """Width and height to which images are resized, a multiple of the backbone's patch size; by
    default, the image size of the backbone."""
    cache: Path = Path("runs/feature-cache")
    """Folder of the feature cache, which all runs share."""

    def check(self) -> None:
        """Raise a ValueError that names the flag of a wrong setting."""
        replace(self, size=64 if self.size is None else self.size)._check_folder()
        if self.root is not None and self.root.is_file():
            raise ValueError(f"--data.root is {self.root}, which is a file; expected a folder.")
        if self.world is not None and self.world not in WORLDS:
            known = ", ".join(name for name in WORLDS if name != "random-objects")
            raise ValueError(f"--data.world is {self.world!r}, expected one of {known}.")
        if self.world is not None and (
            self.world == "random-objects" or self.world.startswith("clevrer")
        ):
            raise ValueError(f"--data.world is {self.world}, expected a world of images.")

    def _check_folder(self) -> None:
        super().check()


@dataclass(frozen=True)
class FeatureModel:
    """The network: frozen backbone, slot attention, feature decoder."""

    backbone: str = ""
    """The frozen vision model (required): a folder, or a name on the Hugging Face hub or in timm,
    such as facebook/dinov2-small."""
    n_slots: int = 7
    """Number of slots."""
    n_iters: int = 3
    """Number of iterations of slot attention."""
    slot_dim: int = 256
    """Size of a slot."""
    mlp_dim: int = 1024
    """Width of the hidden layers of slot attention."""
    hidden: int = 2048
    """Width of the hidden layers of the decoder."""
    layers: int = 3
    """Number of hidden layers of the decoder."""
    init: InitName = "gaussian"
    """How slots are initialised."""
    implicit: bool = False
    """Differentiate slots implicitly instead of through all iterations."""

    def check(self) -> None:
        """Raise a ValueError that names the flag of a wrong setting."""
        for name in ("n_slots", "n_iters", "slot_dim", "mlp_dim", "hidden", "layers"):
            at_least(f"model.{name}", getattr(self, name), 1)


@dataclass(frozen=True)
class FeaturesSettings(Settings):
    """Find the objects in photographs, on features of a frozen vision model (DINOSAUR)."""

    preset: Literal["quick", "paper"] = "quick"
    """Defaults of all other settings: quick has a small decoder and takes minutes on 2 CPU cores;
    paper is the usual recipe of DINOSAUR and takes about an hour on a GPU."""
    data: FeaturesData = field(default_factory=FeaturesData)
    model: FeatureModel = field(default_factory=FeatureModel)
    transport: TransportSettings = field(default_factory=MeshSettings)

    @property
    def folder(self) -> Path:
        """The folder of the run, with the name of the images' folder or the world in it."""
        return run_folder(self, self.data.world) if self.out is None else self.out


class Features(FolderTask, Experiment):
    """A folder of images, or a world, as features of a frozen vision model."""

    name = "features"
    title = "Images"
    how_to_read = (
        f"{SHEET} Features and their reconstruction are shown by three principal components."
    )
    settings: FeaturesSettings  # pyright: ignore[reportIncompatibleVariableOverride]
    settings_type = FeaturesSettings
    goal = Goal("fg_ari", higher=True)

    def __init__(self, settings: FeaturesSettings) -> None:
        super().__init__(settings)
        self._begin("images")
        world = settings.data.world
        if world is not None:
            self.title = f"Images of {world}"
        self.about = (
            f"Objects found by reconstructing features of {settings.model.backbone} through slots, "
            "without labels."
        )
        self._files: dict[tuple[str, str], FeatureSource] = {}

    @classmethod
    def preset(cls, variant: str, preset: str) -> FeaturesSettings:
        """``paper`` is the usual recipe; :meth:`suited` adapts it to the images."""
        quick = preset == "quick"
        transport = VARIANTS[variant].transport()
        if isinstance(transport, MeshSettings):
            transport = replace(transport, grad="implicit")
        # The norm of a step over the matrix, which grows with the image: 2 for 16 x 16 patches.
        transport = with_lr(transport, 2.0)
        small = FeatureModel(slot_dim=64, mlp_dim=128, hidden=256)
        steps = 1000 if quick else 50_000
        optim = Optim(lr=1e-3 if quick else 2e-4, warmup_part=0.05, cosine=True, clip=1.0)
        return FeaturesSettings(
            task=cls.name,
            variant=variant,
            preset="quick" if quick else "paper",
            steps=steps,
            val_every=steps // (5 if quick else 50),
            save_every=steps // (5 if quick else 50),
            log_every=20 if quick else 100,
            data=FeaturesData(batch_size=16 if quick else 32),
            model=small if quick else FeatureModel(),
            transport=transport,
            optim=optim,
        )

    @classmethod
    def suited(cls, start: S, root: Path, size: int | None = None, masks: Path | None = None) -> S:
        """Adapt batch size and shape to the images, and the number of slots to the masks."""
        try:
            found: Any = Images.suited(Images.preset("SA", "paper"), root, size, masks)
        except ValueError:
            # A dataset with another layout, or a mistake that is reported when the images are read.
            return start
        mine: Any = start
        batch = min(mine.data.batch_size, found.data.batch_size)
        data = replace(mine.data, batch_size=batch, square=found.data.square)
        model = replace(mine.model, n_slots=found.model.n_slots)
        return replace(start, data=data, model=model)  # pyright: ignore

    # ---- the frozen model ----

    @cached_property
    def encoder(self) -> FrozenFeatures:
        """The frozen model, loaded once for all models of this run."""
        name = self.settings.model.backbone
        if not name:
            raise ValueError(
                "--model.backbone is missing, expected a vision model: slotmesh train features "
                "--data.root FOLDER --model.backbone facebook/dinov2-small, or the folder of one."
            )
        try:
            # The size of a model is counted on the meta device, where nothing can be loaded.
            with torch.device("cpu"):
                return FrozenFeatures(name, resolution=self.settings.data.size)
        except BackboneError as error:
            said = str(error).removeprefix("FrozenFeatures: ")
            raise BackboneError(f"--model.backbone: {said}") from error

    @property
    def size(self) -> int:
        """Width and height of the images."""
        height, width = self.encoder.resolution
        if height != width:
            raise ValueError(
                f"--data.size is missing: the backbone is for images of {height} x {width}, "
                "expected square ones."
            )
        return height

    def build(self) -> nn.Module:
        """A feature discovery network on the shared backbone."""
        m = self.settings.model
        return FeatureDiscovery(
            self.encoder,
            m.n_slots,
            self.settings.transport.build(),
            n_iters=m.n_iters,
            slot_dim=m.slot_dim,
            mlp_dim=m.mlp_dim,
            hidden=(m.hidden,) * m.layers,
            init=INITIALIZERS[m.init](),
            implicit=m.implicit,
        )

    # ---- data ----

    @property
    def has_masks(self) -> bool:
        """Whether there are masks to compare slots with."""
        return self.settings.data.world is not None or super().has_masks

    def about_data(self) -> str | None:
        """The same as for any folder; None for a world."""
        return None if self.settings.data.world is not None else super().about_data()

    def _sizes(self) -> tuple[int, int]:
        # Before features are computed: unreadable images are reported later.
        data = self.settings.data
        n_train, n_val = (len(self.reader(split)) for split in ("train", "val"))
        return min(n_train, data.train_size or n_train), min(n_val, data.val_size)

    def check_data(self) -> None:
        """Load the backbone, and look for the images."""
        data = self.settings.data
        if data.root is None and data.world is None:
            raise ValueError(
                "--data.root is missing, expected your folder: slotmesh train features --data.root "
                "FOLDER --model.backbone NAME; or a world, --data.world clevrtex."
            )
        if data.world is None:
            n = len(self.reader("train"))
            if self.has_masks:
                for split in ("val", "test"):
                    self.reader(split).check_masks()
        else:
            _, n = self._dataset("train", torch.device("cpu"))
        n = min(n, data.train_size or n)
        if n < data.batch_size:
            raise ValueError(
                f"--data.batch-size is {data.batch_size}, but there are only {n} samples to train "
                f"on. Pass --data.batch-size {n}, or add more."
            )
        _ = self.size

    def reader(self, split: Split) -> ImageReader:
        """The reader of a split of the folder."""
        data = self.settings.data
        if data.root is None or not data.root.is_dir():
            raise ValueError(f"--data.root is {data.root}, expected a folder that exists.")
        found = ImageReader(
            data.root, split, size=self.size, square=data.square, masks=data.masks, seed=data.seed
        )
        if split == "train":
            found.forget_masks()
        return found

    def source(self, split: Split, device: torch.device) -> tuple[Source, int | None]:
        """The features of a split, which are computed unless they are on disk."""
        key = (split, str(device))
        if key not in self._files:
            self._files[key] = self._open(split, device)
        return self._files[key], len(self._files[key])

    def _open(self, split: Split, device: torch.device) -> FeatureSource:
        data, console = self.settings.data, first_process_console()
        limits = {"train": data.train_size, "val": data.val_size, "test": data.test_size}
        inner: Any = None
        rows: Rows
        if data.world is not None:
            found, n = self._dataset(split, device)
            rows = DatasetRows(found, n, f"{data.world}-{split}", data.seed, str(data.root))
            inner = found
        elif split == "train":
            reader = self.reader(split)
            rows = FolderRows(reader, limits[split])
        else:
            reader = self.reader(split)
            inner = load(reader, limits[split], console)
            rows = LoadedRows(inner.whole.image, f"{reader.root.resolve().name}-{split}")
        file = cached_features(self.encoder, rows, data.cache, device, console)
        if file.bad:
            skipped(file.bad, len(rows), "images", split, console)
        if not len(file):
            raise ValueError(f"None of the {len(rows)} images for {split} can be used.")
        if split != "train":
            return FeatureSource(file, inner, split)
        if data.root is None:
            # Training keeps the samples of a world on the device where they are made.
            return FeatureSource(file, None, split, place=device)
        return FeatureSource(file, None, split, keep_on=device if device.type == "cuda" else None)

    def _dataset(self, split: Split, device: torch.device) -> tuple[Any, int]:
        """A world or a real dataset, and its length: as it is, or as requested."""
        data = self.settings.data
        assert data.world is not None
        sizes = {name: getattr(data, name) for name in ("train_size", "val_size", "test_size")}
        if data.root is None and data.train_size is None:
            sizes["train_size"] = _WORLD_SIZE
        asked = ImageData(root=data.root, size=self.size, seed=data.seed, **sizes)
        reader = WORLDS[data.world].reader or ""
        found, n = open_source(asked, split, device, world=data.world, reader=reader)
        assert n is not None
        return found, n

    # ---- loss and metrics ----

    def losses(self, model: nn.Module, sample: Any, noise: torch.Generator) -> dict[str, Tensor]:
        """Mean squared error of the reconstructed features."""
        features = sample.features.float()
        out = model(features=features, generator=noise, enlarge=False)
        return {"loss": (out.reconstruction - features).square().mean()}

    def reads(self, split: Split) -> frozenset[str]:
        """Images and masks are needed for metrics only."""
        return frozenset({"features"} if split == "train" else {"features", "image", "mask"})

    def judge(
        self, model: nn.Module, sample: Any, noise: torch.Generator, metrics: dict[str, Any]
    ) -> dict[str, Tensor]:
        """Update the metrics; loss and metrics of each image."""
        features = sample.features.float()
        out = model(sample.image, features=features, generator=noise)
        rows = {"loss": (out.reconstruction - features).square().mean((1, 2))}
        predicted = out.masks.argmax(1)
        for name, metric in metrics.items():
            metric.update(predicted, sample.mask)
            rows[name] = metric.per_image(predicted, sample.mask)
        return rows

    def blind(self, sample: Any) -> nn.Module:
        """The mean features of every patch, and a fixed grid."""
        place = sample.features.device
        masks = grid_masks(self.settings.model.n_slots, self.size, self.size).to(place)
        return Constant(reconstruction=sample.features.float().mean(0), masks=masks)

    def usage(self, model: nn.Module, sample: Any, noise: torch.Generator) -> "SlotUsage":
        """How the model uses its slots."""
        from slotmesh.metrics import slot_usage

        features = sample.features.float()
        out = model(sample.image, features=features, generator=noise, trace=True)
        truth = sample.mask if self.has_masks else None
        return slot_usage(out.masks.float(), slots=out.slots.float(), trace=out.trace, truth=truth)

    def picture(self, model: nn.Module, sample: Any, noise: torch.Generator) -> "Image":
        """Images, features, reconstructions, attention and masks of every slot."""
        from slotmesh.report.pictures import discovery_sheet

        out = model(features=sample.features.float(), generator=noise)
        return discovery_sheet(sample.image, out, self.encoder.out_grid)
