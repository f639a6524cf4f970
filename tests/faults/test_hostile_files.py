"""Files made to make a reader wait, open others, fill the memory or run code."""

import io
import json
import os
import pickle
import resource
import signal
import socket
import struct
import subprocess
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from PIL import Image

from slotmesh.cli import main
from slotmesh.readers import BadRecord, HDF5Reader, clips
from slotmesh.readers._images import load_palette, load_rgb
from slotmesh.readers._json import Fields, load
from slotmesh.readers._tfrecord import RecordFile
from slotmesh.readers.clips import load_frames

from ..readers import test_clevr, test_hdf5
from ..readers.test_clevrer import video

av = pytest.importorskip("av", reason="PyAV is not installed (the extra 'video')")

DOORS = {
    "x.png": load_rgb,
    "mask.png": load_palette,
    "scenes.json": load,
    "x.h5": HDF5Reader,
    "x.mp4": lambda path: load_frames(path, [0]),
    "x.tfrecords": lambda path: RecordFile(path, 10).read(0),
}
"""How each kind of file is opened."""


@pytest.fixture(autouse=True)
def no_waiting_for_ever() -> Iterator[None]:
    """A reader that waits for a pipe is a failure after a minute."""

    def late(number: int, frame: object) -> None:
        raise TimeoutError("a reader waits")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def refused(name: str, path: Path, reason: str) -> None:
    with pytest.raises(ValueError, match=rf"{path.name}.*{reason}") as caught:
        DOORS[name](path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", DOORS)
def test_named_pipes(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    refused(name, tmp_path / name, "it is a named pipe, expected a regular file")


@pytest.mark.parametrize("name", DOORS)
def test_devices(name: str, tmp_path: Path) -> None:
    (tmp_path / name).symlink_to("/dev/zero")
    refused(name, tmp_path / name, "it is a device, expected a regular file")


@pytest.mark.parametrize("name", DOORS)
def test_sockets(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # their names must be short
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(name)
        refused(name, tmp_path / name, "it is a socket, expected a regular file")


@pytest.mark.parametrize("name", DOORS)
def test_folders(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    refused(name, tmp_path / name, "is a folder")


@pytest.mark.parametrize("name", DOORS)
def test_links_that_loop(name: str, tmp_path: Path) -> None:
    (tmp_path / name).symlink_to(name)
    refused(name, tmp_path / name, "(cannot be read|does not exist)")


@pytest.mark.parametrize("name", ["x.png", "scenes.json", "x.mp4"])
def test_files_of_a_terabyte(name: str, tmp_path: Path) -> None:
    with (tmp_path / name).open("wb") as file:
        file.truncate(2**40)  # takes no room on the disk
    refused(name, tmp_path / name, "it has 1,099,511,627,776 bytes, expected at most")


@pytest.mark.parametrize("kind", ["GIF", "BMP", "TIFF", "JPEG", "PPM", "EPS", "PDF"])
def test_images_of_other_formats_are_not_decoded(kind: str, tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "x.png", kind)
    refused("x.png", tmp_path / "x.png", "it is not a PNG image, or damaged")


def test_an_eps_does_not_reach_ghostscript(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "x.png", "EPS")
    monkeypatch.setattr(subprocess, "Popen", None)
    refused("x.png", tmp_path / "x.png", "it is not a PNG image")


def png(width: int, height: int) -> bytes:
    """A PNG of black pixels, of which there are far fewer than it claims."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        checksum = zlib.crc32(kind + data).to_bytes(4, "big")
        return len(data).to_bytes(4, "big") + kind + data + checksum

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = zlib.compress(bytes(10_000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


@pytest.mark.parametrize("side", [10_000, 60_000, 2**31 - 1])
def test_images_that_claim_too_many_pixels(side: int, tmp_path: Path) -> None:
    (tmp_path / "x.png").write_bytes(png(side, side))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Warnings are errors in these tests: it is one line, and no more.
    refused("x.png", tmp_path / "x.png", f"it claims {side * side:,} pixels, expected at most")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**18


def test_every_bit_of_a_mask_is_under_a_checksum(tmp_path: Path) -> None:
    mask = np.random.default_rng(0).integers(0, 5, (6, 7), dtype=np.uint8)
    Image.fromarray(mask).save(tmp_path / "mask.png")
    whole = (tmp_path / "mask.png").read_bytes()
    read: list[int] = []
    for at in range(0, 8 * len(whole), 5):
        raw = bytearray(whole)
        raw[at // 8] ^= 1 << at % 8
        (tmp_path / "mask.png").write_bytes(raw)
        with suppress(BadRecord):
            assert (load_palette(tmp_path / "mask.png") == mask).all()
            read.append(at // 8)
    # The end has nothing in it, and its length and checksum are not looked at.
    assert all(at >= whole.index(b"IEND") - 4 for at in read)


@pytest.mark.parametrize(
    "text",
    [
        "ffconcat version 1.0\nfile other.mp4\n",
        "#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\nother.mp4\n#EXT-X-ENDLIST\n",
        "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video 5004 RTP/AVP 96\n",
    ],
    ids=["ffconcat", "playlist", "session"],
)
def test_texts_that_name_other_videos(text: str, tmp_path: Path) -> None:
    video(tmp_path / "other.mp4")
    assert load_frames(tmp_path / "other.mp4", [0])
    (tmp_path / "x.mp4").write_text(text)
    refused("x.mp4", tmp_path / "x.mp4", "it is not an mp4, or damaged")


@pytest.mark.parametrize("kind", ["matroska", "avi", "mpegts", "gif"])
def test_videos_of_other_formats(kind: str, tmp_path: Path) -> None:
    with av.open(str(tmp_path / "x.mp4"), "w", format=kind) as container:
        codec = "gif" if kind == "gif" else "mpeg4"
        stream = container.add_stream(codec, rate=25)
        stream.width, stream.height = 32, 32
        stream.pix_fmt = "rgb8" if kind == "gif" else "yuv420p"
        frame = av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8), format="rgb24")
        container.mux(stream.encode(frame.reformat(format=stream.pix_fmt)))
        container.mux(stream.encode(None))
    refused("x.mp4", tmp_path / "x.mp4", "it is not an mp4, or damaged")


def test_a_video_without_a_codec(tmp_path: Path) -> None:
    path = tmp_path / "x.mp4"
    video(path)
    raw = bytearray(path.read_bytes().replace(b"mp4v", b"zzzz"))
    # Beside its name, the description of the stream has the codec's number: 32 is mpeg4.
    at = raw.index(b"\x04\x80\x80\x80", raw.index(b"esds")) + 5
    assert raw[at] == 32
    raw[at] = 0xFE
    path.write_bytes(raw)
    refused("x.mp4", path, "its codec is unknown, expected h264 or mpeg4")


def test_a_video_of_another_codec(tmp_path: Path) -> None:
    with av.open(str(tmp_path / "x.mp4"), "w", format="mp4") as container:
        stream = container.add_stream("mjpeg", rate=25)
        stream.width, stream.height, stream.pix_fmt = 32, 32, "yuvj420p"
        frame = av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8), format="rgb24")
        container.mux(stream.encode(frame.reformat(format="yuvj420p")))
        container.mux(stream.encode(None))
    refused("x.mp4", tmp_path / "x.mp4", "its codec is mjpeg, expected h264 or mpeg4")


@pytest.mark.parametrize("table", [b"stsz", b"stts", b"stsc"])
def test_a_video_that_claims_too_many_frames(table: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.mp4"
    video(path)
    raw = bytearray(path.read_bytes())
    # How many samples there are; how many last as long; how many are in a chunk.
    at = raw.index(table) + {b"stsz": 12, b"stts": 12, b"stsc": 16}[table]
    assert raw[at : at + 4] == (20).to_bytes(4, "big")
    raw[at : at + 4] = (150_000_000).to_bytes(4, "big")
    path.write_bytes(raw)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused("x.mp4", path, "it claims 150,000,000 samples, expected at most")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**18


def test_a_video_with_frames_that_are_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    video(tmp_path / "x.mp4")
    monkeypatch.setitem(clips._DECODING, "max_pixels", "999")
    refused("x.mp4", tmp_path / "x.mp4", "it is not an mp4, or damaged")


@pytest.mark.parametrize("depth", [100, 300, 900, 990, 1000, 5000, 100_000])
@pytest.mark.parametrize("where", ["[%s]", '{"scenes": %s}', '{"scenes": [{"objects": %s}]}'])
def test_json_that_is_nested_deeply(where: str, depth: int, tmp_path: Path) -> None:
    root = test_clevr.write(tmp_path, [test_clevr.scene(0, [])])
    path = next(root.rglob("*_scenes.json"))
    path.write_text(where % ("[" * depth + "]" * depth))
    with pytest.raises(BadRecord) as caught:
        test_clevr.ClevrReader(root, range(1)).read(0)
    assert str(caught.value).startswith(f"{path}")


def test_an_error_about_a_deep_value_is_no_deeper(tmp_path: Path) -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(BadRecord, match="size is nested too deeply, expected a string"):
        Fields({"size": deep}, tmp_path / "x.json").text("size")
    while deep:  # freed all at once, it would be too deep again
        deep = deep[0]


@pytest.mark.parametrize("name", ["a\0b.png", "\ud800.png", "a\nb.png", "\x1b[2J.png", "..", "."])
def test_names_that_no_file_has(name: str, tmp_path: Path) -> None:
    root = test_clevr.write(tmp_path, [test_clevr.scene(0, [])])
    path = next(root.rglob("*_scenes.json"))
    content = json.loads(path.read_text())
    content["scenes"][0]["image_filename"] = name
    path.write_text(json.dumps(content))
    with pytest.raises(BadRecord) as caught:
        test_clevr.ClevrReader(root, range(1)).read(0)
    text = str(caught.value)
    assert text.isprintable()
    text.encode()


@pytest.mark.parametrize(
    ("content", "reason"),
    [("no samples", "holds no samples"), ("pipe", "it is a named pipe"), ("text", "not an HDF5")],
)
def test_data_stats_of_odd_files_is_one_line(
    content: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.h5"
    if content == "pipe":
        os.mkfifo(path)
    elif content == "text":
        path.write_text("x")
    else:
        test_hdf5.own(path)
        with h5py.File(path, "a") as file:
            for name in (
                "images",
                "masks",
                "objects/color",
                "objects/position",
                "present",
                "index",
            ):
                none = file[name][:0]  # pyright: ignore
                del file[name]
                file[name] = none
    with pytest.raises(SystemExit) as ended:
        main(["data", "stats", str(path)])
    assert ended.value.code == 1
    errors = capsys.readouterr().err
    assert reason in errors
    assert errors.count("\n") == 1


def test_data_stats_of_a_file_without_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # A path that is wider than the table.
    path = tmp_path / ("long" * 20) / "x.h5"
    path.parent.mkdir()
    test_hdf5.own(path)
    main(["data", "stats", str(path)])
    assert f"{path}: 6 samples\n" in capsys.readouterr().out


class Payload:
    """What a pickle would run."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("ran",)


def test_no_reader_runs_a_pickle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    archive, table = io.BytesIO(), io.BytesIO()
    torch.save(Payload(), archive)
    np.save(table, np.array([Payload()], dtype=object), allow_pickle=True)
    for content in (pickle.dumps(Payload()), archive.getvalue(), table.getvalue()):
        for name, door in DOORS.items():
            (tmp_path / name).write_bytes(content)
            with pytest.raises(BadRecord):
                door(tmp_path / name)
    assert not (tmp_path / "ran").exists()
    pickle.loads(pickle.dumps(Payload()))
    assert (tmp_path / "ran").exists()
