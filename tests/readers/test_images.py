from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from slotmesh.readers import BadRecord
from slotmesh.readers._images import (
    centre_crop,
    check_size,
    load_palette,
    load_rgb,
    resize,
    resize_mask,
)


def slow_bilinear(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    """Four neighbours around each centre, edges repeated: what INTER_LINEAR documents."""
    out = np.zeros((height, width, 3))
    for y in range(height):
        for x in range(width):
            v = (y + 0.5) * pixels.shape[0] / height - 0.5
            u = (x + 0.5) * pixels.shape[1] / width - 0.5
            top, left = int(np.floor(v)), int(np.floor(u))
            for dy, dx in ((0, 0), (0, 1), (1, 0), (1, 1)):
                weight = abs(1 - dy - (v - top)) * abs(1 - dx - (u - left))
                row = min(max(top + dy, 0), pixels.shape[0] - 1)
                column = min(max(left + dx, 0), pixels.shape[1] - 1)
                out[y, x] += weight * pixels[row, column]
    return out


@settings(max_examples=25, deadline=None)
@given(st.tuples(*[st.integers(1, 9)] * 4), st.integers(0, 99))
def test_plain_bilinear_looks_at_four_pixels(sizes: tuple[int, ...], seed: int) -> None:
    h, w, height, width = sizes
    pixels = np.random.default_rng(seed).integers(0, 256, (h, w, 3), dtype=np.uint8)
    found = resize(pixels, (height, width), antialias=False)
    assert found.dtype == np.uint8
    assert np.abs(found - slow_bilinear(pixels, height, width)).max() <= 0.501


def test_plain_bilinear_misses_what_lies_between() -> None:
    # Shrinking by 3, OpenCV's centres fall on pixels 1, 4, 7 ...: lines elsewhere vanish.
    pixels = np.zeros((192, 192, 3), dtype=np.uint8)
    pixels[:, 0::3] = 255
    assert resize(pixels, (64, 64), antialias=False).max() == 0
    soft = resize(pixels, (64, 64), antialias=True)
    assert abs(soft[32, 32].mean() - 85) < 12


def test_antialiased_is_pillow_s() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (32, 48, 3), dtype=np.uint8)
    expected = Image.fromarray(pixels).resize((12, 8), Image.Resampling.BILINEAR)
    assert (resize(pixels, (8, 12), antialias=True) == np.asarray(expected)).all()
    assert resize(pixels, None, antialias=True) is pixels


def test_nearest_takes_the_floor() -> None:
    mask = np.arange(12 * 15, dtype=np.uint8).reshape(12, 15)
    # 12 to 4: rows 0, 3, 6, 9. 15 to 2: columns 0 and floor(7.5).
    assert (resize_mask(mask, (4, 2)) == mask[[0, 3, 6, 9]][:, [0, 7]]).all()
    assert (resize_mask(mask, (24, 15)) == mask.repeat(2, axis=0)).all()


def test_the_crop_of_clevrtex() -> None:
    pixels = np.arange(240 * 320, dtype=np.int64).reshape(240, 320) % 251
    assert (centre_crop(pixels.astype(np.uint8), 192) == pixels[24:216, 64:256]).all()


def test_alpha_is_dropped_and_palettes_are_not_looked_up(tmp_path: Path) -> None:
    rgba = np.random.default_rng(0).integers(0, 256, (4, 5, 4), dtype=np.uint8)
    Image.fromarray(rgba).save(tmp_path / "a.png")
    assert (load_rgb(tmp_path / "a.png") == rgba[..., :3]).all()
    indices = np.array([[0, 1], [2, 10]], dtype=np.uint8)
    image = Image.fromarray(indices).convert("P")
    image.putpalette([0, 0, 0, 255, 0, 0, 0, 128, 0] + [7] * 30)
    image.putdata(indices.reshape(-1).tolist())
    image.save(tmp_path / "p.png")
    assert (load_palette(tmp_path / "p.png") == indices).all()
    with pytest.raises(BadRecord, match=r"a\.png: its mode is RGBA, expected P"):
        load_palette(tmp_path / "a.png")


def test_files_that_are_no_images(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (40, 50, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "good.png")
    good = (tmp_path / "good.png").read_bytes()
    cases = {
        "empty": b"",
        "text": b"not an image at all",
        "cut": good[: len(good) // 2],
        "head": good[:20],
        "wrong": good[:100] + bytes(50) + good[150:],
        "chunk": good[:8] + b"\x00\x00\x00\x0dXXXX" + good[16:],
    }
    for name, content in cases.items():
        path = tmp_path / f"{name}.png"
        path.write_bytes(content)
        with pytest.raises(BadRecord, match=rf"{name}\.png: it is not a PNG image, or damaged"):
            load_rgb(path)
    with pytest.raises(BadRecord, match=r"gone\.png: the file is missing"):
        load_rgb(tmp_path / "gone.png")


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_damage_to_an_image_is_only_ever_a_bad_record(tmp_path_factory, data) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "x.png"
    Image.new("RGB", (6, 5), (1, 2, 3)).save(path)
    raw = path.read_bytes()
    at = data.draw(st.integers(0, len(raw)))
    path.write_bytes(raw[:at] + data.draw(st.binary(max_size=8)) + raw[at + 1 :])
    with suppress(BadRecord):
        load_rgb(path)


def test_sizes() -> None:
    assert check_size("R", 64) == (64, 64)
    assert check_size("R", (32, 48)) == (32, 48)
    assert check_size("R", None) is None
    for wrong in (0, -1, (64,), (64, 0), 1.5, (1, 2, 3)):
        with pytest.raises(ValueError, match="R: size is"):
            check_size("R", wrong)  # pyright: ignore


def test_sizes_of_numpy_are_sizes_and_booleans_are_not() -> None:
    assert check_size("Reader", np.int64(8)) == (8, 8)
    assert check_size("Reader", (np.int32(4), 6)) == (4, 6)
    for wrong in (True, (True, 8), 0, 1.5, "8"):
        with pytest.raises(ValueError, match=r"Reader: size is .*, expected"):
            check_size("Reader", wrong)  # pyright: ignore[reportArgumentType]
