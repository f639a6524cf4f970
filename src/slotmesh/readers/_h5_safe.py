"""Checks of HDF5 files that others wrote: data in the file, no plugins, reasonable sizes."""

import os
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import h5py
import numpy as np
from h5py import h5d, h5pl, h5z  # pyright: ignore
from numpy.typing import NDArray

MOST_ROWS = 1 << 24
_MOST_BYTES = 1 << 28
"""Per row, and per chunk, which HDF5 holds in memory as a whole."""

# By what factor a stored chunk can grow; HDF5 may allocate a gigabyte at most.
_GROWTH = {h5z.FILTER_DEFLATE: 1032, h5z.FILTER_LZF: 88}
_MOST_GROWN = 1 << 30
_HARMLESS = {
    h5z.FILTER_DEFLATE: "gzip",
    h5z.FILTER_LZF: "lzf",
    h5z.FILTER_SHUFFLE: "shuffle",
    h5z.FILTER_FLETCHER32: "fletcher32",
}

_NUMBERS = {np.dtype(f"{kind}{size}") for kind in "iu" for size in (1, 2, 4, 8)}
_NUMBERS |= {np.dtype(t) for t in (np.bool_, np.float16, np.float32, np.float64)}


_lock = threading.RLock()


def link_problem(group: h5py.Group, name: str) -> str | None:
    """Why an entry of a group must not be followed; None if it is a hard link."""
    try:
        link = group.get(name, getlink=True)
    except TypeError:
        return "is a link of a kind that a plugin defines, which is not followed"
    if isinstance(link, h5py.ExternalLink):
        return f"is an external link to {link.filename!r}, which is not followed"
    if isinstance(link, h5py.SoftLink):
        return f"is a soft link to {link.path!r}, which is not followed"
    return None


def storage_problem(found: h5py.Dataset) -> str | None:
    """Why a dataset must not be read. Call it before reading the shape, which may open files."""
    properties = found.id.get_create_plist()
    if properties.get_layout() == h5d.VIRTUAL:
        return "is a virtual dataset, whose data are in other files"
    if properties.get_layout() not in (h5d.COMPACT, h5d.CONTIGUOUS, h5d.CHUNKED):
        return "is stored in a way that is not known"
    if properties.get_external_count():
        return "keeps its data in another file (external storage)"
    codes = [properties.get_filter(i)[0] for i in range(properties.get_nfilters())]
    wrong = [code for code in codes if code not in _HARMLESS]
    if wrong:
        expected = ", ".join(_HARMLESS.values())
        return f"needs the filter {wrong[0]} of HDF5, expected none but {expected}"
    if len(set(codes)) < len(codes) or len(_GROWTH.keys() & set(codes)) > 1:
        return "is compressed more than once"
    return None


def size_problem(found: h5py.Dataset) -> str | None:
    """Why a dataset is too large to be read."""
    if found.shape is None or found.dtype not in _NUMBERS:
        return f"has dtype {found.dtype}, expected truth values, whole or real numbers"
    if found.shape[:1] > (MOST_ROWS,):
        return f"claims {found.shape[0]:,} rows, expected at most {MOST_ROWS:,}"
    for what, shape in (("row", found.shape[1:]), ("chunk", found.chunks or ())):
        size = _bytes(shape, found)
        if size > _MOST_BYTES:
            return f"has {size:,} bytes in a {what}, expected at most {_MOST_BYTES:,}"
    return None


def may_burst(found: h5py.Dataset) -> bool:
    """Whether a stored chunk could fill the memory before HDF5 notices that it is wrong."""
    growth = max((_GROWTH.get(code, 1) for code in _codes(found)), default=1)
    if growth == 1 or found.chunks is None:
        return False
    largest = 0

    def look(chunk: Any) -> None:
        nonlocal largest
        largest = max(largest, chunk.size)

    # For most files the total size, which is faster to get, settles it.
    if found.id.get_storage_size() * growth > _MOST_GROWN:
        found.id.chunk_iter(look)
    return largest * growth > _MOST_GROWN


def burst_problem(found: h5py.Dataset, rows: slice | NDArray[np.int64]) -> str | None:
    """Why the chunks of these rows cannot be read; decompresses them up to their expected size."""
    if h5z.FILTER_DEFLATE not in _codes(found):
        return "has chunks that are too large for lzf, expected at most 12 MB each as stored"
    size = _bytes(found.chunks or (), found)
    for offset in _chunks(found, rows):
        info = found.id.get_chunk_info_by_coord(offset)
        if info.byte_offset is None:
            continue
        if info.size > size + size // 100 + 1024:
            return f"stores {info.size:,} bytes for a chunk of {size:,}"
        stored = found.id.read_direct_chunk(offset)[1]
        # A checksum of four bytes may have been compressed too.
        if len(zlib.decompressobj().decompress(stored, size + 5)) > size + 4:
            return f"has a chunk that grows beyond its {size:,} bytes"
    return None


def _chunks(found: h5py.Dataset, rows: slice | NDArray[np.int64]) -> Iterator[tuple[int, ...]]:
    """Offsets of the chunks that hold these rows."""
    assert found.chunks is not None
    which = np.arange(found.shape[0])[rows] if isinstance(rows, slice) else rows
    first = np.unique(which // found.chunks[0]) * found.chunks[0]
    others = [range(0, s, c) for s, c in zip(found.shape[1:], found.chunks[1:], strict=True)]
    yield from product(first.tolist(), *others)


def _codes(found: h5py.Dataset) -> list[int]:
    properties = found.id.get_create_plist()
    return [properties.get_filter(i)[0] for i in range(properties.get_nfilters())]


def _bytes(shape: tuple[int, ...], found: h5py.Dataset) -> int:
    size = found.dtype.itemsize
    for length in shape:
        size *= length
    return size


@contextmanager
def no_plugins() -> Iterator[None]:
    """Keep HDF5 from loading plugins: a file can name a filter, and HDF5 would load its code.

    The search path is a setting of the whole process, and is empty meanwhile.
    """
    with _lock:
        folders = [h5pl.get(i) for i in range(h5pl.size())]
        for _ in folders:
            h5pl.remove(0)
        try:
            yield
        finally:
            for folder in folders:
                h5pl.append(folder)


def _renew() -> None:
    global _lock
    _lock = threading.RLock()


# A process forked while another thread holds the lock would wait forever.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
