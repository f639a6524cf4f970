"""Any folder of images: found, divided, decoded, and what is said about bad ones."""

import errno
import io
import os
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from slotmesh.readers import BadRecord, ImageReader, VideoReader, open_reader
from slotmesh.readers.listing import split_names
from slotmesh.readers.photos import KINDS, load_codes, load_photo, photo_size, to_labels, to_rgb

from ._folders import blobs, fill, header_of, pixels


def test_all_formats_nested_and_sorted(tmp_path: Path) -> None:
    for name in ("b.PNG", "a.jpg", "deep/er/c.webp", "deep/d.bmp", "e.jpeg"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels()).save(path, lossless=True, quality=95)
    (tmp_path / "notes.txt").write_text("no image")
    (tmp_path / ".hidden").mkdir()
    for other in (".hidden/x.png", "._a.png"):
        Image.fromarray(pixels()).save(tmp_path / other)
    reader = ImageReader(tmp_path, "all", size=20)
    assert reader.names == ["a.jpg", "b.PNG", "deep/d.bmp", "deep/er/c.webp", "e.jpeg"]
    found = reader.sample(range(5))
    assert found.image.shape == (5, 3, 20, 20)
    assert found.image.dtype == torch.uint8
    expected = torch.from_numpy(pixels().copy()).movedim(-1, 0)
    for i in (1, 2, 3):
        assert torch.equal(found.image[i], expected)
    assert (found.image[0].int() - expected.int()).abs().max() < 30
    assert not reader.has_masks
    assert not found.mask.any()
    assert not found.present.any()
    again = pickle.loads(pickle.dumps(reader))
    assert torch.equal(again.sample([2]).image, found.image[2:3])
    assert len(open_reader("images", tmp_path, split=range(1, 4), size=8)) == 3


def test_tiff_and_gif(tmp_path: Path) -> None:
    first, second = Image.fromarray(pixels(0)), Image.fromarray(pixels(1))
    first.save(tmp_path / "a.tif", compression="tiff_lzw")
    first.save(tmp_path / "b.TIFF", save_all=True, append_images=[second])
    palette = first.quantize(64)
    palette.save(tmp_path / "c.gif", save_all=True, append_images=[second.quantize(64)])
    reader = ImageReader(tmp_path, "all", size=20)
    assert reader.names == ["a.tif", "b.TIFF", "c.gif"]
    for name in ("a.tif", "b.TIFF"):
        assert (load_photo(tmp_path / name) == pixels(0)).all(), name
    # Of an animation, the first frame.
    assert (load_photo(tmp_path / "c.gif") == np.asarray(palette.convert("RGB"))).all()
    assert reader.sample(range(3)).image.shape == (3, 3, 20, 20)


@pytest.mark.parametrize("bits", [8, 10, 12, 14, 16])
def test_a_tiff_of_a_camera_is_as_bright_as_its_bits(tmp_path: Path, bits: int) -> None:
    """Cameras write 12 bits into 16: divided by those of the file, the image would be black."""
    gray = pixels()[..., 0].copy()
    gray[0, 0] = 255
    values = np.round(gray * ((2**bits - 1) / 255))
    for dtype, ends in ((np.uint16, ("<", ">")), (np.float32, ("<",))):
        for end in ends:
            image = Image.fromarray(values.astype(np.dtype(dtype).newbyteorder(end)))
            image.save(tmp_path / "x.tif")
            assert (load_photo(tmp_path / "x.tif") == gray[..., None]).all(), (dtype, end)
            with Image.open(tmp_path / "x.tif") as opened:
                assert (np.asarray(to_rgb(opened)) == gray[..., None]).all()
    if bits > 8:
        # A PNG says how many bits it has.
        Image.fromarray(values.astype(np.uint16)).save(tmp_path / "x.png")
        assert (load_photo(tmp_path / "x.png") == np.round(values / 257)[..., None]).all()


def test_odd_values_in_a_tiff(tmp_path: Path) -> None:
    values = np.array([[0.0, 1.0], [np.nan, np.inf]], np.float32)
    Image.fromarray(values).save(tmp_path / "x.tif")
    assert load_photo(tmp_path / "x.tif")[..., 0].tolist() == [[0, 255], [0, 255]]
    Image.fromarray(np.array([[-5, 0], [2**30, 2**31 - 1]], np.int32)).save(tmp_path / "x.tif")
    assert load_photo(tmp_path / "x.tif")[..., 0].tolist() == [[0, 0], [64, 127]]


def test_a_link_to_a_folder_above_ends(tmp_path: Path) -> None:
    fill(tmp_path / "x", 4)
    (tmp_path / "x" / "again").symlink_to(tmp_path / "x", target_is_directory=True)
    assert len(ImageReader(tmp_path / "x", "all")) == 4


def test_what_slotmesh_wrote_is_no_data(tmp_path: Path) -> None:
    root = fill(tmp_path / "photos", 4)
    run = root / "runs" / "images" / "photos-SA"
    fill(run / "pictures", 2)
    (run / "checkpoints").mkdir()
    (run / "settings.json").write_text("{}")
    for folder, name in (("segments", "000"), ("deep/segments", "deep/er/000")):
        found = root / folder
        (found / name).parent.mkdir(parents=True)
        for end in (f"{name}-mask.png", f"{name}-overlay.png", "sheet.png"):
            Image.fromarray(pixels()).save(found / end)
        (found / f"{name}.npz").write_bytes(b"")
    assert ImageReader(root, "all").names == [f"00{i}.png" for i in range(4)]
    # Somebody's own folders with one of these names are data.
    fill(root / "mine" / "checkpoints", 1)
    fill(root / "other" / "runs", 1)
    Image.fromarray(pixels()).save(root / "other" / "sheet.png")
    names = ImageReader(root, "all").names[4:]
    assert names == ["mine/checkpoints/000.png", "other/runs/000.png", "other/sheet.png"]


def test_adding_files_moves_no_other() -> None:
    names = [f"{i}.png" for i in range(400)]
    before = {part: split_names(names, part) for part in ("train", "val", "test")}
    assert sorted(n for part in before.values() for n in part) == sorted(names)
    after = {part: split_names(sorted([*names, "new.png"]), part) for part in before}
    assert all(set(before[part]) <= set(after[part]) for part in before)
    assert 0.05 < len(before["val"]) / 400 < 0.15
    assert split_names(names, "val", seed=1) != before["val"]


@pytest.mark.parametrize("n", range(3, 12))
def test_a_small_folder_has_something_in_every_split(n: int) -> None:
    parts = [split_names([f"{i}.jpg" for i in range(n)], part) for part in ("train", "val", "test")]
    assert all(parts)
    assert sum(map(len, parts)) == n


def test_kinds_of_pixels(tmp_path: Path) -> None:
    gray = pixels()[..., 0]
    Image.fromarray(gray).save(tmp_path / "gray.png")
    Image.fromarray(gray.astype(np.uint16) * 257).save(tmp_path / "deep.png")
    Image.fromarray(gray > 100).save(tmp_path / "bits.png")
    palette = Image.fromarray(pixels()).quantize(8)
    palette.save(tmp_path / "palette.png")
    Image.fromarray(pixels()).convert("CMYK").save(tmp_path / "cmyk.jpg", quality=100)
    alpha = np.dstack([pixels(), np.zeros((20, 20), np.uint8)])
    alpha[:10, :, 3] = 255
    Image.fromarray(alpha).save(tmp_path / "alpha.png")
    Image.merge("LA", list(map(Image.fromarray, (gray, alpha[..., 3])))).save(tmp_path / "la.png")
    for name in ("gray", "deep"):
        assert (load_photo(tmp_path / f"{name}.png") == gray[..., None]).all(), name
    assert (load_photo(tmp_path / "bits.png") == np.where(gray > 100, 255, 0)[..., None]).all()
    assert (load_photo(tmp_path / "palette.png") == np.asarray(palette.convert("RGB"))).all()
    assert np.abs(load_photo(tmp_path / "cmyk.jpg").astype(int) - pixels()).max() < 40
    over_white = load_photo(tmp_path / "alpha.png")
    assert (over_white[:10] == pixels()[:10]).all()
    assert (over_white[10:] == 255).all()
    assert (load_photo(tmp_path / "la.png")[10:] == 255).all()


@pytest.mark.parametrize("name", ["x.png", "x.tif"])
def test_exif_turns_an_image(tmp_path: Path, name: str) -> None:
    image = Image.fromarray(pixels(height=10, width=20))
    exif = Image.Exif()
    exif[0x0112] = 6  # turn it clockwise
    image.save(tmp_path / name, exif=exif)
    assert photo_size(tmp_path / name) == (20, 10)
    assert (load_photo(tmp_path / name) == np.rot90(pixels(height=10, width=20), -1)).all()


def test_crop_and_squeeze(tmp_path: Path) -> None:
    wide = np.zeros((10, 30, 3), np.uint8)
    wide[:, 10:20] = 200
    Image.fromarray(wide).save(tmp_path / "x.png")
    crop = ImageReader(tmp_path, "all", size=10).sample([0]).image
    squeeze = ImageReader(tmp_path, "all", size=10, square="squeeze").sample([0]).image
    assert (crop == 200).all()
    assert (squeeze[..., :2] == 0).all()
    assert (squeeze[..., 5] == 200).all()
    assert (squeeze[..., -2:] == 0).all()


def test_a_large_jpeg_is_decoded_small(tmp_path: Path) -> None:
    Image.fromarray(pixels(height=640, width=900)).save(tmp_path / "x.jpg", quality=95)
    assert load_photo(tmp_path / "x.jpg").shape == (640, 900, 3)
    small = load_photo(tmp_path / "x.jpg", 64)
    assert 64 <= min(small.shape[:2]) < 200
    expected = np.asarray(Image.fromarray(pixels(height=640, width=900)).resize((90, 64)))
    again = np.asarray(Image.fromarray(small).resize((90, 64)))
    assert np.abs(again.astype(int) - expected).mean() < 5


def cut(kind: str) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels(height=200, width=200)).save(buffer, kind)
    return buffer.getvalue()[: len(buffer.getvalue()) // 2]


BAD = {
    "empty.png": (b"", "it is empty"),
    "text.jpg": (b"just some words\n", f"it is not a {KINDS} image, or damaged"),
    "psd.png": (b"8BPS" + b"\0" * 40, f"it is not a {KINDS} image"),
    "other.tif": (b"II*\0" + b"\0" * 40, "a kind of TIFF that cannot be read, or damaged. Save"),
    "huge.png": (header_of(30_000, 30_000), r"more than 67,108,864 pixels. Shrink it"),
    "large.png": (header_of(9000, 9000), r"has 9,000 x 9,000 pixels, expected at most 67,108,864"),
    "cut.png": (cut("PNG"), "or damaged"),
    "cut.jpg": (cut("JPEG"), "or damaged"),
    "cut.webp": (cut("WEBP"), "or damaged"),
    "cut.bmp": (cut("BMP"), "or damaged"),
    "cut.gif": (cut("GIF"), "or damaged"),
    "cut.tif": (cut("TIFF"), "or damaged"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_named_in_one_line(tmp_path: Path, name: str) -> None:
    content, message = BAD[name]
    (tmp_path / name).write_bytes(content)
    reader = ImageReader(tmp_path, "all")
    with pytest.raises(BadRecord, match=message) as caught:
        reader.sample([0])
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)
    # No object in memory is named, and an image that is only too large is not called damaged.
    assert "0x" not in str(caught.value)
    assert ("damaged" in str(caught.value)) == ("damaged" in message or name == "psd.png")


def test_masks_of_every_coding(tmp_path: Path) -> None:
    mask = blobs(3)
    expected = torch.from_numpy(mask)
    colours = np.array([[0, 0, 0], [0, 200, 0], [10, 0, 0], [255, 255, 255]], np.uint8)
    (tmp_path / "masks" / "a").mkdir(parents=True)
    (tmp_path / "a").mkdir()
    indexed = Image.fromarray(mask)
    indexed.putpalette([7, 7, 7, 255, 0, 0, 0, 255, 0, 0, 0, 255])
    kinds = {
        "a/gray": Image.fromarray(mask * 80),
        "a/indexed": indexed,
        "rgb": Image.fromarray(colours[mask]),
        "deep": Image.fromarray(mask.astype(np.uint16) * 1000),
    }
    for name, image in kinds.items():
        image.save(tmp_path / "masks" / f"{name}.png")
        Image.fromarray(pixels()).save(tmp_path / f"{name}.jpg")
    Image.fromarray(pixels()).save(tmp_path / "without.jpg")
    reader = ImageReader(tmp_path, "all", size=20)
    assert reader.has_masks
    assert reader.names == ["a/gray.jpg", "a/indexed.jpg", "deep.jpg", "rgb.jpg", "without.jpg"]
    reader.check_masks()
    found = reader.sample(range(5))
    for i in range(4):
        assert torch.equal(found.mask[i], expected), reader.names[i]
        assert found.present[i].sum() == 3
    assert not found.mask[4].any()
    small = ImageReader(tmp_path, "all", size=10).sample([0]).mask[0]
    assert set(small.unique().tolist()) == {0, 1, 2, 3}
    reader.forget_masks()
    assert not reader.sample([0]).mask.any()


def test_masks_from_another_folder(tmp_path: Path) -> None:
    fill(tmp_path / "images", 4, masks=True)
    (tmp_path / "images" / "masks").rename(tmp_path / "truth")
    assert not ImageReader(tmp_path / "images").has_masks
    reader = ImageReader(tmp_path / "images", "all", masks=tmp_path / "truth")
    assert reader.sample(range(4)).mask.amax((1, 2)).tolist() == [1, 2, 3, 1]
    with pytest.raises(ValueError, match=r"the folder of the masks, does not exist"):
        ImageReader(tmp_path / "images", masks=tmp_path / "nothing")


@pytest.mark.parametrize("reader", [ImageReader, VideoReader])
def test_a_folder_without_masks_is_no_folder_of_masks(
    tmp_path: Path, reader: type[ImageReader] | type[VideoReader]
) -> None:
    root = fill(tmp_path / "x" / "a", 6).parent
    (root / "masks").mkdir()
    with pytest.raises(ValueError, match=r"x/masks, .* has no PNG files: it is empty\. Put masks"):
        reader(root, "all")
    np.save(root / "masks" / "000.npy", blobs())
    with pytest.raises(ValueError, match=r"has no PNG files: it has 1 other file, 000\.npy"):
        reader(root, "all")


def test_wrong_masks(tmp_path: Path) -> None:
    root = fill(tmp_path / "x", 4, masks=True)
    Image.fromarray(blobs()).save(root / "masks" / "other.png")
    with pytest.raises(BadRecord, match=r"other.png: it is a mask without its image, expected"):
        ImageReader(root)
    (root / "masks" / "other.png").unlink()
    Image.fromarray(blobs(height=8)).save(root / "masks" / "001.png")
    reader = ImageReader(root, "all")
    message = r"001.png: the mask has 20 x 8 pixels, its image 20 x 20, expected the same"
    with pytest.raises(BadRecord, match=message):
        reader.check_masks()
    with pytest.raises(BadRecord, match=message):
        reader.sample([1])
    (root / "masks" / "001.png").write_bytes(b"no image")
    with pytest.raises(BadRecord, match=r"001.png: it is not a PNG mask, or damaged"):
        reader.sample([1])
    Image.fromarray(pixels()).save(root / "masks" / "001.png")
    with pytest.raises(BadRecord, match=r"values, expected a mask of at most 255 objects"):
        reader.sample([1])
    Image.fromarray(blobs()).save(root / "masks" / "002.jpg")
    with pytest.raises(BadRecord, match=r"002.jpg: it is in the folder of masks, expected PNG"):
        ImageReader(root)


def test_folders_without_images(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"does not exist, expected a folder"):
        ImageReader(tmp_path / "nothing")
    with pytest.raises(ValueError, match=r"images: it is empty. Pass the folder that they are in"):
        ImageReader(tmp_path)
    for name in ("b.txt", "a.txt"):
        (tmp_path / name).write_text("")
    with pytest.raises(ValueError, match=r"it has 2 other files, such as a.txt"):
        ImageReader(tmp_path)
    with pytest.raises(ValueError, match=r"is a file, expected a folder"):
        ImageReader(tmp_path / "a.txt")
    fill(tmp_path, 2)
    with pytest.raises(ValueError, match=r"too few images: got 2, expected at least"):
        ImageReader(tmp_path)
    assert len(ImageReader(tmp_path, "all")) == 2
    with pytest.raises(ValueError, match=r"split is 'trian', expected one of 'train', 'val'"):
        ImageReader(tmp_path, "trian")
    with pytest.raises(ValueError, match=r"square is 'pad', expected 'crop' or 'squeeze'"):
        ImageReader(tmp_path, square="pad")
    with pytest.raises(ValueError, match=r"size is 0"):
        ImageReader(tmp_path, size=0)


def test_masks_in_npy_files(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, blobs(2).astype(np.int32))
    assert (load_codes(path) == blobs(2)).all()
    np.save(path, np.asfortranarray(blobs(2)))
    assert (load_codes(path) == blobs(2)).all()
    bad = {
        "objects": np.array([[{}]], dtype=object),
        "floats": np.zeros((4, 4)),
        "shape": np.zeros(4, np.uint8),
    }
    for content in bad.values():
        np.save(path, content, allow_pickle=True)
        with pytest.raises(BadRecord, match=r"expected integers \(H, W\)"):
            load_codes(path)
    np.save(path, blobs(2))
    whole = path.read_bytes()
    # It claims terabytes: nothing is allocated for them.
    claim = b"(2000000, 2000000), }"
    path.write_bytes(whole.replace(b"(20, 20), }" + b" " * 10, claim))
    assert claim in path.read_bytes()
    with pytest.raises(BadRecord, match=r"not a mask in an .npy file"):
        load_codes(path)
    path.write_bytes(whole[:-5])
    with pytest.raises(BadRecord, match=r"not a mask in an .npy file"):
        load_codes(path)


def test_labels_keep_the_background() -> None:
    codes = np.array([[5, 0], [900, 5]])
    assert to_labels(codes, Path("x")).tolist() == [[1, 0], [2, 1]]
    assert to_labels(np.array([[5, 900]]), Path("x")).tolist() == [[1, 2]]
    assert to_labels(np.zeros((2, 2), np.int64), Path("x")).tolist() == [[0, 0], [0, 0]]


def test_pillow_images_of_many_numbers_are_not_black() -> None:
    gray = pixels()[..., 0]
    for made in (
        Image.fromarray(gray.astype(np.int32)),
        Image.fromarray(gray.astype(np.int32) * 257),
        Image.fromarray(gray.astype(np.uint16) * 257),
        Image.fromarray(gray.astype(np.float32)),
        Image.fromarray(gray.astype(np.float32) / 255),
    ):
        assert (np.asarray(to_rgb(made)) == gray[..., None]).all(), made.mode


@pytest.mark.parametrize("split", [range(-2, 2), range(5, 0, -1)])
def test_a_range_counts_up(tmp_path: Path, split: range) -> None:
    fill(tmp_path)
    with pytest.raises(ValueError, match="expected a range that counts up from 0 or more"):
        ImageReader(tmp_path, split)


def test_a_size_of_numpy_is_a_size(tmp_path: Path) -> None:
    fill(tmp_path)
    assert ImageReader(tmp_path, "all", size=np.int64(8)).read(0).image.shape == (1, 3, 8, 8)


@pytest.mark.parametrize("locked", ["", "a", "a/b"])
def test_a_folder_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, locked: str
) -> None:
    for name in ("1.png", "a/2.png", "a/b/3.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels()).save(tmp_path / name)
    there, scandir = tmp_path / locked, os.scandir

    def refuse(path: Any = ".") -> Any:
        if Path(path) == there:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return scandir(path)

    # Not by permissions, which do not stop an administrator.
    monkeypatch.setattr(os, "scandir", refuse)
    said = re.escape(f"{there} cannot be read: {os.strerror(errno.EACCES)}. Expected a folder")
    with pytest.raises(ValueError, match=said):
        ImageReader(tmp_path)


def test_what_a_file_system_keeps_for_itself_is_passed_over(tmp_path: Path) -> None:
    """Only root may read it, at the top of a disk of images."""
    fill(tmp_path)
    count = len(ImageReader(tmp_path, "all"))
    (tmp_path / "lost+found").mkdir()
    Image.fromarray(pixels()).save(tmp_path / "lost+found" / "9.png")
    assert len(ImageReader(tmp_path, "all")) == count
