"""The layout of slotmesh's own HDF5 files, for reading."""

from pathlib import Path

import h5py
import numpy as np
import torch
from numpy.typing import NDArray

from slotmesh.readers._h5 import dataset
from slotmesh.readers._hdf5_layout import FORMAT_VERSION
from slotmesh.readers.errors import BadRecord
from slotmesh.worlds.sample import Sample


class OwnLayout:
    """The layout that :mod:`slotmesh.readers._hdf5_layout` describes."""

    dataset = ""

    def __init__(self, file: h5py.File, path: Path) -> None:
        self._path = path
        version, kind = file.attrs.get("format_version"), file.attrs.get("kind")
        if version != FORMAT_VERSION:
            reason = f"its format_version is {version}, expected {FORMAT_VERSION}. Update slotmesh"
            raise BadRecord(path, None, reason)
        if kind not in ("image", "video"):
            reason = f"its kind is {kind!r}, expected 'image' or 'video' (VectorReader has vectors)"
            raise BadRecord(path, None, reason)
        dims = 5 if kind == "video" else 4
        images = dataset(file, path, "images", np.uint8, dims)
        self.n = images.shape[0]
        masks = dataset(file, path, "masks", np.uint8, dims - 1)
        present = dataset(file, path, "present", np.bool_, dims - 2)
        index = dataset(file, path, "index", np.int64, 1)
        expected = (*images.shape[: dims - 3], *images.shape[-2:])
        if images.shape[-3] != 3 or masks.shape != expected:
            reason = f"images have shape {images.shape} and masks {masks.shape}: they do not fit"
            raise BadRecord(path, None, reason)
        self.max_objects = present.shape[-1]
        group = file.get("objects")
        names = list(group) if isinstance(group, h5py.Group) else []
        self._columns = [f"objects/{name}" for name in names]
        columns = [dataset(file, path, name, None, None) for name in self._columns]
        for each in (masks, present, index, *columns):
            if each.shape[:1] != (self.n,):
                reason = f"{each.name} has shape {each.shape}, expected {self.n} rows as in images"
                raise BadRecord(path, None, reason)

    def read(
        self, file: h5py.File, rows: slice | NDArray[np.int64], which: NDArray[np.int64]
    ) -> Sample:
        """Some rows, in the order of the file."""

        def get(name: str) -> torch.Tensor:
            return torch.from_numpy(np.asarray(file[name][rows]))  # pyright: ignore

        return Sample(
            image=get("images"),
            mask=get("masks"),
            objects={name.removeprefix("objects/"): get(name) for name in self._columns},
            present=get("present"),
            index=get("index"),
        )
