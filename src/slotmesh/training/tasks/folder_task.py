"""The base class of tasks on a folder of your own images or videos."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeGuard

import torch
from rich.console import Console

from slotmesh.files import slug
from slotmesh.readers import HDF5Reader, ImageReader, photos
from slotmesh.readers.images import Square, find_masks
from slotmesh.readers.videos import left_out
from slotmesh.training.settings import Data, at_least
from slotmesh.training.tasks.experiment import Goal, Source, Split
from slotmesh.training.tasks.folder import Loaded, load, load_file

if TYPE_CHECKING:
    from torchmetrics import Metric


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
            if name == "root" and is_file(path):
                continue
            if path is not None and not path.is_dir():
                what = "is a file" if path.exists() else "does not exist"
                raise ValueError(f"--data.{name} is {path}, which {what}; expected a folder.")


def run_folder(settings: Any, world: str | None = None) -> Path:
    """The default folder of a run, with the name of its data in it."""
    root: Path | None = settings.data.root
    own = "" if root is None else root.resolve().name

    def folder(name: str) -> Path:
        parts = (name, settings.variant, settings.preset, settings.seed)
        return Path("runs") / settings.task / "-".join(str(part) for part in parts if part != "")

    # Earlier versions kept only the letters of the English alphabet.
    before = folder(world or slug(own))
    return before if before.is_dir() else folder(world or slug(own, ascii_only=False))


class FolderTask:
    """A task on a folder, with or without masks, that is read into memory once."""

    has_world = False
    reader_type: ClassVar[Any] = ImageReader
    """Reads the folder."""
    settings: Any
    _opened: dict[str, Loaded]

    def _begin(self, noun: str) -> None:
        """Use the name of the folder, and a goal that needs no masks if there are none."""
        root = self.settings.data.root
        self._opened = {}
        name = None if root is None else root.resolve().name or str(root)
        self.title = noun.capitalize() if name is None else f"{noun.capitalize()} of {name}"
        self.about = f"Objects found by reconstructing {noun} through slots, without labels."
        if not self.has_masks:
            self.goal = Goal("loss", higher=False)

    @property
    def has_masks(self) -> bool:
        """Whether there are masks to compare slots with."""
        data: FolderData = self.settings.data
        if data.masks is not None:
            return True
        if is_file(data.root):
            return HDF5Reader(data.root, "all").has_masks
        return data.root is not None and (data.root / "masks").is_dir()

    def about_data(self) -> str | None:
        """The number of samples, and the files that cannot be used."""
        data: FolderData = self.settings.data
        n_train, n_val = (f"{n:,}" for n in self._sizes())
        frames = getattr(data, "n_frames", None)
        what = "images" if frames is None else f"samples of {frames} frames"
        said = f"Training on {n_train} {what}, validating on {n_val}."
        if data.root is not None and data.root.is_dir():
            masks = masks_of(data.root, data.masks)
            said += f" {left_out(data.root, masks, video=frames is not None)}"
        return said.rstrip()

    def _sizes(self) -> tuple[int, int]:
        """The number of samples for training and for validation."""
        for split in ("train", "val"):
            self.source(split, torch.device("cpu"))
        return len(self._opened["train"]), len(self._opened["val"])

    def next_command(self) -> tuple[str, ...]:
        """Without masks, there is little to evaluate but much to look at: suggest a report."""
        root, folder = self.settings.data.root, str(self.settings.folder)
        if self.has_masks or not root.is_dir():
            return ("slotmesh", "evaluate", folder)
        return ("slotmesh", "segment", folder, str(root))

    def check_data(self) -> None:
        """Read the images for training and validation, and look for test images."""
        data: FolderData = self.settings.data
        if data.root is None:
            raise ValueError(
                f"--data.root is missing, expected your folder: slotmesh train "
                f"{self.settings.task} --data.root FOLDER."
            )
        if self.has_masks and not is_file(data.root):
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
            if is_file(data.root):
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
        found = self.reader_type(data.root, split, **options)
        if split == "train":
            found.forget_masks()
        return found

    def metrics(self) -> "dict[str, Metric]":
        """FG-ARI, FG-mIoU and mean best overlap where there are masks; none otherwise."""
        from slotmesh.metrics import ForegroundARI, ForegroundMIoU, MeanBestOverlap

        # All of these are undefined for an image without a mask, which is then left out.
        kinds = {"fg_ari": ForegroundARI, "fg_miou": ForegroundMIoU, "mbo": MeanBestOverlap}
        sizes = (self.settings.model.n_slots, photos.MOST_OBJECTS)
        return {name: kind(*sizes) for name, kind in kinds.items()} if self.has_masks else {}


def masks_of(root: Path, given: Path | None) -> Path | None:
    """The folder of masks, if there is one; a wrong one is reported when settings are checked."""
    return find_masks("--data.root", root, given if given is not None and given.is_dir() else None)


def is_file(root: Path | None) -> TypeGuard[Path]:
    """Whether the data are in an HDF5 file."""
    return root is not None and root.is_file() and root.suffix.lower() in (".h5", ".hdf5")


def first_process_console() -> Console:
    """The console for skipped files, which only the first process lists."""
    first = os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")) == "0"
    return Console(stderr=True, quiet=not first)
