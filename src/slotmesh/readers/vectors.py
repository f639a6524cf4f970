"""Exported sets of vectors (the world random-objects)."""

from collections.abc import Sequence
from pathlib import Path

import h5py
import numpy as np
import torch
from torch import Tensor

from slotmesh.readers._h5 import dataset, open_file
from slotmesh.readers._hdf5_layout import FORMAT, FORMAT_VERSION
from slotmesh.readers.errors import BadRecord
from slotmesh.worlds.random_objects import VectorSample


class VectorReader:
    """Sets of vectors that ``slotmesh data export random-objects`` wrote, held in memory.

    Args:
        root: The file.

    Example:
        >>> from slotmesh.readers import VectorReader
        >>> VectorReader("vectors.h5").sample(range(8)).inputs.shape  # doctest: +SKIP
        torch.Size([8, 105, 32])
    """

    def __init__(self, root: Path | str) -> None:
        path = Path(root)
        with open_file("VectorReader", path) as file:
            found = (file.attrs.get("format"), file.attrs.get("format_version"))
            kind = file.attrs.get("kind")
            if found != (FORMAT, FORMAT_VERSION) or kind != "vectors":
                reason = f"its format is {found} of kind {kind!r}, expected {FORMAT}, 'vectors'"
                raise BadRecord(path, None, reason)
            inputs = dataset(file, path, "inputs", np.float32, 3)
            targets = dataset(file, path, "targets", np.float32, 3)
            index = dataset(file, path, "index", np.int64, 1)
            if not len(inputs) == len(targets) == len(index):
                reason = f"inputs, targets and index have {len(inputs)}, {len(targets)} and "
                raise BadRecord(path, None, reason + f"{len(index)} rows, expected as many each")
            self._data = VectorSample(*(_load(d, path) for d in (inputs, targets, index)))

    def __len__(self) -> int:
        return len(self._data)

    def sample(self, index: Sequence[int] | range | Tensor) -> VectorSample:
        """The records of these indices, as one batch."""
        which = torch.as_tensor(index, dtype=torch.int64)
        if which.ndim != 1 or not bool(((which >= 0) & (which < len(self))).all()):
            raise ValueError(
                f"VectorReader.sample: the index has shape {tuple(which.shape)}, expected numbers "
                f"from 0 to {len(self) - 1}. Pass range(64), or a list."
            )
        data = self._data
        return VectorSample(data.inputs[which], data.targets[which], data.index[which])


def _load(found: h5py.Dataset, path: Path) -> Tensor:
    try:
        return torch.from_numpy(np.asarray(found[:]))
    except OSError as error:
        raise BadRecord(path, None, f"{found.name} is damaged or cut short: {error}") from error
