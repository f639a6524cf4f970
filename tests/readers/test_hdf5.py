import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from slotmesh.readers import BadRecord, HDF5Reader, VectorReader
from slotmesh.readers.hdf5_layout import Skipped
from slotmesh.readers.hdf5_writer import write_hdf5
from slotmesh.readers.labels import COLORS, MATERIALS, SHAPES
from slotmesh.worlds import MultiDSprites, RandomObjects
from slotmesh.worlds.sample import Sample


def random(*shape: int, high: int = 256, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, high, shape, dtype=np.uint8)


def own(path: Path, n: int = 6, video: bool = False) -> dict[str, np.ndarray]:
    """A file as the docstring of the layout describes it."""
    t = (2,) if video else ()
    content = {
        "images": random(n, *t, 3, 8, 10),
        "masks": random(n, *t, 8, 10, high=5),
        "objects/color": random(n, 4, high=8).astype(np.int64),
        "objects/position": random(n, *t, 4, 3).astype(np.float32),
        "present": random(n, *t, 4, high=2).astype(bool),
        "index": np.arange(n, dtype=np.int64) * 10,
    }
    with h5py.File(path, "w") as file:
        attributes = {"format": "slotmesh-samples", "format_version": 1, "n": n, "n_source": n}
        file.attrs.update(attributes | {"kind": "video" if video else "image", "source": "clevr"})
        for name, values in content.items():
            file.create_dataset(
                name,
                data=values,
                chunks=(2, *values.shape[1:]),
                compression="gzip",
                fletcher32=True,
            )
    return content


def equal(sample: Sample, content: dict[str, np.ndarray], rows: list[int]) -> bool:
    pairs = {"images": sample.image, "masks": sample.mask, "present": sample.present}
    pairs |= {f"objects/{k}": v for k, v in sample.objects.items()} | {"index": sample.index}
    assert set(pairs) == set(content)
    return all(torch.equal(v, torch.from_numpy(content[k][rows])) for k, v in pairs.items())


@pytest.mark.parametrize("video", [False, True])
def test_our_own_files_come_back_as_they_went_in(tmp_path: Path, video: bool) -> None:
    content = own(tmp_path / "x.h5", video=video)
    reader = HDF5Reader(tmp_path / "x.h5")
    assert (len(reader), reader.max_objects) == (6, 4)
    for rows in ([0, 1, 2], [5], [4, 0, 4, 1], list(range(6))):
        assert equal(reader.sample(rows), content, rows)
    part = HDF5Reader(tmp_path / "x.h5", range(1, 100, 2))
    assert len(part) == 3
    assert equal(part.sample([2, 0]), content, [5, 1])
    again = pickle.loads(pickle.dumps(part))
    assert equal(again.sample([2, 0]), content, [5, 1])


def test_what_the_writer_writes(tmp_path: Path) -> None:
    sample = Sample(
        image=torch.from_numpy(random(20, 3, 16, 16)),
        mask=torch.from_numpy(random(20, 16, 16, high=3)),
        objects={"size": torch.arange(40).reshape(20, 2), "x": torch.rand(20, 2)},
        present=torch.ones(20, 2, dtype=torch.bool),
        index=torch.arange(20),
    )
    path = tmp_path / "x.h5"
    write_hdf5(path, lambda start: [sample], n=20, source="clevr", settings={})
    found = HDF5Reader(path).sample(range(20))
    for name in ("image", "mask", "present", "index"):
        assert torch.equal(getattr(found, name), getattr(sample, name))
    assert all(torch.equal(found.objects[k], v) for k, v in sample.objects.items())
    assert HDF5Reader(path).has_masks


def test_a_dataset_without_masks_stays_one(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    sample = MultiDSprites().sample(range(4))
    write_hdf5(path, lambda start: [sample], n=4, source="clevr", settings={"has_masks": False})
    assert not HDF5Reader(path).has_masks


@pytest.mark.parametrize("shape", [(20, 3, 8, 10), (20, 2, 3, 8, 10)])
def test_images_alone_are_enough(tmp_path: Path, shape: tuple[int, ...]) -> None:
    images = random(*shape)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["images"] = images
    reader = HDF5Reader(tmp_path / "x.h5")
    assert not reader.has_masks
    found = reader.sample([3, 19])
    # Not made by OpenCV as far as anyone knows: RGB.
    assert (found.image.numpy() == images[[3, 19]]).all()
    assert found.mask.shape == (2, *shape[1:-3], 8, 10)
    assert not found.mask.any()
    assert not found.present.any()
    parts = [HDF5Reader(tmp_path / "x.h5", part) for part in ("train", "val", "test")]
    assert [len(part) for part in parts] == [16, 2, 2]
    rows = torch.cat([part.sample(range(len(part))).image for part in parts])
    assert (rows.numpy() == images).all()


def test_vectors(tmp_path: Path) -> None:
    world = RandomObjects(n_background=3, dim=4)
    path = tmp_path / "v.h5"
    write_hdf5(
        path, lambda start: [world.sample(range(8))], n=8, source="random-objects", settings={}
    )
    reader = VectorReader(path)
    assert len(reader) == 8
    expected = world.sample([5, 2])
    found = reader.sample([5, 2])
    assert torch.equal(found.inputs, expected.inputs)
    assert torch.equal(found.targets, expected.targets)
    assert found.index.tolist() == [5, 2]
    with pytest.raises(ValueError, match="numbers from 0 to 7"):
        reader.sample([8])
    with pytest.raises(BadRecord, match="kind is 'vectors', expected 'image' or 'video'"):
        HDF5Reader(path)
    own(tmp_path / "x.h5")
    with pytest.raises(BadRecord, match="its kind is 'image', expected 'vectors'"):
        VectorReader(tmp_path / "x.h5")


def authors(path: Path, n: int = 6, k: int = 10, **changes: Any) -> dict[str, np.ndarray]:
    """A file as MESH's clevrtex2h5py.py writes it."""
    counts = np.arange(n) % (k + 1)
    masks = np.zeros((n, k, 1, 8, 8), dtype=np.uint8)
    for i, count in enumerate(counts):
        for j in range(count):
            masks[i, j, 0, j % 8, :4] = 1
    content: dict[str, Any] = {
        "images": random(n, 3, 8, 8),
        "masks": masks,
        "num_objects": counts,
    }
    content = {name: v for name, v in (content | changes).items() if v is not None}
    with h5py.File(path, "w") as file:
        for name, values in content.items():
            file[name] = values
    return content


def grow(path: Path, n: int) -> None:
    """Give a file as many rows as the authors'; nothing is written there, so nothing is stored."""
    with h5py.File(path, "r+") as file:
        for name in list(file):
            values = file[name][:]  # pyright: ignore
            del file[name]
            rows = file.create_dataset(
                name, (n, *values.shape[1:]), values.dtype, chunks=(1, *values.shape[1:])
            )
            rows[: len(values)] = values


def test_the_authors_images_are_turned_to_rgb(tmp_path: Path) -> None:
    content = authors(tmp_path / "x.h5")
    grow(tmp_path / "x.h5", 50_000)
    reader = HDF5Reader(tmp_path / "x.h5")
    assert len(HDF5Reader(tmp_path / "x.h5", "train")) == 40_000
    batch = reader.sample([3, 5])
    assert (batch.image.numpy() == content["images"][[3, 5]][:, ::-1]).all()
    assert batch.index.tolist() == [3, 5]
    assert batch.present.sum(1).tolist() == [3, 5]
    assert batch.present[0, :3].all()
    assert batch.objects == {}
    expected = np.zeros((8, 8), dtype=np.uint8)
    expected[:3, :4] = [[1], [2], [3]]
    assert (batch.mask[0].numpy() == expected).all()
    raw = HDF5Reader(tmp_path / "x.h5", channels="rgb").sample([3]).image
    assert (raw.numpy() == content["images"][[3]]).all()


def test_files_with_five_objects_are_multi_dsprites_in_rgb(tmp_path: Path) -> None:
    content = authors(tmp_path / "x.h5", k=5)
    grow(tmp_path / "x.h5", 63_200)
    reader = HDF5Reader(tmp_path / "x.h5", "train")
    assert len(reader) == 60_000
    assert (reader.sample(range(6)).image.numpy() == content["images"]).all()


@pytest.mark.parametrize("k", [5, 10])
def test_a_file_of_ones_own_is_not_taken_for_the_authors(tmp_path: Path, k: int) -> None:
    content = authors(tmp_path / "x.h5", n=20, k=k)
    sizes = [len(HDF5Reader(tmp_path / "x.h5", split)) for split in ("train", "val", "test")]
    assert sizes == [16, 2, 2]
    batch = HDF5Reader(tmp_path / "x.h5").sample(range(20))
    assert (batch.image.numpy() == content["images"]).all()
    assert batch.present.sum(1).tolist() == content["num_objects"].tolist()


def test_a_split_without_rows_is_named(tmp_path: Path) -> None:
    authors(tmp_path / "x.h5", n=2)
    with pytest.raises(ValueError, match=r"x\.h5 has 2 rows, of which none are for split 'train'"):
        HDF5Reader(tmp_path / "x.h5", "train")
    assert len(HDF5Reader(tmp_path / "x.h5")) == 2


def test_the_paper_s_splits(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        # Nothing is written, so nothing is stored.
        file.create_dataset("images", (20000, 2, 3, 8, 8), np.uint8, chunks=(1, 2, 3, 8, 8))
        file.create_dataset("masks", (20000, 2, 7, 1, 8, 8), np.uint8, chunks=(1, 2, 7, 1, 8, 8))
        file.create_dataset("num_objects", (20000, 2), np.int64)
        file.create_dataset("attributes", (20000, 2, 7, 3), np.uint8)
        file["num_objects"][9776:9779] = [[1, 0], [2, 0], [3, 0]]
        file["attributes"][9776:9779] = 1
    assert len(HDF5Reader(path)) == 19997
    assert len(HDF5Reader(path, "train")) == 9998
    assert len(HDF5Reader(path, "val")) == 320
    assert len(HDF5Reader(path, "test")) == 5000
    reader = HDF5Reader(path, "train")
    real = [int((r.objects["color"] > 0).sum()) for r in (reader.read(9775), reader.read(9776))]
    # 9777 is left out: row 9776 of the split is video 9778; 7648 is left out before.
    assert real == [1, 3]


def video(path: Path, **changes: Any) -> dict[str, Any]:
    """A file as MESH's frames2h5py.py writes it: objects in no fixed order."""
    masks = np.zeros((2, 2, 7, 1, 8, 8), dtype=np.uint8)
    masks[0, 0, 0, 0, 0:4] = 1
    masks[0, 0, 1, 0, 2:6] = 1
    masks[0, 1, 0, 0, 7] = 1
    masks[0, 1, 1, 0, 0] = 1
    attributes = np.zeros((2, 2, 7, 3), dtype=np.uint8)
    cyan, purple, red = (1, 1, 1), (8, 2, 3), (7, 2, 2)
    attributes[0, 0, :2] = [cyan, purple]
    attributes[0, 1, :2] = [red, cyan]
    content: dict[str, Any] = {
        "images": random(2, 2, 3, 8, 8),
        "masks": masks,
        "num_objects": np.array([[2, 2], [0, 0]]),
        "attributes": attributes,
    }
    content = {name: v for name, v in (content | changes).items() if v is not None}
    with h5py.File(path, "w") as file:
        for name, values in content.items():
            file[name] = values
    return content


def test_objects_of_the_authors_videos_get_lasting_rows(tmp_path: Path) -> None:
    content = video(tmp_path / "x.h5")
    assert (HDF5Reader(tmp_path / "x.h5").sample([0, 1]).image.numpy() == content["images"]).all()
    reader = HDF5Reader(tmp_path / "x.h5", channels="bgr")
    assert reader.max_objects == 14
    batch = reader.sample([0, 1])
    assert (batch.image.numpy() == content["images"][:, :, ::-1]).all()
    color, material, shape = (batch.objects[k][0, :3] for k in ("color", "material", "shape"))
    assert [COLORS[i] for i in color] == ["cyan", "purple", "red"]
    assert [MATERIALS[i] for i in material] == ["metal", "rubber", "rubber"]
    assert [SHAPES[i] for i in shape] == ["sphere", "cube", "cylinder"]
    # The first wins where two overlap; cyan is row 1 in both frames.
    assert batch.mask[0, 0, :, 0].tolist() == [1, 1, 1, 1, 2, 2, 0, 0]
    assert batch.mask[0, 1, :, 0].tolist() == [1, 0, 0, 0, 0, 0, 0, 3]
    assert batch.present[0, :, :4].tolist() == [
        [True, True, False, False],
        [True, False, True, False],
    ]
    assert not batch.present[1].any()


def test_the_authors_videos_without_attributes(tmp_path: Path) -> None:
    video(tmp_path / "x.h5", attributes=None)
    batch = HDF5Reader(tmp_path / "x.h5").sample([0])
    assert batch.objects == {}
    assert batch.present[0].sum(-1).tolist() == [2, 2]
    assert batch.mask[0, 1, :, 0].tolist() == [2, 0, 0, 0, 0, 0, 0, 1]


@pytest.mark.parametrize(
    ("make", "changes", "reason"),
    [
        (authors, {"images": None}, "no dataset 'images'; it holds masks, num_objects"),
        (authors, {"masks": None}, "no dataset 'masks'"),
        (authors, {"num_objects": None}, "no dataset 'num_objects'"),
        (authors, {"images": np.zeros((6, 3, 8, 8))}, "images has dtype float64, expected uint8"),
        (authors, {"images": random(6, 8, 8, 3)}, r"images has shape \(6, 8, 8, 3\), expected"),
        (authors, {"images": random(6, 8)}, r"images has shape \(6, 8\), expected"),
        (authors, {"masks": random(6, 10, 8, 8)}, r"masks has shape \(6, 10, 8, 8\)"),
        (authors, {"masks": random(5, 10, 1, 8, 8)}, r"masks has shape .*expected \(6, 'K', 1"),
        (authors, {"num_objects": np.zeros(5, int)}, r"num_objects is int64 \(5,\)"),
        (authors, {"num_objects": np.zeros(6)}, "num_objects is float64"),
        (video, {"attributes": random(2, 2, 7, 2)}, r"attributes has shape \(2, 2, 7, 2\)"),
        (video, {"attributes": np.zeros((2, 2, 7, 3))}, "attributes has dtype float64"),
    ],
)
def test_the_authors_layout_must_fit(
    tmp_path: Path, make: Callable[..., Any], changes: dict[str, Any], reason: str
) -> None:
    make(tmp_path / "x.h5", **changes)
    with pytest.raises(BadRecord, match=r"x\.h5: .*" + reason):
        HDF5Reader(tmp_path / "x.h5")


def test_values_that_cannot_be(tmp_path: Path) -> None:
    authors(tmp_path / "x.h5", num_objects=np.array([0, 1, 11, 2, 3, 4]))
    reader = HDF5Reader(tmp_path / "x.h5")
    found = [isinstance(r, BadRecord) for r in reader.records()]
    assert found == [False, False, True, False, False, False]
    with pytest.raises(BadRecord, match=r"x\.h5, record 2: num_objects is 11, expected 0 to 10"):
        reader.sample(range(6))
    codes = np.full((2, 2, 7, 3), 9, dtype=np.uint8)
    video(tmp_path / "y.h5", attributes=codes)
    with pytest.raises(BadRecord, match=r"y\.h5, record 0: attributes has the codes \[9, 9, 9\]"):
        HDF5Reader(tmp_path / "y.h5").read(0)


@pytest.mark.parametrize(
    ("name", "values", "reason"),
    [
        ("images", None, "no dataset 'images'"),
        ("present", None, "no dataset 'present'"),
        ("index", None, "no dataset 'index'"),
        ("masks", np.zeros((6, 8, 10)), "masks has dtype float64, expected uint8"),
        ("masks", random(6, 9, 10), "do not fit"),
        ("images", random(6, 8, 10), "expected 4 dimensions"),
        ("objects/color", np.zeros((5, 4)), "objects/color has shape .*expected 6 rows"),
    ],
)
def test_our_own_layout_must_fit(tmp_path: Path, name: str, values: Any, reason: str) -> None:
    own(tmp_path / "x.h5")
    with h5py.File(tmp_path / "x.h5", "a") as file:
        del file[name]
        if values is not None:
            file[name] = values
    with pytest.raises(BadRecord, match=r"x\.h5: .*" + reason):
        HDF5Reader(tmp_path / "x.h5")


def test_a_later_version_is_refused(tmp_path: Path) -> None:
    own(tmp_path / "x.h5")
    with h5py.File(tmp_path / "x.h5", "a") as file:
        file.attrs["format_version"] = 3
    with pytest.raises(BadRecord, match=r"format_version is 3, expected 1 to 2\. Update slotmesh"):
        HDF5Reader(tmp_path / "x.h5")


def test_damage_within_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    content = own(path)
    with h5py.File(path) as file:
        where = file["images"].id.get_chunk_info(1)
    raw = bytearray(path.read_bytes())
    raw[where.byte_offset + 10] ^= 0xFF
    path.write_bytes(raw)
    reader = HDF5Reader(path)
    found = [isinstance(r, BadRecord) for r in reader.records()]
    # A chunk has two images.
    assert found == [False, False, True, True, False, False]
    with pytest.raises(BadRecord, match=r"x\.h5, record 2: images cannot be read"):
        reader.sample(range(6))
    assert equal(reader.sample([4, 5]), content, [4, 5])


def hide_columns(file: h5py.File) -> None:
    file.move("objects", "objectz")


def drop_a_column(file: h5py.File) -> None:
    del file["objects/x"]


def swap_two_columns(file: h5py.File) -> None:
    file.move("objects/x", "objects/z")
    file.move("objects/y", "objects/x")
    file.move("objects/z", "objects/y")


def change_an_attribute(file: h5py.File) -> None:
    file.attrs["settings"] = np.bytes_(b'{"has_masks": false}')


def drop_an_attribute(file: h5py.File) -> None:
    del file.attrs["source"]


def drop_the_digest(file: h5py.File) -> None:
    del file.attrs["digest"]


def drop_the_checksums(file: h5py.File) -> None:
    del file["checksum"]


def turn_back_the_version(file: h5py.File) -> None:
    file.attrs["format_version"] = 1


def cut_rows(file: h5py.File) -> None:
    for name in ("images", "masks", "present", "index", "checksum"):
        file[name].resize(3, axis=0)  # pyright: ignore
    for column in file["objects"].values():  # pyright: ignore
        column.resize(3, axis=0)


def change_what_was_skipped(file: h5py.File) -> None:
    file["skipped/index"][0] = 7  # pyright: ignore


def lose_a_chunk(file: h5py.File) -> None:
    # HDF5 gives zeros where it has no chunk.
    images = file["images"]
    images.resize(0, axis=0)  # pyright: ignore
    images.resize(4, axis=0)  # pyright: ignore


def change_a_pixel(file: h5py.File) -> None:
    file["images"][2, 0, 0, 0] ^= 1  # pyright: ignore


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (hide_columns, "it has no dataset 'objectz'"),
        (drop_a_column, "its structure does not match its digest"),
        (swap_two_columns, "record 0: its checksum is wrong"),
        (change_an_attribute, "its structure does not match its digest"),
        (drop_an_attribute, "its structure does not match its digest"),
        (drop_the_digest, "its structure does not match its digest"),
        (drop_the_checksums, "its structure does not match its digest"),
        (turn_back_the_version, "its structure does not match its digest"),
        (cut_rows, "its structure does not match its digest"),
        (change_what_was_skipped, "its structure does not match its digest"),
        (lose_a_chunk, "record 0: its checksum is wrong"),
        (change_a_pixel, "record 2: its checksum is wrong"),
    ],
)
def test_no_part_of_our_own_file_changes_unseen(
    tmp_path: Path, change: Callable[[h5py.File], None], reason: str
) -> None:
    path = tmp_path / "x.h5"
    records = [MultiDSprites(size=16).sample(range(4)), Skipped(4, "cut short")]
    write_hdf5(path, lambda start: records, n=5, source="multi-dsprites", settings={})
    assert len(HDF5Reader(path).sample(range(4))) == 4
    with h5py.File(path, "a") as file:
        change(file)
    with pytest.raises(BadRecord, match=r"x\.h5(: |, )" + reason):
        HDF5Reader(path).sample(range(4))


@pytest.mark.parametrize("damage", ["cut", "noise", "empty"])
def test_files_that_are_no_hdf5(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "x.h5"
    own(path)
    raw = path.read_bytes()
    path.write_bytes({"cut": raw[: len(raw) // 2], "noise": b"noise" * 99, "empty": b""}[damage])
    with pytest.raises(BadRecord, match=r"x\.h5: it is not an HDF5 file, damaged or cut short"):
        HDF5Reader(path)


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"gone\.h5 does not exist, or is a folder\. Pass an"):
        HDF5Reader(tmp_path / "gone.h5")
    with pytest.raises(ValueError, match="is a folder"):
        HDF5Reader(tmp_path)
    own(tmp_path / "x.h5")
    with pytest.raises(ValueError, match="split is 'trian', expected one of 'all', 'train'"):
        HDF5Reader(tmp_path / "x.h5", "trian")
    with pytest.raises(ValueError, match="channels is 'grb'"):
        HDF5Reader(tmp_path / "x.h5", channels="grb")  # pyright: ignore
