"""Read exported sets of vectors (the world random-objects)."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from slotmesh.readers._h5 import H5File
from slotmesh.readers._own import read_columns, read_header
from slotmesh.worlds.indices import as_indices
from slotmesh.worlds.random_objects import VectorSample

# Random vectors hardly compress: a larger claim is false, and all of it is held in memory.
_MOST_GROWTH = 16
_MOST_SMALL = 1 << 24


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
        with H5File("VectorReader", Path(root)) as file:
            header = read_header(file)
            if header is None:
                raise file.bad(
                    "it is not in slotmesh's layout, expected a file that `data export` wrote"
                )
            if header.kind != "vectors":
                raise file.bad(f"its kind is {header.kind!r}, expected 'vectors'")
            inputs = file.dataset("inputs", np.float32, 3)
            targets = file.dataset("targets", np.float32, 3)
            index = file.dataset("index", np.int64, 1)
            n = len(inputs)
            if not n == len(targets) == len(index):
                reason = f"inputs, targets and index have {n}, {len(targets)} and {len(index)} rows"
                raise file.bad(f"{reason}, expected as many each")
            claimed, stored = inputs.nbytes + targets.nbytes, file.path.stat().st_size
            if claimed > _MOST_GROWTH * stored + _MOST_SMALL:
                raise file.bad(f"it claims {claimed:,} bytes of vectors, and has {stored:,}")
            names = ["inputs", "targets", "index", *(["checksum"] if header.sealed else [])]
            found = read_columns(file, names, slice(None), np.arange(n))
        tensors = {name: torch.from_numpy(values) for name, values in found.items()}
        self._data = VectorSample(tensors["inputs"], tensors["targets"], tensors["index"])

    def __len__(self) -> int:
        return len(self._data)

    def sample(self, index: Sequence[int] | range | Tensor) -> VectorSample:
        """Read the records of these indices, as one batch."""
        which = as_indices("VectorReader.sample", index)
        if int(which.max()) >= len(self):
            raise ValueError(
                f"VectorReader.sample: there is no record {int(which.max())}, expected numbers "
                f"from 0 to {len(self) - 1}."
            )
        data = self._data
        return VectorSample(data.inputs[which], data.targets[which], data.index[which])
