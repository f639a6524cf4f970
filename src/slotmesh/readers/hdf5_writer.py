"""Write slotmesh's own HDF5 files, and resume after being killed.

An unfinished file is a folder ``FILE.h5.part`` of blocks ``00000000.h5``, ``00000001.h5``, ...,
each a complete file (:mod:`slotmesh.readers.hdf5_layout`), written atomically: a kill can corrupt
an HDF5 file, but not a folder of finished ones. Started again, the writer resumes after the last
block. At the end the chunks of all blocks are copied, still compressed, into one file, which is
then renamed; at that moment the disk holds the data twice.
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

import slotmesh
from slotmesh.files import parts, write_whole
from slotmesh.readers import hdf5_layout as layout
from slotmesh.readers.hdf5_layout import Columns, Like, Skipped, WriteError
from slotmesh.worlds.random_objects import VectorSample
from slotmesh.worlds.sample import Sample


@dataclass(frozen=True)
class Written:
    """A finished file."""

    path: Path
    """The file."""
    n: int
    """Number of samples in it."""
    skipped: tuple[Skipped, ...]
    """The records that were skipped."""
    resumed_at: int
    """How many records an earlier, interrupted run had processed."""


Records = Callable[[int], Iterable[Sample | VectorSample | Skipped]]


def write_hdf5(
    path: Path | str,
    records: Records,
    *,
    n: int,
    source: str,
    settings: dict[str, Any],
    overwrite: bool = False,
    on_progress: Callable[[int], None] | None = None,
) -> Written:
    """Write ``n`` records to an HDF5 file, resuming an earlier run that was interrupted.

    Args:
        path: The file; its folder must exist. It appears only when it is complete.
        records: ``records(start)`` yields the records from number ``start`` on, in order: samples
            in batches of any length, and :class:`Skipped` for a record that could not be read.
        n: Total number of records.
        source: Name of the world or dataset.
        settings: What else determines the records; must be JSON.
        overwrite: Replace an existing file.
        on_progress: Called with the number of records processed.

    Raises:
        WriteError: If the disk is full, the folder cannot be written to, the file exists, or an
            interrupted run had other settings.
    """
    path = Path(path)
    part = path.with_name(path.name + ".part")
    identity = {
        "format": layout.FORMAT,
        "format_version": layout.FORMAT_VERSION,
        "source": source,
        "settings": json.dumps(settings, sort_keys=True),
        "slotmesh_version": slotmesh.__version__,
        "n_source": n,
    }
    if path.exists() and not overwrite:
        raise WriteError(
            f"{path} exists already. Choose another name, or pass "
            "--overwrite (in Python, overwrite=True)."
        )
    if not path.parent.is_dir():
        raise WriteError(f"{path}: the folder {path.parent} does not exist. Create it first.")
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
            raise WriteError(f"{path}: got {blocks.position} records, expected {n}.")
        with _explained(path, part):
            blocks.close()
            whole = part / f".whole.h5.{os.getpid()}.part"
            rows = _join(blocks.paths, whole, blocks.skipped, identity)
            whole.replace(path)
            shutil.rmtree(part)
    except BaseException:
        # A folder without a block is of no use for resuming.
        with suppress(OSError):
            part.rmdir()
        raise
    return Written(path, rows, tuple(blocks.skipped), resumed_at)


@contextmanager
def _explained(path: Path, part: Path) -> Iterator[None]:
    """Turn an OSError into one that says what is kept and how to resume."""
    try:
        yield
    except OSError as error:
        kept = f" Finished blocks are kept in {part}." if any(part.glob("*.h5")) else ""
        raise WriteError(
            f"{path} could not be written: {error.strerror or error}.{kept} Free some space, or "
            "choose a folder that can be written to, and repeat the command."
        ) from error


class _Blocks:
    """The folder of finished blocks, and the rows collected for the next one."""

    def __init__(self, folder: Path, identity: dict[str, Any]) -> None:
        self.folder = folder
        self.identity = identity
        self.paths: list[Path] = []
        self.skipped: list[Skipped] = []
        self.position = 0
        self._pending: list[Columns] = []
        self._rows = 0
        self._new_skipped: list[Skipped] = []
        for left in parts(folder, "*.h5"):
            left.unlink()
        while self._take_up(folder / f"{len(self.paths):08d}.h5"):
            pass

    def _take_up(self, path: Path) -> bool:
        """Take over a block of an earlier run, if it exists and is complete."""
        try:
            with h5py.File(path, "r") as file:
                theirs = layout.read_attributes(file)
                rows = int(theirs["n"])
                skipped = layout.read_skipped(file)
                sealed = layout.is_sealed(file, skipped)
        except (OSError, KeyError, RuntimeError, ValueError, TypeError, AssertionError):
            return False
        for name, mine in self.identity.items():
            if theirs.get(name) != mine:
                raise WriteError(
                    f"{self.folder} holds an interrupted run whose {name} is {theirs.get(name)!r}, "
                    f"expected {mine!r}. Delete that folder to start over, or choose another "
                    "name for the file."
                )
        if not sealed:
            return False
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
        columns = layout.columns_of(record)
        most = layout.rows_of_block(_like(columns))
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
        # In memory first: a full disk is then an ordinary error rather than one inside HDF5.
        memory = io.BytesIO()
        with h5py.File(memory, "w", libver=layout.LIBVER) as file:
            layout.create(file, _like(columns), self._rows)
            layout.write_attributes(file, self.identity, self._rows)
            layout.write_skipped(file, self._new_skipped)
            for name, values in columns.items():
                layout.dataset(file, name)[...] = values
            layout.seal(file, self._new_skipped)
        path = self.folder / f"{len(self.paths):08d}.h5"
        write_whole(path, memory.getbuffer())
        self.paths.append(path)
        self.skipped += self._new_skipped
        self._pending, self._rows, self._new_skipped = [], 0, []


def _join(blocks: list[Path], path: Path, skipped: list[Skipped], identity: dict[str, Any]) -> int:
    """Copy the chunks of all blocks into one file; returns the number of samples."""
    counts: list[int] = []
    like: Like = {}
    for block in blocks:
        with h5py.File(block, "r") as file:
            counts.append(int(layout.read_attributes(file)["n"]))
            like = like or {name: (d.shape[1:], d.dtype) for name, d in layout.datasets(file)}
    with _Sink(path, "w+b") as sink, h5py.File(sink, "w", libver=layout.LIBVER) as whole:
        layout.create(whole, like, sum(counts))
        layout.write_attributes(whole, identity, sum(counts))
        layout.write_skipped(whole, skipped)
        layout.seal(whole, skipped)
        start = 0
        for block, count in zip(blocks, counts, strict=True):
            with h5py.File(block, "r") as file:
                for name, source in layout.datasets(file):
                    _copy_chunks(source, layout.dataset(whole, name), start)
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
    """A file that hides its first error from HDF5, which could not be closed after it."""

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


def _copy_chunks(source: h5py.Dataset, target: h5py.Dataset, start: int) -> None:
    """Copy chunks without decompressing them, to rows from ``start`` (a multiple of the chunk)."""
    rest = (0,) * (source.ndim - 1)
    assert source.chunks is not None
    for row in range(0, source.shape[0], source.chunks[0]):
        mask, data = source.id.read_direct_chunk((row, *rest))
        target.id.write_direct_chunk((start + row, *rest), data, mask)


def _like(columns: Columns) -> Like:
    return {name: (values.shape[1:], values.dtype) for name, values in columns.items()}
