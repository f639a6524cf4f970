import gzip
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slotmesh.readers import BadRecord, MultiDSpritesReader

NAME = "multi_dsprites_colored_on_grayscale.tfrecords"


def table_of_the_polynomial() -> list[int]:
    table = list(range(256))
    for _ in range(8):
        table = [(crc >> 1) ^ (0x82F63B78 * (crc & 1)) for crc in table]
    return table


TABLE = table_of_the_polynomial()


def checksum(data: bytes) -> bytes:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = TABLE[(crc ^ byte) & 255] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32)


def frame(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + checksum(length) + data + checksum(data)


def varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + varint(value >> 7)


def message(number: int, payload: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def serialise(features: dict[str, np.ndarray]) -> bytes:
    entries = b""
    for name, values in features.items():
        if values.dtype == np.uint8:
            # One byte an entry, as in the released files.
            inner = b"".join(b"\x0a\x01" + bytes([v]) for v in values.reshape(-1).tolist())
            feature = message(1, inner)
        else:
            feature = message(2, message(1, values.astype("<f4").tobytes()))
        entries += message(1, message(1, name.encode()) + message(2, feature))
    return message(1, entries)


def scene(seed: int, k: int = 6, n_sprites: int = 3) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    mask = np.zeros((64, 64, k, 1), dtype=np.uint8)
    for e in range(1, n_sprites + 1):
        mask[8 * e : 8 * e + 8, 10:20, e] = 255
    mask[:, :, 0, 0] = 255 * (mask[:, :, 1:, 0].sum(-1) == 0)
    visible = (np.arange(k) <= n_sprites).astype(np.float32)
    features = {
        "image": rng.integers(0, 256, (64, 64, 3), dtype=np.uint8),
        "mask": mask,
        "visibility": visible,
        "shape": visible * rng.integers(1, 4, k).astype(np.float32),
        "color": rng.random((k, 3), dtype=np.float32),
    }
    for name in ("x", "y", "scale", "orientation"):
        features[name] = rng.random(k, dtype=np.float32)
    return features


SCENES = [scene(i, n_sprites=2 + i % 3) for i in range(5)]
RECORDS = [serialise(s) for s in SCENES]
Write = Callable[[bytes], Path]


@pytest.fixture(params=["plain", "gzip"])
def write(request: pytest.FixtureRequest, tmp_path: Path) -> Write:
    def file(content: bytes) -> Path:
        path = tmp_path / NAME
        path.write_bytes(gzip.compress(content) if request.param == "gzip" else content)
        return path

    return file


@pytest.fixture
def five(write: Write) -> Path:
    return write(b"".join(map(frame, RECORDS)))


def test_records_come_back_as_they_were_written(five: Path) -> None:
    reader = MultiDSpritesReader(five.parent, range(0, 100))
    assert (len(reader), reader.max_objects, reader.has_masks) == (5, 5, True)
    batch = reader.sample(range(5))
    assert batch.image.dtype == batch.mask.dtype == torch.uint8
    assert batch.image.shape == (5, 3, 64, 64)
    assert batch.index.tolist() == [0, 1, 2, 3, 4]
    for i, written in enumerate(SCENES):
        assert (batch.image[i].permute(1, 2, 0).numpy() == written["image"]).all()
        for e in range(1, 6):
            expected = written["mask"][:, :, e, 0] == 255
            assert ((batch.mask[i] == e).numpy() == expected).all()
        n = 2 + i % 3
        assert batch.present[i].tolist() == [True] * n + [False] * (5 - n)
        for name in ("x", "y", "scale", "orientation", "color"):
            assert (batch.objects[name][i, :n].numpy() == written[name][1 : n + 1]).all()
            assert (batch.objects[name][i, n:] == 0).all()
        assert batch.objects["shape_code"][i, :n].tolist() == written["shape"][1 : n + 1].tolist()


def test_any_order_and_twice(five: Path) -> None:
    reader = MultiDSpritesReader(five, range(5))
    batch = reader.sample([3, 0, 3, 4])
    for at, i in enumerate([3, 0, 3, 4]):
        assert torch.equal(batch.image[at], reader.read(i).image[0])
    assert (reader.read(1).image[0].permute(1, 2, 0).numpy() == SCENES[1]["image"]).all()
    assert batch.index.tolist() == [3, 0, 3, 4]


def test_a_split_starts_within_the_file(five: Path) -> None:
    reader = MultiDSpritesReader(five, range(2, 60, 2))
    assert len(reader) == 2
    found = [r.image[0].permute(1, 2, 0).numpy() for r in reader.batches(1)]
    assert (found[0] == SCENES[2]["image"]).all()
    assert (found[1] == SCENES[4]["image"]).all()
    assert len(MultiDSpritesReader(five, "train")) == 5
    assert len(MultiDSpritesReader(five, "val")) == 0
    assert {k: (v.start, v.stop) for k, v in MultiDSpritesReader.splits.items()} == {
        "train": (0, 60000),
        "val": (60000, 60320),
        "test": (60320, 63200),
        "all": (0, 1000000),
    }


def test_survives_pickling_in_the_middle(five: Path) -> None:
    reader = MultiDSpritesReader(five, range(5))
    first = reader.read(2)
    again = pickle.loads(pickle.dumps(reader))
    assert torch.equal(again.read(2).image, first.image)
    assert torch.equal(again.read(3).image, reader.read(3).image)


def test_other_variants_have_fewer_objects(tmp_path: Path) -> None:
    path = tmp_path / "multi_dsprites_binarized.tfrecords"
    path.write_bytes(frame(serialise(scene(0, k=4, n_sprites=2))))
    reader = MultiDSpritesReader(tmp_path, range(1), variant="binarized")
    assert reader.max_objects == 3
    assert reader.read(0).mask.max() == 2
    with pytest.raises(ValueError, match="expected one of 'binarized'"):
        MultiDSpritesReader(tmp_path, variant="grey")


def test_a_pixel_of_two_masks_is_the_first_one_s(write: Write) -> None:
    both = dict(SCENES[0])
    both["mask"] = both["mask"].copy()
    both["mask"][20, 12, 1:3] = 255
    both["mask"][40, 40] = 0
    reader = MultiDSpritesReader(write(frame(serialise(both))), range(1))
    mask = reader.read(0).mask[0]
    assert mask[20, 12] == 1
    assert mask[40, 40] == 0


def test_one_bad_checksum_of_data_spoils_one_record(write: Write) -> None:
    content = bytearray(b"".join(map(frame, RECORDS)))
    at = len(frame(RECORDS[0])) + 12 + 5000
    content[at] ^= 1
    reader = MultiDSpritesReader(write(bytes(content)), range(100))
    assert len(reader) == 5
    with pytest.raises(BadRecord, match=rf"{NAME}, record 1: the checksum of its data") as caught:
        reader.read(1)
    assert (caught.value.record, caught.value.rest_lost) == (1, False)
    with pytest.raises(BadRecord, match="record 1"):
        reader.sample(range(5))
    found = list(reader.records())
    assert [isinstance(f, BadRecord) for f in found] == [False, True, False, False, False]
    assert isinstance(next(reader.records(1)), BadRecord)
    assert (found[4].image[0].permute(1, 2, 0).numpy() == SCENES[4]["image"]).all()


@pytest.mark.parametrize("where", [0, 3, 9])
def test_a_bad_length_loses_the_rest(write: Write, where: int) -> None:
    content = bytearray(b"".join(map(frame, RECORDS)))
    content[2 * len(frame(RECORDS[0])) + where] ^= 4
    reader = MultiDSpritesReader(write(bytes(content)), range(100))
    # The broken one counts, so that a conversion cannot leave it out in silence.
    assert len(reader) == 3
    with pytest.raises(BadRecord, match="record 2: the checksum of its length") as caught:
        reader.read(2)
    assert caught.value.rest_lost
    assert "All records after it are lost" in str(caught.value)
    found = list(reader.records())
    assert [isinstance(f, BadRecord) for f in found] == [False, False, True]
    assert reader.read(1).index.tolist() == [1]
    # A split that lies behind the damage is lost, and not empty.
    with pytest.raises(BadRecord, match="record 2: the checksum of its length"):
        len(MultiDSpritesReader(reader._file.path, range(3, 5)))


@pytest.mark.parametrize("left", [5, 12, 1000, -1])
def test_a_file_that_is_cut_short(write: Write, left: int) -> None:
    size = len(frame(RECORDS[0]))
    content = b"".join(map(frame, RECORDS))[: 2 * size + left % size]
    reader = MultiDSpritesReader(write(content), range(100))
    assert len(reader) == 3
    with pytest.raises(BadRecord, match="record 2: cut short") as caught:
        reader.read(2)
    assert caught.value.rest_lost
    assert [isinstance(f, BadRecord) for f in reader.records()] == [False, False, True]


def test_a_compressed_file_that_is_cut_short(tmp_path: Path) -> None:
    packed = gzip.compress(b"".join(map(frame, RECORDS)))
    path = tmp_path / NAME
    path.write_bytes(packed[: len(packed) // 2])
    reader = MultiDSpritesReader(path, range(100))
    assert 1 <= len(reader) < 5
    *good, bad = reader.records()
    assert isinstance(bad, BadRecord)
    assert bad.rest_lost
    assert "damaged or cut short" in str(bad) or "cut short" in str(bad)
    assert not any(isinstance(g, BadRecord) for g in good)


def test_a_compressed_file_that_is_damaged(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(b"".join(map(frame, RECORDS))))
    packed[len(packed) // 2 : len(packed) // 2 + 64] = bytes(64)
    path = tmp_path / NAME
    path.write_bytes(packed)
    found = list(MultiDSpritesReader(path, range(100)).records())
    assert any(isinstance(f, BadRecord) for f in found)
    assert not isinstance(found[0], BadRecord)


def test_an_endless_record_is_not_read_into_memory(write: Write) -> None:
    length = struct.pack("<Q", 1 << 60)
    reader = MultiDSpritesReader(write(length + checksum(length) + bytes(100)), range(5))
    with pytest.raises(BadRecord, match="record 0: it is 1152921504606846976 bytes long"):
        reader.read(0)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"image": None}, "no feature 'image'"),
        ({"visibility": None}, "no feature 'visibility'"),
        (
            {"image": np.zeros(100, np.uint8)},
            "'image' has 100 values of uint8, expected 64 x 64 x 3 = 12288 of uint8",
        ),
        ({"mask": np.zeros((64, 64, 5, 1), np.uint8)}, "'mask' has 20480 values"),
        ({"image": np.zeros(12288, np.float32)}, "'image' has 12288 values of float32, expected"),
        ({"x": np.zeros(6, np.uint8)}, "'x' has 6 values of uint8, expected 6 = 6 of float32"),
        ({"x": np.full(6, np.nan, np.float32)}, "'x' holds numbers that are not finite"),
        ({"shape": np.full(6, 1e30, np.float32)}, "expected small codes"),
    ],
)
def test_features_that_are_missing_or_wrong(write: Write, change: dict, reason: str) -> None:
    features = {k: v for k, v in (SCENES[0] | change).items() if v is not None}
    path = write(frame(serialise(features)) + frame(RECORDS[1]))
    reader = MultiDSpritesReader(path, range(5))
    with pytest.raises(BadRecord, match="record 0: .*" + reason):
        reader.read(0)
    assert reader.read(1).index.tolist() == [1]


def test_data_that_are_no_example(write: Write) -> None:
    reader = MultiDSpritesReader(write(frame(b"\x0a\x7fnothing")), range(5))
    with pytest.raises(BadRecord, match=r"record 0: its data are not a tf\.train\.Example"):
        reader.read(0)


def test_what_is_not_there(tmp_path: Path, five: Path) -> None:
    with pytest.raises(ValueError, match=r"nowhere does not exist(.|\n)*" + NAME):
        MultiDSpritesReader(tmp_path / "nowhere")
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ValueError, match="has no " + NAME):
        MultiDSpritesReader(empty)
    with pytest.raises(ValueError, match="split is 'training', expected one of 'train'"):
        MultiDSpritesReader(five, "training")
    with pytest.raises(ValueError, match="there is no record 5"):
        MultiDSpritesReader(five, range(100)).read(5)
    with pytest.raises(ValueError, match="the index has -1, expected"):
        MultiDSpritesReader(five, range(100)).read(-1)
    with pytest.raises(ValueError, match="at least one whole number"):
        MultiDSpritesReader(five, range(100)).sample([])


def test_an_empty_file_has_no_records(write: Write) -> None:
    assert len(MultiDSpritesReader(write(b""), range(5))) == 0


def test_a_plain_file_whose_first_length_looks_like_gzip(tmp_path: Path) -> None:
    # 0x088b1f is the length of a record that starts with gzip's magic number.
    size = 0x088B1F
    data = RECORDS[0] + message(15, bytes(size - len(RECORDS[0]) - 4))
    assert len(data) == size
    path = tmp_path / NAME
    path.write_bytes(frame(data))
    assert path.read_bytes()[:3] == b"\x1f\x8b\x08"
    reader = MultiDSpritesReader(path, range(5))
    assert (reader.read(0).image[0].permute(1, 2, 0).numpy() == SCENES[0]["image"]).all()


@settings(max_examples=80, deadline=60_000)
@given(st.data(), st.booleans())
def test_damage_is_only_ever_a_bad_record(tmp_path_factory, data, packed: bool) -> None:
    content = frame(RECORDS[0]) + frame(RECORDS[1])
    content = gzip.compress(content, 1) if packed else content
    # Mostly where the structure is: heads of records and of messages, and the end.
    near = st.sampled_from([0, 8, 12, 16, len(content) // 2, len(content) - 20])
    at = min(data.draw(near) + data.draw(st.integers(0, 30)), len(content))
    cut = data.draw(st.integers(0, 3))
    damaged = content[:at] + data.draw(st.binary(max_size=12)) + content[at + cut :]
    path = tmp_path_factory.mktemp("fuzz") / NAME
    path.write_bytes(damaged if data.draw(st.booleans()) else content[:at])
    reader = MultiDSpritesReader(path, range(50))
    found = list(reader.records())
    assert len(found) == len(reader) <= 12
    for i, record in enumerate(found):
        if not isinstance(record, BadRecord):
            assert (record.image[0].permute(1, 2, 0).numpy() == SCENES[i]["image"]).all()


@pytest.mark.parametrize("data", [b"\x89HDF\r\n\x1a\n" + bytes(2000), b"hello, this is a text"])
def test_another_kind_of_file_is_told(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "x.tfrecords").write_bytes(data)
    with pytest.raises(BadRecord, match=r"x\.tfrecords, record 0: it is not a TFRecord file, or"):
        MultiDSpritesReader(tmp_path / "x.tfrecords").read(0)
