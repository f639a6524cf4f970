"""Object discovery on your own videos: any folder of clips, or of folders of frames."""

import statistics
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from slotmesh.readers import BadRecord, VideoReader, clips, photos
from slotmesh.readers.images import chosen
from slotmesh.readers.videos import find_videos
from slotmesh.training.settings import at_least
from slotmesh.training.tasks.defaults import most_objects, spread, suited_to, with_schedule
from slotmesh.training.tasks.experiment import S
from slotmesh.training.tasks.folder_task import (
    FolderData,
    FolderTask,
    is_file,
    masks_of,
    run_folder,
)
from slotmesh.training.tasks.image_model import OwnImageModel
from slotmesh.training.tasks.video_discovery import VideoDiscovery, VideoDiscoverySettings

if TYPE_CHECKING:
    from torchmetrics import Metric


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
        if is_file(self.root):
            raise ValueError(f"--data.root is {self.root}, which is a file; expected a folder.")
        at_least("data.n_frames", self.n_frames, 2)
        at_least("data.stride", self.stride, 1)


@dataclass(frozen=True)
class VideosSettings(VideoDiscoverySettings):
    """Find and follow the objects in a folder of your own videos."""

    preset: Literal["quick", "paper"] = "quick"
    """Defaults of all other settings: quick trains a small network in minutes on 2 CPU cores; paper
    has the size and schedule of the paper's network for CLEVRER, which takes hours on a GPU."""
    data: VideoFolderData = field(default_factory=VideoFolderData)  # pyright: ignore
    """The data to train and evaluate on."""
    model: OwnImageModel = field(default_factory=OwnImageModel)  # pyright: ignore
    """The network: encoder, slot attention, decoder or head."""

    @property
    def folder(self) -> Path:
        """The folder of the run, with the name of the videos' folder in it."""
        return run_folder(self) if self.out is None else self.out


class Videos(FolderTask, VideoDiscovery):
    """A folder of clips, or of folders of frames."""

    name = "video"
    title = "Videos"
    settings: VideosSettings  # pyright: ignore[reportIncompatibleVariableOverride]
    settings_type = VideosSettings
    reader_type = VideoReader
    easy = None

    def __init__(self, settings: VideosSettings) -> None:
        super().__init__(settings)
        self._begin("videos")

    @classmethod
    def preset(cls, variant: str, preset: str) -> VideosSettings:
        """Settings for 1,000 samples, which :meth:`suited` adapts."""
        base = super().preset(variant, preset)
        quick = preset == "quick"
        values: dict[str, Any] = {f.name: getattr(base, f.name) for f in fields(base)}
        values["model"] = OwnImageModel(**asdict(base.model))
        values["data"] = VideoFolderData(
            batch_size=8 if quick else 64, size=32 if quick else 64, n_frames=2 if quick else 4
        )
        return with_schedule(VideosSettings(**values), 1000)

    @classmethod
    def suited(cls, start: S, root: Path, size: int | None = None, masks: Path | None = None) -> S:
        """Adapt steps and stride to the number of frames, and the rest as for images."""
        masks = masks_of(root, masks)
        found = find_videos(root, masks)
        shapes: list[tuple[int, int]] = []
        lengths: list[int] = []
        for name in spread(sorted(found), 8):
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
        objects = most_objects(sorted(masks.rglob("*.png"))) if masks else None
        data: Any = getattr(start, "data")  # noqa: B009
        length = int(statistics.median(lengths)) if lengths else 1
        stride = max(1, min(4, (length - 1) // max(1, data.n_frames - 1)))
        span = (data.n_frames - 1) * stride + 1
        n = len(chosen("--data.root", root, sorted(found), "train", "videos"))
        start = replace(start, data=replace(data, stride=stride))  # pyright: ignore
        return suited_to(start, n * max(1, length // span), shapes, objects, size)

    def metrics(self) -> "dict[str, Metric]":
        """The metrics of images for each frame, and temporal consistency."""
        from slotmesh.metrics import TemporalConsistency

        found = super().metrics()
        return found | {"tc": TemporalConsistency(self.settings.model.n_slots)} if found else {}
