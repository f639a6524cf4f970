"""``slotmesh segment``, ``model.segment`` and the weights that come with slotmesh."""

import io
import itertools
import json
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from slotmesh.files import write_whole
from slotmesh.models import ObjectDiscovery, Segmentation, VideoObjectDiscovery
from slotmesh.models.segmentation import read_image
from slotmesh.nn import Softmax
from slotmesh.readers import ImageReader
from slotmesh.readers.photos import KINDS, photo_size
from slotmesh.training import segment, weights
from slotmesh.training.export import ExportModel, run_export_model
from slotmesh.training.runs import open_run

from ..readers._folders import fill, header_of, pixels
from ..readers.test_video_folder import clip
from ._commands import run
from ._jobs import fake_run, tiny

SMALL = {"channels": 8, "slot_dim": 8, "mlp_dim": 8}


@pytest.fixture(scope="module")
def model() -> ObjectDiscovery:
    torch.manual_seed(0)
    return ObjectDiscovery(3, Softmax(), resolution=(16, 16), **SMALL).eval()


def test_every_kind_of_image_is_the_same_image(model: ObjectDiscovery, tmp_path: Path) -> None:
    array = pixels(height=30, width=40)
    Image.fromarray(array).save(tmp_path / "x.png")
    tensor = torch.from_numpy(array.copy()).movedim(-1, 0)
    found = model.segment(tensor)
    for image in (
        array,
        array / 255,
        tensor / 255,
        Image.fromarray(array),
        tmp_path / "x.png",
        str(tmp_path / "x.png"),
    ):
        other = model.segment(image)
        assert torch.equal(other.labels, found.labels)
        assert torch.equal(other.slots, found.slots)
    gray = model.segment(array[..., 0])
    assert torch.equal(gray.image, tensor[:1].expand(3, -1, -1))


def test_what_a_segmentation_holds(model: ObjectDiscovery) -> None:
    found = model.segment(pixels(height=30, width=40))
    assert found.masks.shape == (3, 30, 40)
    torch.testing.assert_close(found.masks.sum(0), torch.ones(30, 40))
    assert torch.equal(found.labels, found.masks.argmax(0))
    assert found.slots.shape == (3, 8)
    assert found.attention.shape == (3, *model.encoder.out_grid)
    assert found.reconstruction.shape == (3, 16, 16)
    assert found.overlay().size == (40, 30)
    [indexed] = found.indexed()
    assert indexed.mode == "P"
    assert (np.asarray(indexed) == found.labels.numpy()).all()
    # Where there are no pictures, not a thousand numbers.
    assert repr(found) == (
        "Segmentation(image (3, 30, 40), masks (3, 30, 40), slots (3, 8), attention (3, 16, 16), "
        "reconstruction (3, 16, 16))"
    )
    picture = Image.open(io.BytesIO(found._repr_png_()))
    assert picture.format == "PNG"
    # The image, the overlay and three slots.
    assert picture.size == (5 * 192 + 4 * 4, 144)


def test_segments_are_the_models_own(model: ObjectDiscovery) -> None:
    image = torch.from_numpy(pixels(height=16, width=16).copy()).movedim(-1, 0)
    found = model.segment(image, seed=4)
    with torch.inference_mode():
        out = model(image[None], seed=4)
    torch.testing.assert_close(found.masks, out.masks[0])
    torch.testing.assert_close(found.slots, out.slots[0])
    assert torch.equal(found.masks, model.segment(image, seed=4).masks)
    assert not torch.equal(found.slots, model.segment(image, seed=5).slots)
    assert model.segment(image, n_slots=5).masks.shape[0] == 5
    model.train()
    assert torch.equal(found.masks, model.segment(image, seed=4).masks)
    assert model.training
    model.eval()


def test_crop_takes_the_middle(model: ObjectDiscovery) -> None:
    array = pixels(height=20, width=50)
    found = model.segment(array, square="crop")
    assert (found.image.movedim(0, -1).numpy() == array[:, 15:35]).all()
    assert torch.equal(found.masks, model.segment(array[:, 15:35]).masks)


BAD = [
    (lambda: 7, "the image is a int, expected a path, a Pillow image, an array or a tensor"),
    (lambda: Path(__file__).parent, r"^[^:]*: it is a folder, expected a regular file$"),
    (lambda: torch.rand(2, 3, 8, 8), r"has shape \(2, 3, 8, 8\), expected \(3, H, W\)"),
    (lambda: np.zeros((8, 8, 4), np.uint8), r"\(8, 8, 4\), expected \(H, W, 3\) or \(H, W\)"),
    (lambda: torch.rand(8, 8, 3), r"expected \(3, H, W\). Channels come first in a tensor"),
    (lambda: np.zeros((3, 8, 8)), r"\(H, W\). Channels come last in an array: use np.moveaxis"),
    (lambda: torch.rand(3, 8, 8) - 1, "values from -0.9.* expected uint8, or floats from 0 to 1"),
    (lambda: torch.ones(3, 8, 8, dtype=torch.int64), "int64 with values from 1 to 1, expected"),
    (lambda: torch.full((3, 8, 8), torch.nan), "values from nan to nan, expected"),
]


@pytest.mark.parametrize(("make", "message"), BAD)
def test_what_is_no_image(model: ObjectDiscovery, make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        model.segment(make())


def test_videos() -> None:
    torch.manual_seed(0)
    model = VideoObjectDiscovery(3, Softmax(), resolution=(16, 16), **SMALL).eval()
    video = torch.rand(2, 3, 20, 24)
    found = model.segment(video)
    assert found.masks.shape == (2, 3, 20, 24)
    assert found.labels.shape == (2, 20, 24)
    assert found.slots.shape == (2, 3, 8)
    assert len(found.indexed()) == 2
    assert Image.open(io.BytesIO(found._repr_png_())).height == 2 * 160 + 4
    assert torch.equal(model.segment(list(video)).masks, found.masks)
    with pytest.raises(ValueError, match="frames of 24 x 20 and 8 x 8 pixels, expected"):
        model.segment([video[0], video[0, :, :8, :8]])
    with pytest.raises(ValueError, match="frames of no pixels, expected at least one"):
        model.segment([])
    with pytest.raises(ValueError, match="the video is a str, expected a list of images"):
        model.segment("x.mp4")


def test_a_photo_is_turned_however_it_is_given(tmp_path: Path) -> None:
    turned = Image.Exif()
    turned[0x0112] = 6
    Image.new("RGB", (30, 20)).save(tmp_path / "x.jpg", exif=turned)
    by_path = read_image("segment", tmp_path / "x.jpg")
    with Image.open(tmp_path / "x.jpg") as opened:
        assert read_image("segment", opened).shape == by_path.shape == (3, 30, 20)


def test_equal_masks_are_not_shown_black() -> None:
    white = torch.full((3, 8, 8), 255, dtype=torch.uint8)
    masks = torch.full((4, 8, 8), 0.25)
    found = Segmentation(white, masks, torch.zeros(4, 2), masks, white)
    assert np.asarray(found.picture()).mean() > 200


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    fake_run(tiny("multi-dsprites", "SA", tmp_path / "run", data__size=16), trained=True)
    return tmp_path / "run"


def test_the_command(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = fill(Path("photos"), 2)
    fill(Path("more/photos"), 1, height=30)
    assert run("segment", trained, root, "more/photos/000.png", "--device", "cpu") == 0
    names = {path.name for path in Path("segments").iterdir()}
    stems = ("000", "001", "000-2")
    expected = {f"{s}{end}" for s in stems for end in ("-mask.png", "-overlay.png", ".npz")}
    assert names == expected | {"sheet.png"}
    assert "Segmented 3 images. Written: segments/sheet.png" in capsys.readouterr().out
    with np.load("segments/000-2.npz") as found:
        assert set(found) == {"slots", "masks", "attention", "labels", "box"}
        assert found["box"].tolist() == [0, 0, 30, 20]
        assert found["masks"].shape == (6, 30, 20)
        mask = Image.open("segments/000-2-mask.png")
        assert mask.mode == "P"
        assert (np.asarray(mask) == found["labels"]).all()
        best = np.take_along_axis(found["masks"], found["labels"][None].astype(np.int64), 0)
        assert (best == found["masks"].max(0)).all()
    nested = fill(Path("tree/in/side"), 1, masks=True)
    assert run("segment", trained, "tree", nested, "--out", "found", "--device", "cpu") == 0
    assert {p.relative_to("found").as_posix() for p in Path("found").rglob("*-mask.png")} == {
        "in/side/000-mask.png",
        "in/side/masks/000-mask.png",
        "000-mask.png",
    }
    # An export and a name find the same; another seed does not.
    run_export_model(ExportModel(trained, Path("export")))
    first = Path("segments/000.npz").read_bytes()
    assert run("segment", "export", root / "000.png", "--out", "again", "--device", "cpu") == 0
    assert Path("again/000.npz").read_bytes() == first
    words = ("--seed", "1", "--n-slots", "3", "--square", "crop", "--device", "cpu")
    assert run("segment", "export", root / "000.png", "--out", "other", *words) == 0
    with np.load("other/000.npz") as found:
        assert found["masks"].shape == (3, 20, 20)


def test_files_that_are_left_out_are_counted(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = fill(Path("photos"), 1)
    for name in ("a.HEIC", "b.avif", "in/c.avif", "clip.mov"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(b"cannot be read")
    expected = "Left out: 3 files (.avif, .heic), which would have to be PNG or JPEG."
    assert run("segment", trained, root, "--device", "cpu") == 0
    said = capsys.readouterr().out
    assert expected in said
    assert ".mov" not in said
    fake_run(tiny("clevrer-s", "SA", Path("video"), data__size=16), trained=True)
    assert run("segment", "video", root, "--device", "cpu") == 0
    said = capsys.readouterr().out
    assert f"{expected} Left out: 1 file (.mov), which would have to be mp4." in said


def test_a_name_of_several_lines_has_one_line_on_the_sheet(trained: Path) -> None:
    def sheet(name: str) -> bytes:
        Image.fromarray(pixels()).save(name)
        assert run("segment", trained, name, "--device", "cpu") == 0
        return Path("segments/sheet.png").read_bytes()

    assert sheet("two\nlines.png") == sheet("two lines.png")


def test_the_sheet_names_the_folder_of_an_image(trained: Path) -> None:
    words = ("--device", "cpu", "--out")
    for folder in ("a", "b"):
        fill(Path("tree") / folder, 1)
        assert run("segment", trained, Path("tree") / folder, *words, folder) == 0
    assert run("segment", trained, "tree", *words, "tree-segments") == 0
    both = Image.open("tree-segments/sheet.png")
    rows = [both.crop((0, y, both.width, y + 20)) for y in (8, both.height // 2 + 4)]
    assert rows[0].tobytes() != rows[1].tobytes()
    assert Path("a/sheet.png").read_bytes() == Path("b/sheet.png").read_bytes()


def test_a_sheet_ends_somewhere(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = fill(Path("photos"), 42)
    heights: list[int] = []
    for n in (40, 41):
        (root / f"{n:03d}.png").write_bytes(b"broken")
        assert run("segment", trained, root, "--device", "cpu", "--out", f"{n}") == 0
        (root / f"{n:03d}.png").unlink()
        said = " ".join(capsys.readouterr().out.split())
        assert len([*Path(f"{n}").glob("*-mask.png")]) == 81 - n
        first = ", with the first 40" if n == 40 else ""
        assert said.endswith(f"Segmented {81 - n} images, skipped 1. Written: {n}/sheet.png{first}")
        heights.append(photo_size(Path(f"{n}/sheet.png"))[0])
    assert heights[0] == heights[1]


def test_a_folder_of_large_photographs_fits_memory_and_disk(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = fill(Path("photos"), 4, height=900, width=1200)
    found: list[weakref.ref[Segmentation]] = []
    plain = ObjectDiscovery.segment

    def watched(*args: Any, **options: Any) -> Segmentation:
        # Of those before it, the last may still be held.
        assert sum(one() is not None for one in found) <= 1
        result = plain(*args, **options)
        found.append(weakref.ref(result))
        return result

    monkeypatch.setattr(ObjectDiscovery, "segment", watched)
    assert run("segment", trained, root, "--device", "cpu") == 0
    assert len(found) == 4
    path = Path("segments/000.npz")
    assert path.stat().st_size < 2_000_000
    with np.load(path) as arrays:
        assert arrays["masks"].shape == (6, 900, 1200)
        expected = open_run(trained).load_model(torch.device("cpu")).segment(root / "000.png")
        assert np.abs(arrays["masks"] - expected.masks.numpy()).max() < 1 / 400
        assert (arrays["labels"] == expected.labels.numpy()).all()


def test_every_image_has_files_of_its_own(trained: Path) -> None:
    root = fill(Path("photos"), 1)
    image = Image.open(root / "000.png")
    for name in ("a-2.png", "a.jpg", "a.png"):
        image.save(root / name)
    (root / "000.png").unlink()
    assert run("segment", trained, root, "--device", "cpu") == 0
    assert {p.name for p in Path("segments").glob("*.npz")} == {"a.npz", "a-2.npz", "a-3.npz"}


def test_results_never_become_images(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = fill(Path("photos"), 2)
    for _ in range(2):
        assert run("segment", trained, root, "--out", root / "found", "--device", "cpu") == 0
        assert "Segmented 2 images." in capsys.readouterr().out
    assert run("segment", trained, ".", "--out", "other", "--device", "cpu") == 0
    assert "Segmented 2 images." in capsys.readouterr().out
    fill(root / "inner", 1)
    for image, out in ((root, root), (root / "000.png", root), (root, root / "inner")):
        assert run("segment", trained, image, "--out", out, "--device", "cpu") == 1
        assert f"--out is {out}, which holds images to segment" in capsys.readouterr().err
        assert not list(out.glob("*.npz"))


@pytest.mark.parametrize("n", range(1, 7))
def test_what_a_killed_command_wrote_is_no_data(
    trained: Path, n: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(Path("photos/a"), 2)
    monkeypatch.chdir("photos")
    words = ("segment", trained, ".", "--device", "cpu")

    calls = itertools.count()

    def killed(path: Path, content: Any) -> None:
        if next(calls) == n:
            raise KeyboardInterrupt
        write_whole(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(segment, "write_whole", killed)
        assert run(*words) == 130
    assert sum(path.is_file() for path in Path("segments").rglob("*")) == n
    assert ImageReader(".", "all").names == ["a/000.png", "a/001.png"]
    assert run(*words) == 0, capsys.readouterr().err


def test_a_model_of_videos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    fake_run(tiny("clevrer-s", "SA", tmp_path / "run", data__size=16), trained=True)
    fill(Path("frames"), 3)
    assert run("segment", "run", "frames", "--device", "cpu") == 0
    names = sorted(path.name for path in Path("segments").iterdir())
    masks = [f"00{i}-mask.png" for i in range(3)]
    assert names == sorted([*masks, "000-overlay.png", "000.npz", "sheet.png"])


def test_folders_of_frames_are_videos_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `slotmesh train video` takes them, which says that this command comes next."""
    monkeypatch.chdir(tmp_path)
    fake_run(tiny("clevrer-s", "SA", tmp_path / "run", data__size=16), trained=True)
    fill(Path("clips/a"), 2)
    # Videos need not be of one size.
    fill(Path("clips/b/c"), 3, height=24)
    assert run("segment", "run", "clips", "--device", "cpu") == 0
    assert "Segmented 2 videos. Written: segments/sheet.png" in capsys.readouterr().out
    for folder, n in (("a", 2), ("b/c", 3)):
        alone = ("segment", "run", f"clips/{folder}", "--out", "alone", "--device", "cpu")
        assert run(*alone) == 0
        assert f"Segmented {n} images" in capsys.readouterr().out
        assert Path(f"segments/{folder}/000.npz").read_bytes() == Path("alone/000.npz").read_bytes()
    Image.fromarray(pixels(height=30)).save("clips/a/002.png")
    assert run("segment", "run", "clips", "--device", "cpu") == 0
    said = capsys.readouterr().out
    assert "Skipped clips/a: its frames differ in size: 20 x 20 and 20 x 30" in said
    assert "Segmented 1 video, skipped 1." in said
    assert run("segment", "run", "clips/a", "--device", "cpu") == 1
    assert "The video cannot be read." in capsys.readouterr().err


@pytest.mark.parametrize(("height", "width"), [(20, 31), (33, 20), (20, 20)])
def test_masks_have_the_size_of_the_image_and_can_be_scored(
    trained: Path, height: int, width: int, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(Path("photos"), 3, masks=True, height=height, width=width)
    words = ("--square", "crop", "--device", "cpu")
    assert run("segment", trained, "photos", *words) == 0
    for i in range(3):
        mask = np.asarray(Image.open(f"segments/00{i}-mask.png"))
        assert mask.shape == (height, width)
        with np.load(f"segments/00{i}.npz") as found:
            top, left, bottom, right = found["box"]
            assert (bottom - top, right - left) == found["labels"].shape == (20, 20)
            assert (mask[top:bottom, left:right] == found["labels"]).all()
            outside = np.ones_like(mask, dtype=bool)
            outside[top:bottom, left:right] = False
            assert (mask[outside] == 255).all()
    assert run("score", "segments", "photos/masks", "--out", "scores.json") == 0
    # What the model did not see does not count: as if both were cropped.
    for kind, source in (("pred", "segments"), ("truth", "photos/masks")):
        Path(kind).mkdir()
        for i in range(3):
            end = "-mask.png" if kind == "pred" else ".png"
            codes = np.asarray(Image.open(f"{source}/00{i}{end}"))
            np.save(f"{kind}/00{i}.npy", codes[top:bottom, left:right])
    assert run("score", "pred", "truth", "--out", "cropped.json") == 0
    whole, cropped = (json.loads(Path(f"{x}.json").read_text()) for x in ("scores", "cropped"))
    assert whole["images"] == cropped["images"]


def test_clips(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    pytest.importorskip("av")
    monkeypatch.chdir(tmp_path)
    fake_run(tiny("clevrer-s", "SA", tmp_path / "run", data__size=16), trained=True)
    Path("clips").mkdir()
    for name in ("a", "b"):
        clip(Path(f"clips/{name}.mp4"), 3)
    assert run("segment", "run", "clips", "--device", "cpu") == 0
    assert "Segmented 2 videos." in capsys.readouterr().out
    expected = {f"{c}{end}" for c in "ab" for end in (".npz", "-overlay.png")} | {"sheet.png"}
    expected |= {f"{c}/{n}-mask.png" for c in "ab" for n in range(3)}
    found = {p.relative_to("segments").as_posix() for p in Path("segments").rglob("*.*")}
    assert found == expected
    fake_run(tiny("multi-dsprites", "SA", Path("images"), data__size=16))
    assert run("segment", "images", "clips/a.mp4", "--device", "cpu") == 1
    assert "clips/a.mp4 is a clip, but images is a model of images" in capsys.readouterr().err


def test_what_is_left_out_of_a_long_clip_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("av")
    monkeypatch.chdir(tmp_path)
    fake_run(tiny("clevrer-s", "SA", tmp_path / "run", data__size=16), trained=True)
    Path("clips").mkdir()
    for name, n in (("a", 65), ("b", 64)):
        clip(Path("clips") / f"{name}.mp4", n)
    assert run("segment", "run", "clips", "--device", "cpu") == 0
    said = capsys.readouterr().out
    assert "Of clips/a.mp4, which has 65 frames, those after frame 63 are left out." in said
    assert "clips/b.mp4" not in said


def test_pictures_of_long_videos_can_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("av")
    monkeypatch.chdir(tmp_path)
    fake_run(tiny("clevrer-s", "SA", tmp_path / "run", data__size=16), trained=True)
    Path("clips").mkdir()
    # 64 frames of this width would be 20,480 pixels beside each other.
    clip(Path("clips/a.mp4"), 70, width=320, height=64)
    clip(Path("clips/b.mp4"), 3)
    assert run("segment", "run", "clips/a.mp4", "--device", "cpu", "--out", "one") == 0
    assert len([*Path("one/a").iterdir()]) == 64
    height = round(64 * 16384 / (64 * 324 - 4))
    assert photo_size(Path("one/a-overlay.png")) == (height, 16384)
    row = 192 * 64 // 320 + 4
    assert photo_size(Path("one/sheet.png"))[0] == 8 + 20 + 40 * row - 4 + 8
    # Of several videos, all have a place.
    assert run("segment", "run", *Path("clips").iterdir(), "--device", "cpu", "--out", "two") == 0
    assert photo_size(Path("two/sheet.png"))[0] < photo_size(Path("one/sheet.png"))[0]


def test_what_cannot_be_segmented(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def problem(*words: Any) -> str:
        assert run("segment", *words, "--device", "cpu") == 1
        said = capsys.readouterr().err
        assert len(said.strip().splitlines()) == 1
        return said

    root = fill(Path("photos"), 2)
    assert "Got no image, expected at least one" in problem(trained)
    assert "nothing is not a run, an export or a checkpoint" in problem("nothing", root)
    assert "multi-dsprites-sa-mesh" in problem("nothing", root)
    assert "no.png does not exist, expected an image" in problem(trained, "no.png")
    Path("text").mkdir()
    Path("text/a.txt").write_text("")
    assert f"text has no {KINDS} images: it has 1 other" in problem(trained, "text")
    Path("huge.png").write_bytes(header_of(30_000, 30_000))
    Path("words.png").write_text("words")
    assert "None of the 2 images can be read" in problem(trained, "huge.png", "words.png")
    assert "The image cannot be read" in problem(trained, "words.png")
    assert run("segment", trained, "huge.png", root, "--device", "cpu") == 0
    said = capsys.readouterr().out
    assert "Skipped huge.png: it has more than 67,108,864 pixels. Shrink it" in said
    assert "Segmented 2 images, skipped 1." in said
    fake_run(tiny("random-objects", "SA", Path("copier")))
    assert "copier is a random-objects model, which produces no masks" in problem("copier", root)
    assert "--n-slots is 0" in problem(trained, root, "--n-slots", "0")
    open_run(trained).load_model().save_pretrained("saved")  # pyright: ignore
    assert "saved has weights but no settings.json" in problem("saved", root)


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("segment", "MODEL IMAGE [IMAGE ...]"),
        ("report", "RUN [RUN ...]"),
        ("score", "PRED TRUTH"),
        ("evaluate", "RUN"),
        ("export", "RUN"),
    ],
)
def test_the_help_names_what_a_command_takes(
    command: str, names: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command, "--help") == 0
    said = capsys.readouterr().out
    assert f" {names}" in said.partition("\n\n")[0]
    assert "(default: )" not in said
    assert run(command) != 0
    assert names.split()[0] in capsys.readouterr().err


def test_the_help_has_names_for_what_it_takes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("segment", "--help") == 0
    assert "usage: slotmesh segment [-h] [OPTIONS] MODEL " in capsys.readouterr().out
    assert run("segment") == 2
    said = capsys.readouterr().err
    assert "MODEL" in said
    assert "STR" not in said


def test_weights_that_come_with_slotmesh(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = ("clevr-properties", "clevrer-l", "clevrer-s", "clevrtex", "multi-dsprites")
    assert weights.names() == [f"{task}-{kind}" for task in tasks for kind in ("sa", "sa-mesh")]
    found = weights.find("multi-dsprites-sa-mesh")
    assert weights.find("checkpoints/multi-dsprites-sa-mesh/") == found
    assert weights.locate("multi-dsprites-sa-mesh") == found
    assert weights.locate(str(trained)) == trained
    with pytest.raises(ValueError, match=r"Did you mean multi-dsprites-sa-mesh\?"):
        weights.locate("multi-dsprite-sa-mesh")
    fill(Path("photos"), 1, height=64, width=64)
    assert run("segment", "multi-dsprites-sa-mesh", "photos/000.png", "--device", "cpu") == 0
    # What is installed comes first.
    place = Path("installed")
    run_export_model(ExportModel(trained, place / "multi-dsprites-sa-mesh"))
    monkeypatch.setattr(weights, "_INSTALLED", place)
    assert weights.find("multi-dsprites-sa-mesh") == place / "multi-dsprites-sa-mesh"
    for wrong in ("nothing", "..", "", "../../etc"):
        with pytest.raises(ValueError, match=r"There are no weights named .* expected one of"):
            weights.find(wrong)
    monkeypatch.setattr(weights, "_places", list)
    with pytest.raises(ValueError, match="this copy of slotmesh has no weights"):
        weights.find("multi-dsprites-sa")
