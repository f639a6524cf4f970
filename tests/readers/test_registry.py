import pickle
from pathlib import Path

import pytest

from slotmesh import readers
from slotmesh.readers import (
    READERS,
    BadRecord,
    ClevrReader,
    Reader,
    labels,
    open_reader,
    reader_options,
    register_reader,
)


def test_all_readers_by_name() -> None:
    datasets = {"clevr", "multi-dsprites", "clevrtex", "clevrer", "hdf5"}
    assert set(READERS) == datasets | {"images", "videos"}
    assert all(issubclass(r, Reader) and r.name == name for name, r in READERS.items())
    assert all(hasattr(readers, name) for name in readers.__all__)


def test_wrong_names_and_options(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no reader 'coco', expected one of clevr, multi-dsprites"):
        open_reader("coco", tmp_path)
    with pytest.raises(ValueError, match="'clevr' has no option 'frames', expected split, size"):
        open_reader("clevr", tmp_path, frames=(0, 1))
    with pytest.raises(ValueError, match="has no images"):
        open_reader("clevr", tmp_path, split="val")


def test_a_reader_from_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(ClevrReader):
        name = "own"

    monkeypatch.setattr("slotmesh.readers.registry.READERS", dict(READERS))
    register_reader(Own)
    assert reader_options("own") == reader_options("clevr")
    with pytest.raises(ValueError, match="has no images"):
        open_reader("own", tmp_path, size=32)
    with pytest.raises(ValueError, match="a reader named 'own' already exists"):
        register_reader(Own)


def test_an_error_survives_the_way_home_from_a_worker() -> None:
    bad = BadRecord(Path("a") / "b.json", 7, "no field 'x'", rest_lost=True)
    again = pickle.loads(pickle.dumps(bad))
    assert str(again) == str(bad) == f"{Path('a') / 'b.json'}, record 7: no field 'x'"
    assert (again.path, again.record, again.rest_lost) == (bad.path, 7, True)
    assert isinstance(again, ValueError)


def test_the_orders_of_classes_are_fixed() -> None:
    # Files that were exported hold these numbers: changing an order would change their meaning.
    assert labels.COLORS == ("gray", "red", "blue", "green", "brown", "purple", "cyan", "yellow")
    assert labels.MATERIALS == ("rubber", "metal")
    assert labels.SHAPES == ("cube", "sphere", "cylinder")
    assert labels.SIZES == ("small", "large")
    assert set(labels.AUTHORS_COLORS) - {""} == set(labels.COLORS)
    assert set(labels.AUTHORS_MATERIALS) - {""} == set(labels.MATERIALS)
    assert set(labels.AUTHORS_SHAPES) - {""} == set(labels.SHAPES)
