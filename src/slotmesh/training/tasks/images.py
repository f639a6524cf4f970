"""Object discovery on your own images and videos: any folder of them, masks or not."""

import os
import statistics
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeGuard, TypeVar

import torch
from rich.console import Console

from slotmesh.files import slug
from slotmesh.readers import BadRecord, HDF5Reader, ImageReader, VideoReader, clips, photos
from slotmesh.readers.images import Square, chosen, find_images, find_masks
from slotmesh.readers.listing import find_files
from slotmesh.readers.videos import find_videos
from slotmesh.training.settings import Data, Optim, Settings, at_least
from slotmesh.training.tasks.discovery import Discovery, DiscoverySettings, with_lr
from slotmesh.training.tasks.experiment import Goal, Source, Split
from slotmesh.training.tasks.folder import Loaded, load, load_file
from slotmesh.training.tasks.image_model import OwnImageModel
from slotmesh.training.tasks.video_discovery import VideoDiscovery, VideoDiscoverySettings
from slotmesh.training.variants import VARIANTS, MeshSettings

if TYPE_CHECKING:
    from torchmetrics import Metric

# What ``quick`` starts from: weights for Multi-dSprites, which already find plain shapes.
_WEIGHTS = {"SA": "multi-dsprites-sa"}
_OTHER_WEIGHTS = "multi-dsprites-sa-mesh"
_SLOTS = 7
_MOST_SLOTS = 24
# Files that are opened to choose defaults.
_LOOKED_AT = 64

D = TypeVar("D", bound="FolderData")
S = TypeVar("S", bound=Settings)


@dataclass(frozen=True)
class FolderData(Data):
    """The data to train and evaluate on."""

    train_size: int | None = None
    """Number of training samples; by default, all of them."""
    test_size: int = 1000
    """Number of test samples, for `slotmesh evaluate`; all of them if there are fewer."""
    val_size: int = 320
    """Number of validation samples; all of them if there are fewer."""
    seed: int = 0
    """Seed of the split into images for training, validation and test."""
    root: Path | None = None
    """The folder (required); nested folders are searched too. Or an HDF5 file of square images,
    uint8 (N, 3, SIZE, SIZE)."""
    masks: Path | None = None
    """Folder of masks, PNG files with the names of the images, for metrics only; by default
    ROOT/masks, if it exists."""
    size: int = 64
    """Width and height to which images are resized."""
    square: Square = "crop"
    """How to make images square: crop keeps the centre, squeeze the whole image."""

    workers: ClassVar[int] = 0
    """No worker processes: all samples are kept in memory."""

    def check(self) -> None:
        """Raise a ValueError that names the flag of a wrong setting."""
        super().check()
        at_least("data.size", self.size, 8)
        for name in ("root", "masks"):
            path = getattr(self, name)
            if name == "root" and _is_file(path):
                continue
            if path is not None and not path.is_dir():
                what = "is a file" if path.exists() else "does not exist"
                raise ValueError(f"--data.{name} is {path}, which {what}; expected a folder.")


@dataclass(frozen=True)
class VideoFolderData(FolderData):
    """The data to train and evaluate on."""

    root: Path | None = None
    """The folder (required) of mp4 clips, or of one folder of frames per video."""
    n_frames: int = 2
    """Number of frames per sample."""
    stride: int = 1
    """Distance between the frames of a sample, in frames of the video."""

    def check(self) -> None:
        """Raise a ValueError that names the flag of a wrong setting."""
        super().check()
        if _is_file(self.root):
            raise ValueError(f"--data.root is {self.root}, which is a file; expected a folder.")
        at_least("data.n_frames", self.n_frames, 2)
        at_least("data.stride", self.stride, 1)


@dataclass(frozen=True)
class ImagesSettings(DiscoverySettings):
    """Find the objects in a folder of your own images."""

    preset: Literal["quick", "paper"] = "quick"
    """Defaults of all other settings: quick adapts weights that come with slotmesh to your images,
    minutes on 2 CPU cores; paper trains from scratch as the paper does on Multi-dSprites, hours on
    a GPU."""
    data: FolderData = field(default_factory=FolderData)  # pyright: ignore
    """The data to train and evaluate on."""
    model: OwnImageModel = field(default_factory=OwnImageModel)  # pyright: ignore
    """The network: encoder, slot attention, decoder or head."""

    @property
    def folder(self) -> Path:
        """The folder of the run, with the name of the images' folder in it."""
        return run_folder(self) if self.out is None else self.out


@dataclass(frozen=True)
class VideosSettings(VideoDiscoverySettings):
    """Find and follow the objects in a folder of your own videos."""

    preset: Literal["quick", "paper"] = "quick"
    """Defaults of all other settings: quick is a small network, minutes on 2 CPU cores; paper has
    the size and schedule of the paper's network for CLEVRER, hours on a GPU."""
    data: VideoFolderData = field(default_factory=VideoFolderData)  # pyright: ignore
    """The data to train and evaluate on."""
    model: OwnImageModel = field(default_factory=OwnImageModel)  # pyright: ignore
    """The network: encoder, slot attention, decoder or head."""

    @property
    def folder(self) -> Path:
        """The folder of the run, with the name of the videos' folder in it."""
        return run_folder(self) if self.out is None else self.out


def run_folder(settings: Any, world: str | None = None) -> Path:
    """The default folder of a run, with the name of its data in it."""
    root: Path | None = settings.data.root
    own = "" if root is None else root.resolve().name

    def folder(name: str) -> Path:
        parts = (name, settings.variant, settings.preset, settings.seed)
        return Path("runs") / settings.task / "-".join(str(part) for part in parts if part != "")

    # Earlier versions kept the letters of English only.
    before = folder(world or slug(own))
    return before if before.is_dir() else folder(world or slug(own, ascii_only=False))


class FolderTask:
    """What both tasks share: a folder, perhaps with masks, read into memory once."""

    has_world = False
    settings: Any
    _opened: dict[str, Loaded]

    def _begin(self, noun: str) -> None:
        """Take the name of the folder, and a goal that needs no masks if there are none."""
        root = self.settings.data.root
        self._opened = {}
        name = None if root is None else root.resolve().name or str(root)
        self.title = noun.capitalize() if name is None else f"{noun.capitalize()} of {name}"
        self.about = f"Objects found by reconstructing {noun} through slots, without labels."
        if not self.has_masks:
            self.goal = Goal("loss", higher=False)

    @property
    def has_masks(self) -> bool:
        """Whether there is anything to compare slots with."""
        data: FolderData = self.settings.data
        if data.masks is not None:
            return True
        if _is_file(data.root):
            return HDF5Reader(data.root, "all").has_masks
        return data.root is not None and (data.root / "masks").is_dir()

    def about_data(self) -> str | None:
        """How much there is to train on, and which files are of no use."""
        data: FolderData = self.settings.data
        n_train, n_val = (f"{n:,}" for n in self._sizes())
        frames = getattr(data, "n_frames", None)
        what = "images" if frames is None else f"samples of {frames} frames"
        said = f"Training on {n_train} {what}, validating on {n_val}."
        other: list[str] = []
        if data.root is not None and data.root.is_dir():
            masks = _masks(data.root, data.masks)
            other = find_files(data.root, photos.OTHER_ENDINGS, skip=masks)
        if other:
            kinds = ", ".join(sorted({Path(name).suffix.lower() for name in other}))
            said += (
                f" Left out: {len(other):,} {'file' if len(other) == 1 else 'files'} ({kinds}), "
                "which would have to be PNG or JPEG."
            )
        return said

    def _sizes(self) -> tuple[int, int]:
        """The number of samples for training and for validation."""
        for split in ("train", "val"):
            self.source(split, torch.device("cpu"))
        return len(self._opened["train"]), len(self._opened["val"])

    def next_command(self) -> tuple[str, ...]:
        """Without masks there is little to evaluate, but much to look at."""
        root, folder = self.settings.data.root, str(self.settings.folder)
        if self.has_masks or not root.is_dir():
            return ("slotmesh", "evaluate", folder)
        return ("slotmesh", "segment", folder, str(root))

    def check_data(self) -> None:
        """Read the images for training and validation; look for those of the test."""
        data: FolderData = self.settings.data
        if data.root is None:
            raise ValueError(
                f"--data.root is missing, expected your folder: slotmesh train "
                f"{self.settings.task} --data.root FOLDER."
            )
        if self.has_masks and not _is_file(data.root):
            for split in ("val", "test"):
                self.reader(split).check_masks()
        for split in ("train", "val"):
            self.source(split, torch.device("cpu"))
        n = len(self._opened["train"])
        if n < data.batch_size:
            raise ValueError(
                f"--data.batch-size is {data.batch_size}, but {data.root} has only {n} samples to "
                f"train on. Pass --data.batch-size {n}, or add more."
            )

    def source(self, split: Split, device: torch.device) -> tuple[Source, int | None]:
        """The samples of a split, in memory."""
        if split not in self._opened:
            data: FolderData = self.settings.data
            sizes = {"train": data.train_size, "val": data.val_size, "test": data.test_size}
            if _is_file(data.root):
                found = load_file(HDF5Reader(data.root, split), sizes[split], data.size)
            else:
                found = load(self.reader(split), sizes[split], first_process_console())
            self._opened[split] = found
        return self._opened[split], len(self._opened[split])

    def reader(self, split: Split) -> Any:
        """The reader of a split."""
        data: FolderData = self.settings.data
        if data.root is None or not data.root.is_dir():
            raise ValueError(f"--data.root is {data.root}, expected a folder that exists.")
        options = {
            name: getattr(data, name)
            for name in ("size", "square", "masks", "seed", "n_frames", "stride")
            if hasattr(data, name)
        }
        kind = VideoReader if isinstance(data, VideoFolderData) else ImageReader
        found = kind(data.root, split, **options)
        if split == "train":
            found.forget_masks()
        return found

    def metrics(self) -> "dict[str, Metric]":
        """FG-ARI, FG-mIoU and mean best overlap where there are masks; none otherwise."""
        from slotmesh.metrics import ForegroundARI, ForegroundMIoU, MeanBestOverlap

        # Of these, all are undefined for an image without a mask, which is then left out.
        kinds = {"fg_ari": ForegroundARI, "fg_miou": ForegroundMIoU, "mbo": MeanBestOverlap}
        sizes = (self.settings.model.n_slots, photos.MOST_OBJECTS)
        return {name: kind(*sizes) for name, kind in kinds.items()} if self.has_masks else {}


class Images(FolderTask, Discovery):
    """A folder of images."""

    name = "images"
    title = "Images"
    settings: ImagesSettings  # pyright: ignore[reportIncompatibleVariableOverride]
    settings_type = ImagesSettings
    max_objects = photos.MOST_OBJECTS

    def __init__(self, settings: ImagesSettings) -> None:
        super().__init__(settings)
        self._begin("images")

    @classmethod
    def preset(cls, variant: str, preset: str) -> ImagesSettings:
        """Settings for 1,000 images; :meth:`suited` knows better."""
        quick = preset == "quick"
        transport = VARIANTS[variant].transport()
        if isinstance(transport, MeshSettings):
            transport = replace(transport, grad="implicit")
        weights = _WEIGHTS.get(variant, _OTHER_WEIGHTS) if quick else None
        start = ImagesSettings(
            task=cls.name,
            variant=variant,
            preset="quick" if quick else "paper",
            log_every=10 if quick else 100,
            data=FolderData(batch_size=8 if quick else 64, size=64),
            model=OwnImageModel(n_slots=_SLOTS, start=weights),
            transport=transport,
        )
        return _scheduled(start, 1000)

    @classmethod
    def suited(cls, start: S, root: Path, size: int | None = None, masks: Path | None = None) -> S:
        """Steps by the number of images; size and shape by theirs; slots by the masks."""
        if _is_file(root):
            return _suited_to_file(start, root)
        masks = _masks(root, masks)
        names = find_images(root, masks)
        shapes = [shape for name in _some(names) if (shape := _shape(root / name))]
        objects = _most_objects(sorted(masks.rglob("*.png"))) if masks else None
        n = len(chosen("--data.root", root, names, "train", "images"))
        return _suited(start, n, shapes, objects, size)


class Videos(FolderTask, VideoDiscovery):
    """A folder of clips, or of folders of frames."""

    name = "video"
    title = "Videos"
    settings: VideosSettings  # pyright: ignore[reportIncompatibleVariableOverride]
    settings_type = VideosSettings
    easy = None

    def __init__(self, settings: VideosSettings) -> None:
        super().__init__(settings)
        self._begin("videos")

    @classmethod
    def preset(cls, variant: str, preset: str) -> VideosSettings:
        """Settings for 1,000 samples; :meth:`suited` knows better."""
        base = super().preset(variant, preset)
        quick = preset == "quick"
        values: dict[str, Any] = {f.name: getattr(base, f.name) for f in fields(base)}
        values["model"] = OwnImageModel(**asdict(base.model))
        values["data"] = VideoFolderData(
            batch_size=8 if quick else 64, size=32 if quick else 64, n_frames=2 if quick else 4
        )
        return _scheduled(VideosSettings(**values), 1000)

    @classmethod
    def suited(cls, start: S, root: Path, size: int | None = None, masks: Path | None = None) -> S:
        """Steps by the number of frames; stride by the length; size and slots as for images."""
        masks = _masks(root, masks)
        found = find_videos(root, masks)
        shapes: list[tuple[int, int]] = []
        lengths: list[int] = []
        for name in _some(sorted(found), 8):
            files = found[name]
            try:
                if files is None:
                    lengths.append(clips.count_frames(root / name))
                    first = clips.load_frames(root / name, [0])[0]
                    shapes.append((first.shape[0], first.shape[1]))
                else:
                    lengths.append(len(files))
                    shapes.append(photos.photo_size(root / files[0]))
            except BadRecord:
                continue
        objects = _most_objects(sorted(masks.rglob("*.png"))) if masks else None
        data: Any = getattr(start, "data")  # noqa: B009
        length = int(statistics.median(lengths)) if lengths else 1
        stride = max(1, min(4, (length - 1) // max(1, data.n_frames - 1)))
        span = (data.n_frames - 1) * stride + 1
        n = len(chosen("--data.root", root, sorted(found), "train", "videos"))
        start = replace(start, data=replace(data, stride=stride))  # pyright: ignore
        return _suited(start, n * max(1, length // span), shapes, objects, size)

    def metrics(self) -> "dict[str, Metric]":
        """Those of images for each frame, and temporal consistency."""
        from slotmesh.metrics import TemporalConsistency

        found = super().metrics()
        return found | {"tc": TemporalConsistency(self.settings.model.n_slots)} if found else {}


def _masks(root: Path, given: Path | None) -> Path | None:
    """The folder of masks, if there is one; a wrong one is named when settings are checked."""
    return find_masks("--data.root", root, given if given is not None and given.is_dir() else None)


def _is_file(root: Path | None) -> TypeGuard[Path]:
    """Whether the data are in an HDF5 file."""
    return root is not None and root.is_file() and root.suffix.lower() in (".h5", ".hdf5")


def _suited_to_file(start: Any, root: Path) -> Any:
    """The size is that of the file: nothing is resized."""
    reader = HDF5Reader(root, "train")
    if not len(reader):
        raise ValueError(f"{root} has too few samples: none is left for training.")
    height, width = reader.sample([0]).image.shape[-2:]
    objects = reader.max_objects if reader.has_masks else None
    return _suited(start, len(reader), [(height, width)], objects, height)


def _suited(
    start: Any, n_train: int, shapes: list[tuple[int, int]], objects: int | None, size: int | None
) -> Any:
    """A preset for so many samples of these heights and widths, with so many objects."""
    # Half of them: some may turn out to be unreadable.
    data = replace(start.data, batch_size=min(start.data.batch_size, max(1, n_train // 2)))
    if shapes:
        short = int(statistics.median(min(shape) for shape in shapes))
        long = statistics.median(max(shape) / min(shape) for shape in shapes)
        data = replace(data, square="squeeze" if long > 2 else "crop")
        if start.model.start is None:
            # A small image gains nothing from more pixels, unless the weights are used to them.
            data = replace(data, size=min(data.size, max(16, short // 8 * 8)))
    if size is not None:
        data = replace(data, size=size)
    model = start.model
    if objects is not None:
        model = replace(model, n_slots=max(2, min(_MOST_SLOTS, objects + 1)))
    return _scheduled(replace(start, data=data, model=model), n_train)


def _scheduled(start: Any, n_train: int) -> Any:
    """Steps, learning rate and MESH's step for a number of samples and their size."""
    batch = start.data.batch_size
    if start.model.start is not None:
        steps = max(200, min(400, 10 * n_train // batch))
        optim = Optim(lr=4e-4, warmup=20, cosine=True, clip=0.1)
    elif start.preset == "quick":
        steps = max(400, min(1000, 10 * n_train // batch))
        optim = Optim(lr=2e-3, warmup=50, cosine=True, clip=1.0)
    else:
        # The paper has 530 epochs, with a warm-up of a fiftieth and a half-life of a fifth.
        steps = max(20_000, min(500_000, 530 * n_train // batch))
        optim = Optim(lr=4e-4, warmup=steps // 50, half_life=steps // 5, clip=0.1)
    every = steps // (5 if start.preset == "quick" else 50)
    # The norm of a step over a matrix that grows with the image: 8 for 64 x 64, as in the paper.
    transport = with_lr(start.transport, start.data.size / 8)
    changes = {"steps": steps, "val_every": every, "save_every": every}
    return replace(start, optim=optim, transport=transport, **changes)


def _some(names: list[str], most: int = _LOOKED_AT) -> list[str]:
    """A few names, evenly spaced."""
    return names[:: -(-len(names) // most)]


def _shape(path: Path) -> tuple[int, int] | None:
    try:
        return photos.photo_size(path)
    except BadRecord:
        return None


def _most_objects(masks: list[Path]) -> int | None:
    found: list[int] = []
    for name in _some([str(path) for path in masks]) if masks else []:
        try:
            labels = photos.to_labels(photos.load_codes(Path(name)), Path(name))
            found.append(int(labels.max(initial=0)))
        except BadRecord:
            continue
    return max(found, default=None)


def first_process_console() -> Console:
    """Where to say what was skipped: once, by the first of several processes."""
    first = os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")) == "0"
    return Console(stderr=True, quiet=not first)
