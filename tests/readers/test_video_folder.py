"""Any folder of clips, or of folders of frames."""

import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from slotmesh.readers import BadRecord, VideoReader, clips

from ._folders import blobs

H, W = 16, 24


def frames(folder: Path, n: int, base: int = 0) -> None:
    """A folder of frames, each with a gray of its own."""
    folder.mkdir(parents=True)
    for t in range(n):
        Image.fromarray(np.full((H, W, 3), base + 10 * t, np.uint8)).save(folder / f"{t:03d}.png")


def clip(path: Path, n: int, width: int = W, height: int = H) -> None:
    av = pytest.importorskip("av", reason="PyAV is not installed (the extra 'video')")
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=25)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.bit_rate = 4_000_000
        for t in range(n):
            picture = np.full((height, width, 3), (40 + 8 * t) % 256, np.uint8)
            for packet in stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)


@pytest.mark.parametrize("quarters", [0, 1, 2, 3])
def test_a_clip_is_turned_as_players_show_it(tmp_path: Path, quarters: int) -> None:
    """Phones store what is filmed upright as it lies on the sensor, and how to turn it."""
    av = pytest.importorskip("av", reason="PyAV is not installed (the extra 'video')")
    path = tmp_path / "a.mp4"
    picture = np.full((H, W, 3), 50, np.uint8)
    picture[: H // 2, : W // 2] = 220
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=25)
        stream.width, stream.height, stream.pix_fmt = W, H, "yuv420p"
        for _ in range(2):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
    # ISO/IEC 14496-12: a, b, u, c, d, v, x, y, w of the track's header turn it clockwise.
    cos, sin = ((1, 0), (0, 1), (-1, 0), (0, -1))[quarters]
    matrix = struct.pack(">9i", cos << 16, sin << 16, 0, -sin << 16, cos << 16, 0, 0, 0, 1 << 30)
    data = bytearray(path.read_bytes())
    # After the name: version 0, times, number, duration, layer and volume.
    at = data.index(b"tkhd") + 4 + 40
    data[at : at + 36] = matrix
    path.write_bytes(data)
    expected = np.rot90(picture, -quarters)
    for found in clips.load_frames(path, [0, 1]):
        assert found.shape == expected.shape
        assert np.abs(found.astype(int) - expected).mean() < 20


def test_folders_of_frames(tmp_path: Path) -> None:
    for name, n in (("a", 10), ("in/b", 4), ("c", 2)):
        frames(tmp_path / name, n, base=100 if name == "a" else 0)
    Image.new("RGB", (4, 4)).save(tmp_path / "poster.png")
    reader = VideoReader(tmp_path, "all", size=8, n_frames=2, stride=2)
    assert reader.names == ["a", "c", "in/b"]
    # a: frames (0, 2), (3, 5), (6, 8); in/b: (0, 2); c is too short.
    assert len(reader) == 4
    assert [str(bad).rpartition("/")[2] for bad in reader.short] == [
        "c: it has 2 frames, expected at least 3 for a sample"
    ]
    found = reader.sample([3, 1, 0])
    assert found.image.shape == (3, 2, 3, 8, 8)
    assert found.image[:, :, 0, 0, 0].tolist() == [[0, 20], [130, 150], [100, 120]]
    assert found.mask.shape == (3, 2, 8, 8)
    assert found.present.shape == (3, 2, 255)
    assert reader.together() == [[0, 1, 2], [3]]


def test_clips(tmp_path: Path) -> None:
    for name in "abc":
        clip(tmp_path / f"{name}.mp4", 9)
    reader = VideoReader(tmp_path, "all", size=8, n_frames=3, stride=1)
    assert len(reader) == 9
    found = reader.sample([1, 0]).image.float().mean((2, 3, 4))
    expected = torch.tensor([[64.0, 72.0, 80.0], [40.0, 48.0, 56.0]])
    assert (found - expected).abs().max() < 3
    parts = [VideoReader(tmp_path, part, n_frames=3).names for part in ("train", "val", "test")]
    assert sorted(n for part in parts for n in part) == ["a.mp4", "b.mp4", "c.mp4"]
    (tmp_path / "d.mp4").write_bytes((tmp_path / "a.mp4").read_bytes()[:200])
    bad = VideoReader(tmp_path, "all").short
    assert "d.mp4: it is not an mp4, or damaged" in str(bad[0])


def test_masks_follow_objects(tmp_path: Path) -> None:
    frames(tmp_path / "a", 4)
    masks = tmp_path / "masks" / "a"
    masks.mkdir(parents=True)
    for t in range(3):
        # The second object is alone in the last frame, and is still the second.
        mask = np.where(blobs(2, H, W) == 2, 90, 0 if t == 2 else 30 * blobs(1, H, W))
        Image.fromarray(mask.astype(np.uint8)).save(masks / f"{t:03d}.png")
    reader = VideoReader(tmp_path, "all", size=16, n_frames=4, square="squeeze")
    found = reader.sample([0])
    assert [sorted(f.unique().tolist()) for f in found.mask[0]] == [[0, 1, 2]] * 2 + [[0, 2], [0]]
    assert found.present[0, :, :2].tolist() == [[True, True]] * 2 + [[False, True], [False] * 2]
    Image.fromarray(blobs(2, H, W)).save(masks / "9.png")
    with pytest.raises(BadRecord, match=r"9.png: it is a mask without its frame: a has no 9"):
        VideoReader(tmp_path, "all")
    (masks / "9.png").rename(tmp_path / "masks" / "b.png")
    with pytest.raises(BadRecord, match=r"b.png: it is a mask without its video"):
        VideoReader(tmp_path, "all")
    (tmp_path / "masks" / "b.png").unlink()
    Image.fromarray(blobs(2, 8, 8)).save(masks / "000.png")
    with pytest.raises(BadRecord, match=r"000.png: the mask has 8 x 8 pixels, its frame 24 x 16"):
        VideoReader(tmp_path, "all").sample([0])


def test_masks_of_a_clip(tmp_path: Path) -> None:
    clip(tmp_path / "a.mp4", 4)
    (tmp_path / "masks" / "a").mkdir(parents=True)
    Image.fromarray(blobs(2, H, W)).save(tmp_path / "masks" / "a" / "0002.png")
    found = VideoReader(tmp_path, "all", size=16, stride=2).sample([0])
    assert found.mask[0].amax((1, 2)).tolist() == [0, 2]
    # Whoever counts frames from 1 has one mask too many.
    Image.fromarray(blobs(2, H, W)).save(tmp_path / "masks" / "a" / "0004.png")
    with pytest.raises(BadRecord, match=r"0004.png: .* its frame: a.mp4 has 4 frames, counted fr"):
        VideoReader(tmp_path, "all")


def test_what_is_no_video(tmp_path: Path) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")
    with pytest.raises(ValueError, match="mp4 clips or folders of images: it has 1 other file,"):
        VideoReader(tmp_path)
    frames(tmp_path / "x", 4)
    for options, message in (
        ({"n_frames": 1}, "n_frames is 1, expected a whole number of at least 2"),
        ({"stride": 0}, "stride is 0, expected a whole number of at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            VideoReader(tmp_path, "all", **options)
