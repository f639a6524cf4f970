"""The layout of slotmesh's own HDF5 files, and a writer that survives being killed.

Layout, version 1. All datasets but ``skipped/*`` have the same first length ``n``::

    attributes of the file
      format            "slotmesh-samples"
      format_version    1
      kind              "image", "video" or "vectors"
      source            name of the world ("clevr") or of the dataset that was converted
      settings          JSON object with sorted keys: seed, size, split, ... of the source
      slotmesh_version  version that wrote the file
      n                 number of samples
      n_source          number of records asked for: n and those skipped
    datasets
      images     uint8  (n, 3, H, W), or (n, T, 3, H, W) where kind is "video"; RGB
      masks      uint8  (n, H, W), or (n, T, H, W); object i of the table is i + 1, 0 background
      objects/*  any    one column each: (n, max_objects, ...), or (n, T, max_objects, ...) where
                        the column changes over time; padded with zeros
      present    bool   (n, max_objects), or (n, T, max_objects)
      index      int64  (n): which samples of the source these are
      skipped/index   int64  (k): records that could not be read (``convert --skip-bad``)
      skipped/reason  str    (k): why

They are the fields of :class:`~slotmesh.worlds.Sample` under these names. Where ``kind`` is
"vectors", ``inputs`` (n, elements, dim) and ``targets`` (n, objects, dim), float32, stand in place
of images, masks, objects and present. All but ``skipped/*`` are chunked along the first axis,
compressed (gzip) and carry checksums (fletcher32), so that damage is an error on reading.

A file in the making is a folder ``FILE.h5.part`` of blocks ``00000000.h5``, ``00000001.h5``, ...,
each a whole file of this layout that appears under its name only once it is on the disk: a kill
can tear an HDF5 file, but not a folder of whole ones. Started again, the writer goes on after the
last block. At the end the blocks' chunks are copied, still compressed, into one file, which then
gets the final name; at that moment the disk holds the data twice.
"""

import io
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

import slotmesh
from slotmesh.worlds.random_objects import VectorSample
from slotmesh.worlds.sample import Sample

FORMAT = "slotmesh-samples"
FORMAT_VERSION = 1

# Small chunks keep reading one image cheap; blocks bound what a kill can lose, and the memory.
_CHUNK_BYTES = 256 * 1024
_BLOCK_BYTES = 32 * 1024 * 1024
_MOST_ROWS = 1024

Columns = dict[str, NDArray[Any]]


class WriteError(ValueError):
    """A file could not be written; what is whole so far is kept for the next start."""


@dataclass(frozen=True)
class Skipped:
    """In place of a sample: a record that could not be read."""

    index: int
    """Which record of the source."""
    reason: str
    """Why, in one line."""


@dataclass(frozen=True)
class Written:
    """What a finished file holds."""

    path: Path
    """The file."""
    n: int
    """Number of samples in it."""
    skipped: tuple[Skipped, ...]
    """The records that were left out."""
    resumed_at: int
    """How many records an earlier, interrupted run had dealt with already."""


Records = Callable[[int], Iterable[Sample | VectorSample | Skipped]]


def write(
    path: Path | str,
    records: Records,
    *,
    n: int,
    source: str,
    settings: dict[str, Any],
    overwrite: bool = False,
    on_progress: Callable[[int], None] | None = None,
) -> Written:
    """Write ``n`` records to an HDF5 file, going on from an earlier run that was interrupted.

    Args:
        path: The file; its folder must exist. It appears only when it is whole.
        records: ``records(start)`` gives the records from number ``start`` on, in order: samples
            in batches of any length, and :class:`Skipped` for a record that could not be read.
        n: Number of records in all.
        source: Name of the world or dataset.
        settings: What else determines the records; must survive JSON.
        overwrite: Replace a file that is there already.
        on_progress: Called with the number of records dealt with.

    Raises:
        WriteError: If the disk is full, the folder cannot be written to, the file is there
            already, or an interrupted run had other settings.
    """
    path = Path(path)
    part = path.with_name(path.name + ".part")
    identity = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "source": source,
        "settings": json.dumps(settings, sort_keys=True),
        "slotmesh_version": slotmesh.__version__,
        "n_source": n,
    }
    if path.exists() and not overwrite:
        raise WriteError(f"{path} is there already. Choose another name, or allow to overwrite it.")
    if not path.parent.is_dir():
        raise WriteError(f"{path} has no folder to be in: create {path.parent} first.")
    try:
        with _explained(path, part):
            part.mkdir(exist_ok=True)
            blocks = _Blocks(part, identity)
        resumed_at = blocks.position
        if on_progress:
            on_progress(resumed_at)
        for record in records(resumed_at) if resumed_at < n else ():
            with _explained(path, part):
                blocks.add(record)
            if on_progress:
                on_progress(blocks.position)
        if blocks.position != n:
            raise WriteError(f"{path}: {blocks.position} records came, expected {n}.")
        with _explained(path, part):
            blocks.close()
            whole = part / f"whole-{os.getpid()}.tmp"
            rows = _join(blocks.paths, whole, blocks.skipped, identity)
            whole.replace(path)
            shutil.rmtree(part)
    except BaseException:
        # A folder without a block is of no use to the next start.
        with suppress(OSError):
            part.rmdir()
        raise
    return Written(path, rows, tuple(blocks.skipped), resumed_at)


@contextmanager
def _explained(path: Path, part: Path) -> Iterator[None]:
    """Turn an error of the disk into one that says what is left and how to go on."""
    try:
        yield
    except OSError as error:
        kept = f" What is whole so far is kept in {part}." if any(part.glob("*.h5")) else ""
        raise WriteError(
            f"{path} could not be written: {error.strerror or error}.{kept} Make room, or choose "
            "a folder that can be written to, and start the same command again."
        ) from error


class _Blocks:
    """The folder of whole blocks, and the rows that are still too few for the next one."""

    def __init__(self, folder: Path, identity: dict[str, Any]) -> None:
        self.folder = folder
        self.identity = identity
        self.paths: list[Path] = []
        self.skipped: list[Skipped] = []
        self.position = 0
        self._pending: list[Columns] = []
        self._rows = 0
        self._new_skipped: list[Skipped] = []
        for left in folder.glob("*.tmp"):
            left.unlink()
        while self._take_up(folder / f"{len(self.paths):08d}.h5"):
            pass

    def _take_up(self, path: Path) -> bool:
        """Count a block of an earlier run, if it is there and whole."""
        try:
            with h5py.File(path, "r") as file:
                theirs = _read_attributes(file)
                rows = int(theirs["n"])
                skipped = read_skipped(file)
        except (OSError, KeyError):
            return False
        for name, mine in self.identity.items():
            if theirs.get(name) != mine:
                raise WriteError(
                    f"{self.folder} holds an interrupted run whose {name} is {theirs.get(name)!r}, "
                    f"expected {mine!r}. Delete that folder to start afresh, or choose another "
                    "name for the file."
                )
        self.paths.append(path)
        self.skipped += skipped
        self.position += rows + len(skipped)
        return True

    def add(self, record: Sample | VectorSample | Skipped) -> None:
        """Add a batch of samples, or a record that was skipped."""
        if isinstance(record, Skipped):
            self._new_skipped.append(record)
            self.position += 1
            return
        columns = columns_of(record)
        most = _power_of_two(_BLOCK_BYTES // _row_bytes(columns))
        start = 0
        while start < len(record):
            taken = min(len(record) - start, most - self._rows)
            self._pending.append({k: v[start : start + taken] for k, v in columns.items()})
            self._rows += taken
            self.position += taken
            start += taken
            if self._rows == most:
                self.close()

    def close(self) -> None:
        """Write the pending rows as a block; only the last one may be shorter than the others."""
        if not self._pending:
            if self._new_skipped and not self.paths:
                raise WriteError(
                    f"None of {len(self._new_skipped)} records could be read; the first: "
                    f"{self._new_skipped[0].reason}"
                )
            self.skipped += self._new_skipped
            self._new_skipped = []
            return
        columns = {k: np.concatenate([p[k] for p in self._pending]) for k in self._pending[0]}
        # In memory first: a full disk is then an ordinary error, and not one inside HDF5.
        memory = io.BytesIO()
        with h5py.File(memory, "w") as file:
            like = {k: (v.shape[1:], v.dtype) for k, v in columns.items()}
            _create(file, like, self._rows)
            _attributes(file, self.identity, self._rows)
            _write_skipped(file, self._new_skipped)
            for name, values in columns.items():
                _dataset(file, name)[...] = values
        path = self.folder / f"{len(self.paths):08d}.h5"
        temporary = self.folder / f"block-{os.getpid()}.tmp"
        try:
            with temporary.open("wb") as out:
                out.write(memory.getbuffer())
                out.flush()
                os.fsync(out.fileno())
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        temporary.replace(path)
        self.paths.append(path)
        self.skipped += self._new_skipped
        self._pending, self._rows, self._new_skipped = [], 0, []


def columns_of(record: Sample | VectorSample) -> Columns:
    """The arrays of a batch, by the names of their datasets."""
    if isinstance(record, VectorSample):
        tensors = {"inputs": record.inputs, "targets": record.targets, "index": record.index}
    else:
        tensors = {"images": record.image, "masks": record.mask}
        tensors |= {f"objects/{name}": column for name, column in record.objects.items()}
        tensors |= {"present": record.present, "index": record.index}
    return {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}


def read_source(path: Path | str) -> tuple[str, dict[str, Any]]:
    """Source and settings of a file of this layout; empty for one of another."""
    with h5py.File(path, "r") as file:
        if file.attrs.get("format") != FORMAT:
            return "", {}
        return str(file.attrs["source"]), json.loads(str(file.attrs["settings"]))


def read_skipped(file: h5py.File) -> list[Skipped]:
    """The records that a file's writer left out."""
    which, why = _dataset(file, "skipped/index")[:], _dataset(file, "skipped/reason").asstr()[:]
    return [Skipped(int(i), str(reason)) for i, reason in zip(which, why, strict=True)]


def _join(blocks: list[Path], path: Path, skipped: list[Skipped], identity: dict[str, Any]) -> int:
    """Copy the chunks of all blocks into one file; returns the number of samples."""
    counts: list[int] = []
    like: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}
    for block in blocks:
        with h5py.File(block, "r") as file:
            counts.append(int(_read_attributes(file)["n"]))
            like = like or {name: (d.shape[1:], d.dtype) for name, d in _datasets(file)}
    with _Sink(path, "w+b") as sink, h5py.File(sink, "w") as whole:
        _create(whole, like, sum(counts))
        _attributes(whole, identity, sum(counts))
        _write_skipped(whole, skipped)
        start = 0
        for block, count in zip(blocks, counts, strict=True):
            with h5py.File(block, "r") as file:
                for name, dataset in _datasets(file):
                    _copy_chunks(dataset, _dataset(whole, name), start)
            if sink.error:
                break
            start += count
    if sink.error:
        path.unlink(missing_ok=True)
        raise sink.error
    with path.open("rb") as done:
        os.fsync(done.fileno())
    return sum(counts)


class _Sink(io.FileIO):
    """A file that keeps its first error to itself: HDF5 cannot be closed after one it has seen."""

    error: OSError | None = None

    def write(self, data: Any, /) -> int:
        view = memoryview(data).cast("B")
        done = 0
        try:
            while self.error is None and done < len(view):
                done += super().write(view[done:]) or 0
        except OSError as error:
            self.error = error
        return len(view)

    def truncate(self, size: int | None = None, /) -> int:
        try:
            if self.error is None:
                return super().truncate(size)
        except OSError as error:
            self.error = error
        return size or 0


def _create(
    file: h5py.File, like: dict[str, tuple[tuple[int, ...], np.dtype[Any]]], rows: int
) -> None:
    """Make the datasets. Chunks depend on the shapes alone, so that blocks and file agree."""
    row_bytes = sum(_bytes(shape, dtype) for shape, dtype in like.values())
    block = _power_of_two(_BLOCK_BYTES // row_bytes)
    for name, (shape, dtype) in like.items():
        size = _bytes(shape, dtype)
        large = name in ("images", "masks", "inputs", "targets")
        chunk = min(block, _power_of_two(_CHUNK_BYTES // size)) if large else block
        file.create_dataset(
            name,
            (rows, *shape),
            dtype,
            chunks=(chunk, *shape),
            maxshape=(None, *shape),
            compression="gzip",
            shuffle=dtype.itemsize > 1,
            fletcher32=True,
        )


def _attributes(file: h5py.File, identity: dict[str, Any], rows: int) -> None:
    file.attrs.update(identity)
    file.attrs["n"] = rows
    images = file.get("images")
    video = isinstance(images, h5py.Dataset) and images.ndim == 5
    file.attrs["kind"] = "vectors" if images is None else "video" if video else "image"


def _read_attributes(file: h5py.File) -> dict[str, Any]:
    """The attributes as plain Python values; h5py gives numbers as numpy's."""
    values: dict[str, Any] = dict(file.attrs)
    return {k: v.item() if isinstance(v, np.generic) else v for k, v in values.items()}


def _write_skipped(file: h5py.File, skipped: list[Skipped]) -> None:
    file["skipped/index"] = np.array([s.index for s in skipped], dtype=np.int64)
    file.create_dataset(
        "skipped/reason", data=[s.reason for s in skipped], dtype=h5py.string_dtype()
    )


def _copy_chunks(source: h5py.Dataset, target: h5py.Dataset, start: int) -> None:
    """Copy compressed chunks as they are, the first to row ``start`` (a multiple of the chunk)."""
    rest = (0,) * (source.ndim - 1)
    assert source.chunks is not None
    for row in range(0, source.shape[0], source.chunks[0]):
        mask, data = source.id.read_direct_chunk((row, *rest))
        target.id.write_direct_chunk((start + row, *rest), data, mask)


def _datasets(file: h5py.File) -> Iterator[tuple[str, h5py.Dataset]]:
    """All datasets with a row a sample, with their names."""
    names: list[str] = []
    file.visit(names.append)
    for name in names:
        item = file[name]
        if isinstance(item, h5py.Dataset) and not name.startswith("skipped/"):
            yield name, item


def _dataset(file: h5py.File, name: str) -> h5py.Dataset:
    item = file[name]
    assert isinstance(item, h5py.Dataset)
    return item


def _row_bytes(columns: Columns) -> int:
    return sum(_bytes(values.shape[1:], values.dtype) for values in columns.values())


def _bytes(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    return int(np.prod(shape, dtype=np.int64)) * dtype.itemsize


def _power_of_two(most: int) -> int:
    """The largest power of two that is at most this, from 1 to the most rows of a block."""
    return 1 << (min(max(most, 1), _MOST_ROWS).bit_length() - 1)
