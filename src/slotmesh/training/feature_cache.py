"""Features of all images of a split, computed once and kept on disk.

::

    CACHE/NAME-KEY/
      about.json     which backbone, which images
      features.f16   float16 (rows, patches, dim): one row per image
      rows.bin       three hashes per row: of the image's stamp, of its pixels, of its features

A row is valid if its features have the recorded hash and were computed from the present image. A
process that was killed, a damaged file or a changed image therefore only costs the rows concerned.
"""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from slotmesh.files import slug, write_whole
from slotmesh.nn import FrozenFeatures
from slotmesh.readers import BadRecord
from slotmesh.training.processes import Lock

_VERSION = 1
_HASH = 16
_BATCH = {"cpu": 16, "cuda": 256}
_THREADS = min(8, os.cpu_count() or 1)
_WAIT_S = 1.0
# Number of bytes from which on checking takes long enough to show progress.
_LARGE = 1 << 30


class Rows(Protocol):
    """The images of a split, as the cache needs them."""

    what: str
    """Identifies the images, for the key of the cache: the same text means the same rows."""
    title: str
    """Name of the split in messages."""

    def __len__(self) -> int: ...

    def stamp(self, row: int) -> str:
        """A string that is quick to read and changes if the image does, such as the file's time."""
        ...

    def images(self, rows: Sequence[int]) -> Iterable[Tensor | BadRecord]:
        """The pixels of these rows, each uint8 ``(3, H, W)``, or why they cannot be read."""
        ...


class FeatureFile:
    """Features on disk.

    Args:
        path: The file.
        shape: Rows, patches, size of a feature.
        good: Rows that have features, in order.
        bad: Why the others have none.
    """

    def __init__(
        self, path: Path, shape: tuple[int, int, int], good: Sequence[int], bad: list[BadRecord]
    ) -> None:
        self.values: NDArray[np.float16] = np.memmap(path, np.float16, mode="r", shape=shape)
        self.good = np.asarray(good, np.int64)
        self.bad = bad

    def __len__(self) -> int:
        return len(self.good)

    @property
    def nbytes(self) -> int:
        """Bytes of all features."""
        return len(self) * int(np.prod(self.values.shape[1:])) * 2

    def read(self, index: Sequence[int] | NDArray[np.int64]) -> Tensor:
        """The features of these samples, float16 ``(k, n, dim)``, in memory."""
        return torch.from_numpy(np.ascontiguousarray(self.values[self.good[np.asarray(index)]]))


def cached_features(
    encoder: FrozenFeatures, rows: Rows, cache: Path, device: torch.device, console: Console
) -> FeatureFile:
    """Open the features of a split, and compute those that are missing or damaged.

    Args:
        encoder: Computes them; it is moved to the device.
        rows: The images.
        cache: Folder for the features of all datasets.
        device: Where to compute.
        console: Shows how far it is, and says what was damaged.

    Raises:
        ValueError: If there is not enough room on the disk, or the folder cannot be written.
    """
    about = _about(encoder, rows)
    key = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]
    folder = cache / f"{slug(Path(encoder.name).name)[:40]}-{slug(rows.title)[:40]}-{key}"
    shape = (len(rows), encoder.out_grid[0] * encoder.out_grid[1], encoder.out_dim)
    lock = Lock(folder)
    try:
        _wait_for(lock, console)
        try:
            made = _Cache(folder, shape, about, console)
            missing, retry = made.check(rows)
            bad = made.fill(encoder, rows, missing, retry, device) if missing else []
        finally:
            lock.release()
    except OSError as error:
        raise ValueError(
            f"The feature cache {folder} cannot be written: {error.strerror or error}. Free some "
            "space, or choose another folder with --data.cache."
        ) from error
    lost = {row for row, _ in bad}
    good = [row for row in range(len(rows)) if row not in lost]
    return FeatureFile(made.features, shape, good, [why for _, why in bad])


class _Cache:
    """The files of one split."""

    def __init__(
        self, folder: Path, shape: tuple[int, int, int], about: dict[str, Any], console: Console
    ) -> None:
        self.folder = folder
        self.shape = shape
        self.console = console
        self.features = folder / "features.f16"
        self.rows = folder / "rows.bin"
        self.row_bytes = shape[1] * shape[2] * 2
        wrong = self._wrong(about)
        if wrong:
            self._say(f"The feature cache {folder} is damaged ({wrong}) and is rebuilt.")
        if wrong is None or wrong:
            self._begin(about)
        self.hashes = np.fromfile(self.rows, np.uint8).reshape(shape[0], 3, _HASH)

    def _wrong(self, about: dict[str, Any]) -> str | None:
        """What is wrong with the cache: "" for nothing, or None if there is no cache yet."""
        path = self.folder / "about.json"
        if not path.is_file():
            return None
        try:
            if json.loads(path.read_text(encoding="utf-8")) != about:
                return "about.json does not fit"
        except ValueError:
            return "about.json cannot be read"
        sizes = {self.features: self.row_bytes, self.rows: 3 * _HASH}
        for file, each in sizes.items():
            if not file.is_file() or file.stat().st_size != each * self.shape[0]:
                return f"{file.name} has another size"
        return ""

    def _begin(self, about: dict[str, Any]) -> None:
        need = self.shape[0] * self.row_bytes
        for file in (self.folder / "about.json", self.features, self.rows):
            file.unlink(missing_ok=True)
        free = shutil.disk_usage(self.folder).free
        if need > free:
            raise ValueError(
                f"The features of {self.shape[0]:,} images take {_amount(need)}, but "
                f"{self.folder.parent} has room for {_amount(free)}. Choose another folder with "
                "--data.cache, or fewer images with --data.train-size."
            )
        for file, each in ((self.features, self.row_bytes), (self.rows, 3 * _HASH)):
            with file.open("wb") as made:
                made.truncate(each * self.shape[0])
        # Written last: without it, the rest is ignored.
        write_whole(self.folder / "about.json", json.dumps(about, indent=2) + "\n")

    def check(self, rows: Rows) -> tuple[list[int], set[int]]:
        """Find the rows without valid features, and those whose image may have changed.

        The second set is the part of the first that may turn out to be unchanged.
        """
        done: NDArray[np.bool_] = np.any(self.hashes[:, 2], axis=-1)
        values = np.memmap(self.features, np.float16, mode="r", shape=self.shape)
        which = np.flatnonzero(done).tolist()

        def sound(row: int) -> bool:
            return bool((_hash(values[row]) == self.hashes[row, 2]).all())

        large = len(which) * self.row_bytes > _LARGE
        with (
            ThreadPoolExecutor(_THREADS) as pool,
            _progress(self.console, shown=large) as progress,
        ):
            bar = progress.add_task("checking features", total=len(which))
            damaged: set[int] = set()
            for row, good in zip(which, pool.map(sound, which, chunksize=16), strict=True):
                progress.advance(bar)
                if not good:
                    damaged.add(row)
        if damaged:
            self._say(
                f"{len(damaged):,} of {self.shape[0]:,} features in {self.folder} are damaged: "
                "they are computed again."
            )
        retry: set[int] = set()
        missing: list[int] = []
        for row in range(self.shape[0]):
            if not done[row] or row in damaged:
                missing.append(row)
            elif not (_hash(rows.stamp(row).encode()) == self.hashes[row, 0]).all():
                missing.append(row)
                retry.add(row)
        return missing, retry

    def fill(
        self,
        encoder: FrozenFeatures,
        rows: Rows,
        missing: list[int],
        retry: set[int],
        device: torch.device,
    ) -> list[tuple[int, BadRecord]]:
        """Compute the features of these rows; return rows that cannot be read, and why."""
        encoder.to(device)
        bad: list[tuple[int, BadRecord]] = []
        began = time.monotonic()
        computed = 0
        with (
            self.features.open("r+b") as features,
            self.rows.open("r+b") as hashes,
            _progress(self.console, shown=True) as progress,
        ):
            bar = progress.add_task("computing features", total=len(missing))
            for block in _blocks(missing, _BATCH.get(device.type, 16)):
                new: list[tuple[int, Tensor, NDArray[np.uint8]]] = []
                for row, image in zip(block, rows.images(block), strict=True):
                    if isinstance(image, BadRecord):
                        bad.append((row, image))
                        self._write(hashes, row, None)
                        continue
                    pixels = _hash(np.ascontiguousarray(image.cpu().numpy()))
                    if row in retry and (pixels == self.hashes[row, 1]).all():
                        # The file was touched, but the image is the same.
                        self._write(hashes, row, (rows.stamp(row), pixels, self.hashes[row, 2]))
                        continue
                    new.append((row, image, pixels))
                if new and not computed:
                    self._say(
                        f"Computing the features of {len(missing):,} images for {rows.title}, "
                        f"once: {_amount(self.shape[0] * self.row_bytes)} in {self.folder}"
                    )
                if new:
                    found = _computed(encoder, [image for _, image, _ in new], device)
                    for (row, _, pixels), values in zip(new, found, strict=True):
                        features.seek(row * self.row_bytes)
                        features.write(values.tobytes())
                        # The hashes come last: they complete the row.
                        features.flush()
                        self._write(hashes, row, (rows.stamp(row), pixels, _hash(values)))
                    computed += len(new)
                progress.advance(bar, len(block))
        if computed:
            self._say(f"Computed {computed:,} features in {time.monotonic() - began:.0f} s.")
        return bad

    def _write(self, file: Any, row: int, known: tuple[str, Any, Any] | None) -> None:
        """Record the hashes of a row; None if it has no features."""
        new = np.zeros((3, _HASH), np.uint8)
        if known is not None:
            stamp, *others = known
            new[:] = (_hash(stamp.encode()), *others)
        self.hashes[row] = new
        file.seek(row * 3 * _HASH)
        file.write(self.hashes[row].tobytes())
        file.flush()

    def _say(self, words: str) -> None:
        self.console.print(escape(words), highlight=False, soft_wrap=True)


def _about(encoder: FrozenFeatures, rows: Rows) -> dict[str, Any]:
    """What determines the features, except for the pixels, which are compared row by row."""
    return {
        "version": _VERSION,
        "backbone": encoder.name,
        "sha256": encoder.hash,
        "resolution": list(encoder.resolution),
        "grid": list(encoder.out_grid),
        "dim": encoder.out_dim,
        "images": hashlib.sha256(rows.what.encode(errors="surrogateescape")).hexdigest(),
        "n": len(rows),
    }


def _computed(
    encoder: FrozenFeatures, images: list[Tensor], device: torch.device
) -> NDArray[np.float16]:
    batch = torch.stack([image.to(device) for image in images])
    with torch.inference_mode():
        values = encoder(batch).float()
    # Larger numbers would become infinite in float16.
    most = torch.finfo(torch.float16).max
    if not bool(values.isfinite().all()):
        raise ValueError(
            f"The backbone {encoder.name} gives features that are not finite. Use other weights."
        )
    return values.clamp(-most, most).to(torch.float16).cpu().numpy()


def _amount(n: int) -> str:
    return f"{n / 1e9:.1f} GB" if n > 1e9 else f"{n / 1e6:.1f} MB"


def _hash(data: Any) -> NDArray[np.uint8]:
    content: Any = data if isinstance(data, bytes) else np.ascontiguousarray(data).view(np.uint8)
    return np.frombuffer(hashlib.blake2b(content, digest_size=_HASH).digest(), np.uint8)


def _wait_for(lock: Lock, console: Console) -> None:
    """Wait for the lock: another process may be computing the same features."""
    said = False
    while True:
        try:
            lock.acquire()
        except ValueError:
            if not said:
                words = f"Waiting for another process that computes the features in {lock.folder}."
                console.print(escape(words), highlight=False, soft_wrap=True)
            said = True
            time.sleep(_WAIT_S)
        else:
            return


def _blocks(rows: list[int], size: int) -> Iterator[list[int]]:
    for first in range(0, len(rows), size):
        yield rows[first : first + size]


def _progress(console: Console, *, shown: bool) -> Progress:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    quiet = not shown or not console.is_terminal
    return Progress(*columns, console=console, disable=quiet, transient=True)
