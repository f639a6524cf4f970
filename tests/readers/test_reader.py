"""Indices and batches, as all readers take them."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from slotmesh.readers import HDF5Reader, VectorReader
from slotmesh.readers.hdf5_writer import write_hdf5
from slotmesh.worlds import RandomObjects


def images(path: Path) -> None:
    """A file of six images."""
    with h5py.File(path, "w") as file:
        file["images"] = np.zeros((6, 3, 4, 4), np.uint8)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (torch.tensor([True, False]), "a mask of 2 booleans, expected whole numbers"),
        ([0.7], "numbers of type torch.float32"),
        ([-1], "the index has -1, expected whole numbers of at least 0"),
        ([99], "there is no record 99"),
    ],
)
def test_what_is_no_index_is_named(tmp_path: Path, index: Any, message: str) -> None:
    images(tmp_path / "x.h5")
    vectors = [RandomObjects(dim=2).sample(range(6))]
    write_hdf5(tmp_path / "v.h5", lambda start: vectors, n=6, source="random-objects", settings={})
    for reader in (HDF5Reader(tmp_path / "x.h5"), VectorReader(tmp_path / "v.h5")):
        with pytest.raises(ValueError, match=message):
            reader.sample(index)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size is 0, expected a whole number of at least 1"),
        ({"batch_size": -3}, "batch_size is -3, expected"),
        ({"batch_size": 2, "start": -1}, "start is -1, expected"),
    ],
)
def test_what_are_no_batches_is_named(
    tmp_path: Path, options: dict[str, int], message: str
) -> None:
    images(tmp_path / "x.h5")
    with pytest.raises(ValueError, match=message):
        HDF5Reader(tmp_path / "x.h5").batches(**options)


@pytest.mark.parametrize("start", [-1, 1.5, "a", None])
def test_what_is_no_first_record_is_named_at_once(tmp_path: Path, start: Any) -> None:
    images(tmp_path / "x.h5")
    reader = HDF5Reader(tmp_path / "x.h5")
    with pytest.raises(ValueError, match=r"HDF5Reader\.records: start is .*, expected"):
        reader.records(start)
    assert len(list(reader.records(len(reader) - 1))) == 1
    assert not list(reader.records(len(reader)))


@pytest.mark.parametrize("split", [[0, 1], slice(3), {}, None, 3])
def test_what_is_no_split_is_named(tmp_path: Path, split: Any) -> None:
    images(tmp_path / "x.h5")
    with pytest.raises(ValueError, match=r"split is .*, expected one of 'all', .*, or a range"):
        HDF5Reader(tmp_path / "x.h5", split)
