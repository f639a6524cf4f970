"""The HDF5 writer: what goes in comes out, whatever interrupts it."""

import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import slotmesh
from slotmesh.readers import HDF5Reader
from slotmesh.readers import hdf5_layout as layout
from slotmesh.readers.hdf5_layout import Skipped, WriteError
from slotmesh.readers.hdf5_writer import Records, write_hdf5
from slotmesh.worlds import MultiDSprites, RandomObjects, Sample

from ..processes import Script

SOURCE = {"source": "test", "settings": {"seed": 0}}


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def tiny(index: range, *, video: bool = False) -> Sample:
    """Samples of 2x3 pixels that tell their index."""
    n = len(index)
    number = torch.tensor(list(index))
    lead = (n, 2) if video else (n,)
    spread = number.reshape(-1, *(1 for _ in lead[1:]))
    return Sample(
        image=(spread[..., None, None, None] % 251).to(torch.uint8).expand(*lead, 3, 2, 3),
        mask=(spread[..., None, None] % 3).to(torch.uint8).expand(*lead, 2, 3),
        objects={
            "shape": number[:, None].expand(n, 4),
            "x": (number[:, None, None] / 7).float().expand(n, 4, 2),
            "real": number[:, None].expand(n, 4) % 2 == 0,
        },
        present=(spread[..., None] % 2 == 0).expand(*lead, 4),
        index=number,
    )


def contents(path: Path) -> dict[str, np.ndarray]:
    found: dict[str, np.ndarray] = {}
    with h5py.File(path, "r") as file:
        file.visititems(
            lambda name, item: found.update({name: item[()]} if hasattr(item, "shape") else {})
        )
    return found


def plain(n: int, batch: int = 7) -> Records:
    def records(start: int) -> Iterator[Sample]:
        for first in range(start, n, batch):
            yield tiny(range(first, min(first + batch, n)))

    return records


@pytest.mark.parametrize("video", [False, True])
def test_the_file_is_as_the_layout_says(tmp_path: Path, video: bool) -> None:
    path = tmp_path / "a.h5"
    done = write_hdf5(path, lambda start: [tiny(range(start, 10), video=video)], n=10, **SOURCE)
    assert (done.path, done.n, done.skipped, done.resumed_at) == (path, 10, (), 0)
    with h5py.File(path) as file:
        attributes = layout.read_attributes(file)
        assert len(attributes.pop("digest")) == 64
        assert attributes == {
            "format": "slotmesh-samples",
            "format_version": 2,
            "kind": "video" if video else "image",
            "source": "test",
            "settings": '{"seed": 0}',
            "slotmesh_version": slotmesh.__version__,
            "n": 10,
            "n_source": 10,
        }
        for name in ("images", "masks", "objects/shape", "present", "index"):
            assert file[name].compression == "gzip"
            assert file[name].fletcher32
    expected = layout.columns_of(tiny(range(10), video=video))
    found = contents(path)
    assert len(found.pop("skipped/index")) == len(found.pop("skipped/reason")) == 0
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert found[name].dtype == values.dtype
        np.testing.assert_array_equal(found[name], values)
    assert names(tmp_path) == ["a.h5"]


def test_a_world_comes_back_through_the_reader(tmp_path: Path) -> None:
    sample = MultiDSprites(seed=4).sample(range(50, 70))
    write_hdf5(tmp_path / "a.h5", lambda start: [sample], n=20, **SOURCE)
    back = HDF5Reader(tmp_path / "a.h5").sample(range(20))
    assert torch.equal(back.image, sample.image)
    assert torch.equal(back.mask, sample.mask)
    assert torch.equal(back.present, sample.present)
    assert torch.equal(back.index, sample.index)
    assert back.objects.keys() == sample.objects.keys()
    for name, column in sample.objects.items():
        assert torch.equal(back.objects[name], column)


def test_vectors_are_written_too(tmp_path: Path) -> None:
    sample = RandomObjects().sample(range(5))
    write_hdf5(tmp_path / "a.h5", lambda start: [sample], n=5, **SOURCE)
    found = contents(tmp_path / "a.h5")
    np.testing.assert_array_equal(found["inputs"], sample.inputs.numpy())
    np.testing.assert_array_equal(found["targets"], sample.targets.numpy())
    with h5py.File(tmp_path / "a.h5") as file:
        assert file.attrs["kind"] == b"vectors"


class Stop(Exception):  # noqa: N818
    """An interruption."""


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_any_interruptions_leave_the_same_file(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    n = data.draw(st.integers(1, 60))
    bad = data.draw(st.sets(st.integers(0, n - 1), max_size=min(n - 1, 8)))
    folder = tmp_path_factory.mktemp("any")
    path = folder / "a.h5"

    def records(start: int, stop: int) -> Iterator[Sample | Skipped]:
        i = start
        while i < n:
            if i >= stop:
                raise Stop
            if i in bad:
                yield Skipped(i, f"bad {i}")
                i += 1
                continue
            end = min([k for k in bad if k > i] + [n, i + data.draw(st.integers(1, 9))])
            yield tiny(range(i, end))
            i = end

    with pytest.MonkeyPatch.context() as patch:
        # A row is 105 bytes: blocks of 8 rows, chunks of 4.
        patch.setattr(layout, "_BLOCK_BYTES", 1500)
        patch.setattr(layout, "_CHUNK_BYTES", 80)
        for stop in sorted(data.draw(st.lists(st.integers(0, n), max_size=4))):
            try:
                write_hdf5(path, lambda start, stop=stop: records(start, stop), n=n, **SOURCE)
            except Stop:
                assert not path.exists()
            else:
                path.unlink()
        done = write_hdf5(path, lambda start: records(start, n), n=n, **SOURCE)
    good = [i for i in range(n) if i not in bad]
    found = contents(path)
    assert found["index"].tolist() == good
    expected = [layout.columns_of(tiny(range(i, i + 1))) for i in good]
    for name in expected[0]:
        np.testing.assert_array_equal(found[name], np.concatenate([e[name] for e in expected]))
    assert [(s.index, s.reason) for s in done.skipped] == [(i, f"bad {i}") for i in sorted(bad)]
    assert found["skipped/index"].tolist() == sorted(bad)
    assert names(folder) == ["a.h5"]


KILLED = """
import sys, time
import torch
from slotmesh.readers import hdf5_layout as layout
from slotmesh.readers.hdf5_writer import write_hdf5
from slotmesh.worlds import MultiDSprites
torch.set_num_threads(1)
layout._BLOCK_BYTES = 2 ** 18
def records(start):
    for i in range(start, 200, 4):
        if {stuck} and i >= 100:
            time.sleep(3600)
        yield MultiDSprites().sample(range(i, i + 4))
done = write_hdf5(sys.argv[1], records, n=200, source="test", settings=dict(seed=0))
print(done.resumed_at)
"""


@pytest.fixture
def run(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Script]:
    """Start a script in a process of its own."""
    folder = tmp_path_factory.mktemp("scripts")

    def start(script: str, *words: object) -> Script:
        (folder / "script.py").write_text(script)
        return Script(folder / "script.py", folder / "log", *words)

    return start


def test_killed_and_started_again_it_goes_on(tmp_path: Path, run: Callable[..., Script]) -> None:
    path, part = tmp_path / "a.h5", tmp_path / "a.h5.part"
    first = run(KILLED.format(stuck=True), path)
    while len(list(part.glob("0*.h5"))) < 3 and first.process.is_alive():
        time.sleep(0.01)
    first.process.kill()
    assert first.wait() == -signal.SIGKILL, first.output
    assert not path.exists()
    # As a kill while a block is being written leaves it.
    (part / ".00000003.h5.1.part").write_bytes(b"half of a block")
    second = run(KILLED.format(stuck=False), path)
    assert second.wait() == 0, second.output
    assert 3 * 8 <= int(second.output) < 200
    samples = MultiDSprites().sample(range(200))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "_BLOCK_BYTES", 2**18)
        write_hdf5(tmp_path / "b.h5", lambda start: [samples], n=200, **SOURCE)
    assert path.read_bytes() == (tmp_path / "b.h5").read_bytes()
    assert names(tmp_path) == ["a.h5", "b.h5"]


FULL = """
import resource, sys
from pathlib import Path
import torch
from slotmesh.readers import hdf5_layout as layout
from slotmesh.readers.hdf5_layout import WriteError
from slotmesh.readers.hdf5_writer import write_hdf5
from slotmesh.worlds import MultiDSprites
torch.set_num_threads(1)
layout._BLOCK_BYTES = 2 ** 22
most = int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
records = lambda start: (MultiDSprites().sample(range(i, i + 32)) for i in range(start, 256, 32))
go = lambda: write_hdf5(sys.argv[1], records, n=256, source="test", settings=dict(seed=0))
try:
    go()
except WriteError as error:
    print(error)
    assert not list(Path(sys.argv[1] + ".part").glob(".*"))
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(go().resumed_at)
"""


# The limit stops the first block, or the whole file once both blocks are there.
@pytest.mark.parametrize(("most", "kept"), [(10_000, 0), (100_000, 256)])
def test_a_full_disk_is_one_clear_error(
    tmp_path: Path, most: int, kept: int, run: Callable[..., Script]
) -> None:
    path = tmp_path / "a.h5"
    process = run(FULL, path, most)
    assert process.wait() == 0, process.output
    message, resumed_at = process.output.splitlines()
    assert f"{path} could not be written: File too large." in message
    assert (f"kept in {path}.part" in message) == (kept > 0)
    assert int(resumed_at) == kept
    assert len(HDF5Reader(path)) == 256
    assert names(tmp_path) == ["a.h5"]


def test_a_damaged_block_is_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "_BLOCK_BYTES", 1500)
    path = tmp_path / "a.h5"

    def stopping(start: int) -> Iterator[Sample]:
        yield tiny(range(start, 30))
        raise Stop

    with pytest.raises(Stop):
        write_hdf5(path, stopping, n=40, **SOURCE)
    second = tmp_path / "a.h5.part" / "00000001.h5"
    second.write_bytes(second.read_bytes()[:500])
    assert write_hdf5(path, plain(40), n=40, **SOURCE).resumed_at == 8
    assert contents(path)["index"].tolist() == list(range(40))


def test_another_run_is_not_mixed_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "_BLOCK_BYTES", 1500)

    def stopping(start: int) -> Iterator[Sample]:
        yield tiny(range(20))
        raise Stop

    path = tmp_path / "a.h5"
    with pytest.raises(Stop):
        write_hdf5(path, stopping, n=40, **SOURCE)
    with pytest.raises(WriteError, match=r"settings is '\{\"seed\": 0\}', expected.*Delete"):
        write_hdf5(path, plain(40), n=40, source="test", settings={"seed": 1})
    with pytest.raises(WriteError, match="n_source is 40, expected 50"):
        write_hdf5(path, plain(50), n=50, **SOURCE)


def test_a_file_is_only_overwritten_when_told_to(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    write_hdf5(path, plain(3), n=3, **SOURCE)
    with pytest.raises(WriteError, match="exists already"):
        write_hdf5(path, plain(4), n=4, **SOURCE)
    assert len(contents(path)["index"]) == 3
    write_hdf5(path, plain(4), n=4, **SOURCE, overwrite=True)
    assert len(contents(path)["index"]) == 4


def test_a_folder_that_cannot_be_written_to_is_told(tmp_path: Path) -> None:
    with pytest.raises(WriteError, match=r"folder .* does not exist\. Create it first"):
        write_hdf5(tmp_path / "no" / "a.h5", plain(3), n=3, **SOURCE)
    # A file in the place of the folder of blocks: even root cannot write there.
    (tmp_path / "a.h5.part").write_text("")
    with pytest.raises(WriteError, match="could not be written: File exists"):
        write_hdf5(tmp_path / "a.h5", plain(3), n=3, **SOURCE)


def test_too_few_records_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(WriteError, match="got 3 records, expected 5"):
        write_hdf5(tmp_path / "a.h5", plain(3), n=5, **SOURCE)
    bad = [Skipped(0, "no file x.png"), Skipped(1, "no file y.png")]
    with pytest.raises(WriteError, match=r"None of 2 records could be read.*no file x\.png"):
        write_hdf5(tmp_path / "b.h5", lambda start: bad, n=2, **SOURCE)
    # Nothing was worth keeping.
    assert names(tmp_path) == []


def test_progress_counts_all_records(tmp_path: Path) -> None:
    seen: list[int] = []
    write_hdf5(tmp_path / "a.h5", plain(20, 6), n=20, **SOURCE, on_progress=seen.append)
    assert seen == [0, 6, 12, 18, 20]


def test_settings_are_json_with_sorted_keys(tmp_path: Path) -> None:
    settings_given = {"size": 64, "frames": (0, 16), "a": 1.5}
    write_hdf5(tmp_path / "a.h5", plain(2), n=2, source="test", settings=settings_given)
    reader = HDF5Reader(tmp_path / "a.h5")
    assert reader.source == "test"
    assert reader.settings == {"a": 1.5, "frames": [0, 16], "size": 64}
    with h5py.File(tmp_path / "a.h5") as file:
        text = layout.read_attributes(file)["settings"]
    assert text == json.dumps(json.loads(text), sort_keys=True)
