"""Samples as features: the images that the cache computes them from, and what a run gets."""

import hashlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from slotmesh.readers import BadRecord, ImageReader
from slotmesh.training.feature_cache import FeatureFile
from slotmesh.worlds.record import TensorRecord

_THREADS = 8
# Number of samples of a dataset whose pixels stand for all of them.
_PROBES = 8
_CHUNK = 1024


@dataclass(frozen=True)
class FeatureSample(TensorRecord):
    """A batch of images as features."""

    index: Tensor
    """int64 ``(batch)``: which samples these are."""
    features: Tensor
    """float16 ``(batch, n, dim)``."""
    image: Tensor
    """uint8 ``(batch, 3, H, W)``; ``(batch, 0)`` for training, which only needs features."""
    mask: Tensor
    """uint8 ``(batch, H, W)``: 1 + the object's index, 0 for none; ``(batch, 0)`` for training."""


class FeatureSource:
    """Samples of a split: features from the cache, images and masks from their source.

    Args:
        file: The features.
        inner: Source of the images and masks; None for training.
        split: Which part of the data they are.
        keep_on: A GPU that keeps all features, if it has room for them.
        place: Device of the samples otherwise.
    """

    def __init__(
        self,
        file: FeatureFile,
        inner: Any,
        split: str,
        *,
        keep_on: torch.device | None = None,
        place: torch.device | str = "cpu",
    ) -> None:
        self.place = place
        self.file = file
        self.inner = inner
        self.split = split
        self._kept: Tensor | None = None
        if keep_on is not None and file.nbytes < torch.cuda.mem_get_info(keep_on)[0] // 2:
            shape = (len(file), *file.values.shape[1:])
            self._kept = torch.empty(shape, dtype=torch.float16, device=keep_on)
            for first in range(0, len(file), _CHUNK):
                part = range(first, min(first + _CHUNK, len(file)))
                self._kept[first : part.stop] = file.read(part).to(keep_on)

    def __len__(self) -> int:
        return len(self.file)

    def sample(self, index: Any) -> FeatureSample:
        """The samples of these indices, as one batch."""
        which = torch.as_tensor(index, dtype=torch.int64)
        if self._kept is not None:
            place = self._kept.device
            # From pinned memory, so that nothing waits for the GPU.
            there = which.pin_memory().to(place, non_blocking=True)
            features = self._kept[there]
        else:
            features = self.file.read(which.cpu().numpy()).to(self.place)
        if self.inner is None:
            none = torch.empty(len(which), 0, dtype=torch.uint8, device=features.device)
            return FeatureSample(which.to(features.device), features, none, none)
        rows = self.file.good[which.cpu().numpy()]
        seen = self.inner.sample(rows.tolist())
        return FeatureSample(which, features, seen.image, seen.mask).to(seen.image.device)


# ---- images as the cache needs them ----


class FolderRows:
    """The training images of a folder, which are not kept in memory."""

    def __init__(self, reader: ImageReader, most: int | None) -> None:
        self.reader = reader
        self.names = reader.names[:most]
        self.title = f"{reader.root.resolve().name}-train"
        self.what = "\n".join([f"{reader.size} {reader.square}", *self.names])

    def __len__(self) -> int:
        return len(self.names)

    def stamp(self, row: int) -> str:
        """Size and time of the file."""
        try:
            about = (self.reader.root / self.names[row]).stat()
        except OSError:
            return "gone"
        return f"{about.st_size} {about.st_mtime_ns}"

    def images(self, rows: Sequence[int]) -> Iterable[Tensor | BadRecord]:
        """Read the images of these rows, or why one cannot be read."""

        def read(row: int) -> Tensor | BadRecord:
            try:
                return self.reader.read(row).image[0]
            except BadRecord as bad:
                return bad

        with ThreadPoolExecutor(_THREADS) as pool:
            yield from pool.map(read, rows)


class LoadedRows:
    """Images in memory; the stamp is a hash of the pixels."""

    def __init__(self, images: Tensor, title: str) -> None:
        self.pixels = images
        self.title = title
        self.what = f"{title} {len(images)}"

    def __len__(self) -> int:
        return len(self.pixels)

    def stamp(self, row: int) -> str:
        """A hash of the pixels."""
        return hashlib.blake2b(self.pixels[row].numpy().tobytes(), digest_size=16).hexdigest()

    def images(self, rows: Sequence[int]) -> Iterable[Tensor | BadRecord]:
        """The images of these rows."""
        return [self.pixels[row] for row in rows]


class DatasetRows:
    """A world, which is determined by its seed, or a dataset that does not change."""

    def __init__(self, source: Any, n: int, title: str, seed: int, root: str) -> None:
        self.source = source
        self.n = n
        self.title = title
        some = sorted({i * n // _PROBES for i in range(_PROBES)})
        pixels = [source.sample([i]).image.cpu().numpy().tobytes() for i in some]
        # These change with the renderer or the files. Devices may differ by a grey level.
        place = str(source.sample([0]).image.device)
        probe = hashlib.blake2b(b"".join(pixels), digest_size=16).hexdigest()
        self.what = f"{title} {seed} {root} {n} {place} {probe}"

    def __len__(self) -> int:
        return self.n

    def stamp(self, row: int) -> str:
        """The number of the sample: the key of the cache covers the rest."""
        return str(row)

    def images(self, rows: Sequence[int]) -> Iterable[Tensor | BadRecord]:
        """The images of these rows, or why one cannot be read."""
        try:
            return list(self.source.sample(list(rows)).image)
        except BadRecord:
            return [self._one(row) for row in rows]

    def _one(self, row: int) -> Tensor | BadRecord:
        try:
            return self.source.sample([row]).image[0]
        except BadRecord as bad:
            return bad
