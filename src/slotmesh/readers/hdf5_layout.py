"""The layout of slotmesh's own HDF5 files; :mod:`slotmesh.readers.hdf5_writer` writes them.

Layout, version 2. All datasets but ``skipped/*`` have the same length ``n``::

    attributes of the file
      format            "slotmesh-samples"
      format_version    2
      kind              "image", "video" or "vectors"
      source            name of the world ("clevr") or of the dataset that was converted
      settings          JSON object with sorted keys: seed, size, split, ... of the source
      slotmesh_version  version that wrote the file
      n                 number of samples
      n_source          number of records requested: n plus those skipped
      digest            SHA-256 of the other attributes, the names, shapes and types of all
                        datasets, and the records skipped (:func:`digest`)
    datasets
      images     uint8  (n, 3, H, W), or (n, T, 3, H, W) where kind is "video"; RGB
      masks      uint8  (n, H, W), or (n, T, H, W); i + 1 for object i of the table, 0 background
      objects/*  any    one column each: (n, max_objects, ...), or (n, T, max_objects, ...) where
                        the column changes over time; padded with zeros
      present    bool   (n, max_objects), or (n, T, max_objects)
      index      int64  (n): which samples of the source these are
      checksum   uint32 (n): CRC-32 of the row in all other columns (:func:`checksums`)
      skipped/index   int64  (k): records that could not be read (``convert --skip-bad``)
      skipped/reason  str    (k): why

They are the fields of :class:`~slotmesh.worlds.Sample` under these names. Where ``kind`` is
"vectors", ``inputs`` (n, elements, dim) and ``targets`` (n, objects, dim), float32, replace
images, masks, objects and present. All but ``skipped/*`` are chunked along the first axis,
compressed (gzip) and have checksums (fletcher32).

Damage raises an error on reading. HDF5's own checksums do not detect all of it: HDF5 fills in zeros
for a missing chunk, and has no checksum for strings of variable length. Therefore strings have a
fixed length, the digest is checked when the file is opened, and the checksum of each row when the
row is read. HDF5's structures are those of version 1.10, which have checksums too; older ones can
crash the library if they are damaged. Files of version 1 had none of these.
"""

import hashlib
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from slotmesh.worlds.random_objects import VectorSample
from slotmesh.worlds.sample import Sample

FORMAT = "slotmesh-samples"
FORMAT_VERSION = 2
LIBVER = ("v110", "v110")
"""The version of HDF5's structures."""

# Small chunks make reading one image cheap; blocks bound memory, and what a kill can lose.
_CHUNK_BYTES = 256 * 1024
_BLOCK_BYTES = 32 * 1024 * 1024
_MOST_ROWS = 1024

Columns = dict[str, NDArray[Any]]
Like = dict[str, tuple[tuple[int, ...], np.dtype[Any]]]
"""Shape of a row and type of each dataset, by name."""


class WriteError(ValueError):
    """A file could not be written; finished blocks are kept for the next start."""


@dataclass(frozen=True)
class Skipped:
    """A record that could not be read, in place of a sample."""

    index: int
    """Which record of the source."""
    reason: str
    """Why, in one line."""


def columns_of(record: Sample | VectorSample) -> Columns:
    """The arrays of a batch, by the names of their datasets."""
    if isinstance(record, VectorSample):
        tensors = {"inputs": record.inputs, "targets": record.targets, "index": record.index}
    else:
        tensors = {"images": record.image, "masks": record.mask}
        tensors |= {f"objects/{name}": column for name, column in record.objects.items()}
        tensors |= {"present": record.present, "index": record.index}
    columns = {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}
    return columns | {"checksum": checksums(columns)}


def checksums(columns: Columns) -> NDArray[np.uint32]:
    """CRC-32 of each row ``(n)``, over its bytes in all columns, sorted by name."""
    n = len(columns["index"])
    rows: list[NDArray[np.uint8]] = []
    for name in sorted(columns):
        values = columns[name]
        values = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
        rows.append(np.frombuffer(values, np.uint8).reshape(n, values.nbytes // n))
    found = np.zeros(n, np.uint32)
    for i in range(n):
        checksum = 0
        for row in rows:
            checksum = zlib.crc32(row[i], checksum)
        found[i] = checksum
    return found


def digest(attributes: dict[str, Any], like: Like, skipped: list[Skipped]) -> str:
    """SHA-256 of everything in a file but its rows; ``like`` has the whole shapes here."""
    described = {
        "attributes": {name: value for name, value in attributes.items() if name != "digest"},
        "datasets": {name: [*shape, dtype.str] for name, (shape, dtype) in like.items()},
        "skipped": [[s.index, s.reason] for s in skipped],
    }
    return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()


def read_skipped(file: h5py.File) -> list[Skipped]:
    """Read the list of skipped records."""
    which, why = dataset(file, "skipped/index")[:], dataset(file, "skipped/reason").asstr()[:]
    return [Skipped(int(i), str(reason)) for i, reason in zip(which, why, strict=True)]


def rows_of_block(like: Like) -> int:
    """Rows per block: a power of two, so that chunks fill blocks evenly."""
    return _power_of_two(
        _BLOCK_BYTES // sum(_bytes(shape, dtype) for shape, dtype in like.values())
    )


def create(file: h5py.File, like: Like, rows: int) -> None:
    """Create the datasets. Chunks depend on the shapes only, so that blocks and file agree."""
    block = rows_of_block(like)
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


def write_attributes(file: h5py.File, identity: dict[str, Any], rows: int) -> None:
    """Write what the file is, and how many samples it holds."""
    images = file.get("images")
    video = isinstance(images, h5py.Dataset) and images.ndim == 5
    kind = "vectors" if images is None else "video" if video else "image"
    for name, value in (identity | {"n": rows, "kind": kind}).items():
        file.attrs[name] = np.bytes_(value.encode()) if isinstance(value, str) else value


def read_attributes(file: h5py.File) -> dict[str, Any]:
    """Read the attributes as plain Python values, where h5py returns numpy's."""
    values: dict[str, Any] = {name: plain(value) for name, value in file.attrs.items()}
    return values


def plain(value: Any) -> Any:
    """Convert a number or text of HDF5 to Python's."""
    value = value.item() if isinstance(value, np.generic) else value
    return value.decode() if isinstance(value, bytes) else value


def write_skipped(file: h5py.File, skipped: list[Skipped]) -> None:
    """Write the list of skipped records."""
    which = np.array([s.index for s in skipped], dtype=np.int64)
    reasons = [s.reason.encode() for s in skipped]
    longest = max(map(len, reasons), default=1)
    # Assignment would store the time in the group, and no two files would be the same.
    file.create_dataset("skipped/index", data=which)
    file.create_dataset("skipped/reason", data=np.array(reasons, dtype=f"S{max(longest, 1)}"))


def seal(file: h5py.File, skipped: list[Skipped]) -> None:
    """Write the digest, which covers all other attributes and so comes last."""
    file.attrs["digest"] = np.bytes_(_digest_of(file, skipped).encode())


def is_sealed(file: h5py.File, skipped: list[Skipped]) -> bool:
    """Whether the digest exists and is right."""
    return plain(file.attrs.get("digest")) == _digest_of(file, skipped)


def _digest_of(file: h5py.File, skipped: list[Skipped]) -> str:
    like: Like = {name: (d.shape, d.dtype) for name, d in datasets(file)}
    return digest(read_attributes(file), like, skipped)


def datasets(file: h5py.File) -> Iterator[tuple[str, h5py.Dataset]]:
    """Iterate over the datasets that have one row per sample, with their names."""
    names: list[str] = []
    file.visit(names.append)
    for name in names:
        item = file[name]
        if isinstance(item, h5py.Dataset) and not name.startswith("skipped/"):
            yield name, item


def dataset(file: h5py.File, name: str) -> h5py.Dataset:
    """The dataset of this name, which must exist."""
    item = file[name]
    assert isinstance(item, h5py.Dataset)
    return item


def _bytes(shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
    return int(np.prod(shape, dtype=np.int64)) * dtype.itemsize


def _power_of_two(most: int) -> int:
    """The largest power of two up to ``most``, from 1 to the most rows of a block."""
    return 1 << (min(max(most, 1), _MOST_ROWS).bit_length() - 1)
