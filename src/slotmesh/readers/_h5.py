"""Datasets of HDF5 files that others wrote."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np

from slotmesh.readers.errors import BadRecord


def dataset(
    file: h5py.File, path: Path, name: str, dtype: Any | None, dims: int | None
) -> h5py.Dataset:
    """A dataset of a file, its type and number of dimensions checked."""
    found = file.get(name)
    if not isinstance(found, h5py.Dataset):
        there = ", ".join(sorted(file)) or "nothing"
        raise BadRecord(path, None, f"it has no dataset {name!r}; it holds {there}")
    if dtype is not None and found.dtype != dtype:
        raise BadRecord(
            path, None, f"{name} has dtype {found.dtype}, expected {np.dtype(dtype).name}"
        )
    if dims is not None and found.ndim != dims:
        raise BadRecord(path, None, f"{name} has shape {found.shape}, expected {dims} dimensions")
    return found


def open_file(reader: str, path: Path) -> h5py.File:
    """An HDF5 file, for reading."""
    if not path.is_file():
        raise ValueError(
            f"{reader}: {path} does not exist, or is a folder. Pass an HDF5 file: one written by "
            "`slotmesh data export` or `data convert`, or one of the MESH authors' layout (images, "
            "masks, num_objects)."
        )
    try:
        return h5py.File(path, "r")
    except OSError as error:
        reason = f"it is not an HDF5 file, damaged or cut short: {error}"
        raise BadRecord(path, None, reason) from error
