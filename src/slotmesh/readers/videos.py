"""Folders of videos: clips, or folders of frames."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from slotmesh.ops import checks
from slotmesh.readers import clips, photos
from slotmesh.readers._identity import visible
from slotmesh.readers._images import Pixels
from slotmesh.readers._table import ArrayRecord, stack
from slotmesh.readers.errors import BadRecord
from slotmesh.readers.images import (
    Square,
    check_options,
    chosen,
    find_mask_files,
    find_masks,
)
from slotmesh.readers.listing import describe, find_files
from slotmesh.readers.reader import Reader, Split
from slotmesh.worlds.sample import Sample

CLIPS = (".mp4", ".m4v")
OTHER_CLIPS = (".mov", ".avi", ".mkv", ".webm", ".wmv", ".mpg", ".mpeg")
"""Of clips that are not read."""
_KINDS = "mp4 clips or folders of images"


class VideoReader(Reader):
    """A folder of mp4 clips, or of one folder per video with its frames as images.

    A sample is ``n_frames`` frames of one video, ``stride`` apart; the next sample of the video
    begins after them. Frames in a folder are sorted by name, so number them with leading zeros.
    Videos that are shorter than one sample are skipped and listed in ``short``.

    Masks are optional PNG files with the size of the frames, in a folder with the name of the
    video: the mask of ``a/0007.jpg`` is ``masks/a/0007.png``, and the mask of frame 7 of ``a.mp4``,
    counted from 0, is ``masks/a/7.png`` (leading zeros are allowed). An object must have the same
    index, grey level or colour in all frames; 0 (or black) is the background.

    Args:
        root: The folder.
        split: ``"train"``, ``"val"`` and ``"test"`` are about 80%, 10% and 10% of the videos,
            chosen by a hash of their names; ``"all"``; or a range of all videos.
        size: Width and height of the frames.
        n_frames: Number of frames per sample.
        stride: Distance between the frames of a sample, in frames of the video.
        square: ``"crop"`` keeps the central square, ``"squeeze"`` the whole frame.
        masks: Folder of the masks; default ``root/masks`` if it exists.
        seed: Seed of the split: another seed divides the videos differently.

    Example:
        >>> from slotmesh.readers import VideoReader
        >>> reader = VideoReader("clips", n_frames=4, stride=5)  # doctest: +SKIP
        >>> reader.read(0).image.shape  # doctest: +SKIP
        torch.Size([1, 4, 3, 64, 64])
    """

    name: ClassVar[str] = "videos"
    splits: ClassVar[Mapping[str, range]] = {}
    max_objects = photos.MOST_OBJECTS

    def __init__(
        self,
        root: Path | str,
        split: Split = "train",
        *,
        size: int = 64,
        n_frames: int = 2,
        stride: int = 1,
        square: Square = "crop",
        masks: Path | str | None = None,
        seed: int = 0,
    ) -> None:
        self.size = check_options("VideoReader", size, square)
        n_frames = checks.as_count("VideoReader", "n_frames", n_frames, 2)
        stride = checks.as_count("VideoReader", "stride", stride, 1)
        self.root = Path(root)
        self.square = square
        self.split = split
        self.n_frames = n_frames
        self.stride = stride
        self.masks = find_masks("VideoReader", self.root, masks)
        self.has_masks = self.masks is not None
        everything = find_videos(self.root, self.masks)
        self._masked = _pair_masks(self.masks, everything)
        self.names = chosen("VideoReader", self.root, sorted(everything), split, "videos", seed)
        """Names of the split's videos, relative to the root."""
        self._frames = {name: everything[name] for name in self.names}
        self.short: list[BadRecord] = []
        """Videos without a sample, and why."""
        self._starts: list[tuple[str, int]] = []
        span = (n_frames - 1) * stride + 1
        for name in self.names:
            try:
                n = self._length(name)
                if n < span:
                    reason = f"it has {n} frames, expected at least {span} for a sample"
                    raise BadRecord(self.root / name, None, reason)
            except BadRecord as bad:
                self.short.append(bad)
                continue
            last = max(self._masked.get(name, ()), default=0)
            if last >= n:
                reason = f"it is a mask without its frame: {name} has {n} frames, counted from 0"
                raise BadRecord(self._masked[name][last], None, reason)
            self._starts += [(name, start) for start in range(0, n - span + 1, span)]

    def __len__(self) -> int:
        return len(self._starts)

    def make(self, index: Sequence[int]) -> Sample:
        """Read the records of these indices, all of them within the split."""
        wanted: dict[str, list[int]] = {}
        for i in index:
            wanted.setdefault(self._starts[i][0], []).append(i)
        records: dict[int, ArrayRecord] = {}
        # A clip is decoded from its beginning: once for all of its samples.
        for name, samples in wanted.items():
            numbers = sorted({n for i in samples for n in self._numbers(i)})
            pixels = dict(zip(numbers, self._load(name, numbers), strict=True))
            for i in samples:
                records[i] = self._record(name, self._numbers(i), pixels)
        return stack([records[i] for i in index], index, str(self.root))

    def together(self) -> list[list[int]]:
        """The samples of each video, which are read fastest in one batch."""
        groups: dict[str, list[int]] = {}
        for i, (name, _) in enumerate(self._starts):
            groups.setdefault(name, []).append(i)
        return list(groups.values())

    def forget_masks(self) -> None:
        """Stop reading masks: training does not need them."""
        self._masked = {}

    def check_masks(self) -> None:
        """Do nothing: the sizes of masks are checked when frames are decoded."""

    def _numbers(self, index: int) -> range:
        start = self._starts[index][1]
        return range(start, start + self.n_frames * self.stride, self.stride)

    def _length(self, name: str) -> int:
        files = self._frames[name]
        return clips.count_frames(self.root / name) if files is None else len(files)

    def _load(self, name: str, numbers: list[int]) -> list[Pixels]:
        files = self._frames[name]
        if files is None:
            return clips.load_frames(self.root / name, numbers)
        masks = self._masked.get(name, {})
        found: list[Pixels] = []
        for n in numbers:
            least = None if n in masks else 2 * self.size
            found.append(photos.load_photo(self.root / files[n], least))
        return found

    def _record(self, name: str, numbers: range, pixels: dict[int, Pixels]) -> ArrayRecord:
        crop, side = self.square == "crop", self.size
        image = np.stack([photos.to_square(pixels[n], side, crop=crop) for n in numbers])
        codes = np.zeros((len(numbers), side, side), np.int64)
        masks = self._masked.get(name, {})
        for t, n in enumerate(numbers):
            if n in masks:
                codes[t] = self._codes(masks[n], pixels[n].shape[:2])
        # Numbered together, so that an object keeps its number from frame to frame.
        labels = photos.to_labels(codes, self.root / name)
        return ArrayRecord(image, labels, {}, visible(labels, self.max_objects))

    def _codes(self, path: Path, size: tuple[int, ...]) -> NDArray[np.int64]:
        codes = photos.load_codes(path)
        if codes.shape != tuple(size):
            reason = (
                f"the mask has {codes.shape[1]} x {codes.shape[0]} pixels, its frame {size[1]} x "
                f"{size[0]}, expected the same"
            )
            raise BadRecord(path, None, reason)
        return photos.to_square(codes, self.size, crop=self.square == "crop")  # pyright: ignore


def find_videos(root: Path, masks: Path | None) -> dict[str, list[str] | None]:
    """All videos by name: files of their frames in order, or None for a clip.

    Raises:
        ValueError: If there are none; says what the folder contains instead.
    """
    found: dict[str, list[str] | None] = dict.fromkeys(find_files(root, CLIPS, skip=masks))
    if found:
        clips.require_av("VideoReader")
    folders: dict[str, list[str]] = {}
    for name in find_files(root, photos.ENDINGS, skip=masks):
        folder, slash, _ = name.rpartition("/")
        if slash:
            folders.setdefault(folder, []).append(name)
    found |= folders
    if not found:
        raise ValueError(
            f"VideoReader: {root} has no {_KINDS}: {describe(root, masks)}. Pass the folder that "
            "they are in; for images without order, use `slotmesh train images`."
        )
    return found


def left_out(root: Path, masks: Path | None, *, video: bool) -> str:
    """Say which images (and clips, for video) have a format that is not read; empty if none has."""
    kinds = [(photos.OTHER_ENDINGS, "PNG or JPEG")] + [(OTHER_CLIPS, "mp4")] * video
    said: list[str] = []
    for endings, expected in kinds:
        names = find_files(root, endings, skip=masks)
        if names:
            found = ", ".join(sorted({Path(name).suffix.lower() for name in names}))
            n = f"{len(names):,} {'file' if len(names) == 1 else 'files'}"
            said.append(f"Left out: {n} ({found}), which would have to be {expected}.")
    return " ".join(said)


def _pair_masks(
    masks: Path | None, videos: Mapping[str, list[str] | None]
) -> dict[str, dict[int, Path]]:
    """The masks of each video, by frame number."""
    if masks is None:
        return {}
    of: dict[str, dict[str, int] | None] = {}
    for name, files in videos.items():
        stem = name.rpartition(".")[0] if files is None else name
        stems = None if files is None else {Path(f).stem: i for i, f in enumerate(files)}
        of[stem] = stems
    full = {name.rpartition(".")[0] if f is None else name: name for name, f in videos.items()}
    pairs: dict[str, dict[int, Path]] = {}
    for found in find_mask_files(masks):
        path = masks / found
        folder, _, file = found.rpartition("/")
        stem = Path(file).stem
        if folder not in of:
            reason = f"it is a mask without its video, expected one named {folder or stem}"
            raise BadRecord(path, None, reason)
        frames = of[folder]
        number = frames.get(stem) if frames is not None else _number(stem)
        if number is None:
            raise BadRecord(path, None, f"it is a mask without its frame: {folder} has no {stem}")
        pairs.setdefault(full[folder], {})[number] = path
    return pairs


def _number(stem: str) -> int | None:
    return int(stem) if stem.isascii() and stem.isdecimal() else None
