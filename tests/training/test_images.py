"""Your own images and videos: from a folder to a report, with masks or without."""

import json
import re
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from PIL import Image

from slotmesh.cli import parse_train
from slotmesh.readers import ImageReader
from slotmesh.training.runs import open_run
from slotmesh.training.tasks import experiment, preset

from ..readers._folders import fill, header_of
from ..readers.test_video_folder import frames
from ._commands import run, text_of
from ._jobs import change

TINY = ["--steps", "2", "--val-every", "1", "--save-every", "2", "--log-every", "1"]
TINY += ["--data.size", "8", "--data.batch-size", "2", "--hardware.accelerator", "cpu"]
SMALL = ["--model.channels", "8", "--model.slot-dim", "8", "--model.mlp-dim", "8"]
SMALL += ["--model.start", "None"]


@pytest.fixture(autouse=True)
def _command(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page has the command of a run on it, which here would be that of the tests."""
    monkeypatch.setattr("sys.argv", ["slotmesh"])


@pytest.mark.parametrize("masks", [False, True])
def test_from_a_folder_to_a_report(
    tmp_path: Path, masks: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    root = fill(Path("holiday"), masks=masks)
    (root / "notes.txt").write_text("ignored")
    (root / "from-a-phone.HEIC").write_bytes(b"cannot be read")
    n = {split: len(ImageReader(root, split)) for split in ("train", "val")}
    bad = root / ImageReader(root).names[0]
    bad.write_bytes(bad.read_bytes()[:-40])
    assert run("train", "images", "--data.root", root, *TINY, *SMALL) == 0
    said = capsys.readouterr()
    assert re.search(rf"^Skipped 1 of \d+ images for train: {bad}: it is not a .*\.$", said.err)
    folder = Path("runs/images/holiday-SA-MESH-quick-0")
    assert f"Training on {n['train'] - 1} images, validating on {n['val']}." in said.out
    assert "Left out: 1 file (.heic), which would have to be PNG" in " ".join(said.out.split())
    look = f"evaluate {folder}" if masks else f"segment {folder} {root}"
    assert said.out.endswith(f"Trained: {folder}. Next: slotmesh {look}\n")
    assert ("fg_ari" in said.out) is masks
    assert run("evaluate", folder, "--device", "cpu") == 0
    found = json.loads((folder / "evaluation.json").read_text())
    assert set(found["metrics"]) == ({"fg_ari", "fg_miou", "mbo"} if masks else set())
    assert found["loss"] > 0
    assert run("report", folder, "--device", "cpu") == 0
    text = text_of(Path("report.html"))
    # Without masks the loss is the metric; its curve is drawn once.
    assert text.count("validation loss") == 1
    assert "Images of holiday" in text
    assert ("FG-ARI" in text) is masks
    assert "paper" not in text.lower().replace("preset paper", "")
    assert "Table" not in text
    assert "dSprites" not in text
    if not masks:
        assert f"{found['loss']:.3f}" in text
    assert run("export", folder, "--out", "weights") == 0
    # The images are gone: the model is still the same.
    root.rename("elsewhere")
    assert open_run(Path("weights")).load_model() is not None
    assert run("evaluate", "weights", "--device", "cpu") == 1
    said = capsys.readouterr().err
    assert "weights was trained on holiday, which is not here. Pass its folder with --root" in said
    assert run("evaluate", "weights", "--device", "cpu", "--root", "elsewhere") == 0


def test_a_run_without_its_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its images are on another machine, or gone: what needs none of them still works."""
    monkeypatch.chdir(tmp_path)
    fill(Path("x"), masks=True)
    Path("x/masks").rename("truth")
    words = ["--data.root", "x", "--data.masks", "truth", *TINY, *SMALL, "--out", "run"]
    assert run("train", "images", *words) == 0
    assert run("evaluate", "run", "--device", "cpu") == 0
    for path in Path("x").iterdir():
        path.unlink()
    assert run("report", "run", "--device", "cpu") == 0
    text = text_of(Path("report.html"))
    assert "There are no pictures" in text
    assert f"--data.masks {tmp_path.resolve() / 'truth'}" in text
    Path("truth").rename("elsewhere")
    assert run("export", "run", "--out", "weights") == 0
    assert run("segment", "weights", "elsewhere", "--device", "cpu") == 0


def test_two_folders_are_two_sections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("cats", "dogs"):
        assert run("train", "images", "--data.root", fill(Path(name)), *TINY, *SMALL) == 0
    assert run("report", *Path("runs/images").iterdir(), "--device", "cpu") == 0
    text = text_of(Path("report.html"))
    assert "Images of cats" in text
    assert "Images of dogs" in text


def test_videos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for i in range(6):
        frames(Path("clips") / f"{i}", 6, base=10 * i)
    masks = Path("clips/masks")
    for i in range(6):
        (masks / f"{i}").mkdir(parents=True)
        for t in range(6):
            mask = np.zeros((16, 24), np.uint8)
            mask[:8, 12 - t :] = 1
            Image.fromarray(mask).save(masks / f"{i}" / f"{t:03d}.png")
    words = ["--data.root", "clips", "--data.stride", "2", *TINY, *SMALL]
    assert run("train", "video", *words) == 0
    folder = Path("runs/video/clips-SA-MESH-quick-0")
    assert run("evaluate", folder, "--device", "cpu") == 0
    found = json.loads((folder / "evaluation.json").read_text())
    assert set(found["metrics"]) == {"fg_ari", "fg_miou", "mbo", "tc"}
    assert run("report", folder, "--device", "cpu") == 0
    assert "Videos of clips" in text_of(Path("report.html"))
    assert "paper" not in text_of(Path("report.html")).lower()


@pytest.mark.parametrize("masks", [False, True])
def test_an_hdf5_file(tmp_path: Path, masks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    with h5py.File("mine.h5", "w") as file:
        file["images"] = rng.integers(0, 256, (20, 3, 16, 16), dtype=np.uint8)
        if masks:
            file["masks"] = rng.integers(0, 2, (20, 4, 1, 16, 16), dtype=np.uint8)
            file["num_objects"] = np.full(20, 4)
    start = preset("images", root=Path("mine.h5"))
    assert (start.data.size, start.model.n_slots) == (16, 5 if masks else 7)
    words = [*TINY[:-6], *TINY[-4:], *SMALL]
    assert run("train", "images", "--data.root", "mine.h5", *words) == 0
    folder = Path("runs/images/mine-h5-SA-MESH-quick-0")
    assert run("evaluate", folder, "--device", "cpu") == 0
    found = json.loads((folder / "evaluation.json").read_text())
    assert ("fg_ari" in found["metrics"]) is masks
    assert found["n"] == 2
    assert run("report", folder, "--device", "cpu") == 0
    assert "Images of mine.h5" in text_of(Path("report.html"))


def test_resuming_sees_the_same_images(tmp_path: Path) -> None:
    root = fill(tmp_path / "x")
    words = ["train", "images", "--data.root", root, *TINY, *SMALL, "--out", tmp_path / "run"]
    assert run(*words) == 0
    assert run(*words) == 0
    once = open_run(tmp_path / "run").load_model().state_dict()
    assert run(*words, "--overwrite") == 0
    again = open_run(tmp_path / "run").load_model().state_dict()
    assert all(torch.equal(once[k], again[k]) for k in once)


def test_defaults_come_from_the_data(tmp_path: Path) -> None:
    few = preset("images", root=fill(tmp_path / "few", 12))
    assert (few.data.size, few.data.square, few.model.n_slots) == (64, "crop", 7)
    assert few.data.batch_size <= 5
    assert few.steps == 200
    assert few.model.start == "multi-dsprites-sa-mesh"
    wide = preset("images", root=fill(tmp_path / "wide", 12, height=40, width=90))
    assert (wide.data.size, wide.data.square) == (64, "squeeze")
    assert wide.transport.lr == 8.0
    scratch = preset("images", preset="paper", root=tmp_path / "wide")
    assert (scratch.data.size, scratch.transport.lr, scratch.model.start) == (40, 5.0, None)
    masked = preset("images", root=fill(tmp_path / "masked", 12, masks=True))
    assert masked.model.n_slots == 4
    (tmp_path / "masked" / "masks").rename(tmp_path / "truth")
    assert preset("images", root=tmp_path / "masked").model.n_slots == 7
    words = ["images", "--data.root", str(tmp_path / "masked"), "--data.masks"]
    assert parse_train([*words, str(tmp_path / "truth")]).model.n_slots == 4
    # Masks in a folder inside that of the images are no images.
    inside = tmp_path / "masked" / "labels"
    (tmp_path / "truth").rename(inside)
    found = parse_train([*words, str(inside)])
    assert (found.model.n_slots, found.data.batch_size) == (4, masked.data.batch_size)
    assert parse_train([*words, str(tmp_path / "none")]).model.n_slots == 7
    paper = preset("images", preset="paper", root=fill(tmp_path / "large", 12, height=80, width=80))
    assert (paper.data.size, paper.steps, paper.transport.lr) == (64, 20_000, 8.0)
    asked = preset("images", root=tmp_path / "few", size=128)
    assert (asked.data.size, asked.transport.lr) == (128, 16.0)


def test_steps_grow_with_the_number_of_images(tmp_path: Path) -> None:
    tmp_path.joinpath("many").mkdir()
    for i in range(300):
        (tmp_path / "many" / f"{i}.png").write_bytes(header_of(64, 64))
    found = preset("images", root=tmp_path / "many")
    assert 250 < found.steps < 350
    assert found.data.batch_size == 8


def problem(capsys: pytest.CaptureFixture[str], *words: Any, task: str = "images") -> str:
    """The line that a command ends with, before it has made anything."""
    capsys.readouterr()
    out = ["--out", "never"]
    assert run("train", task, *words, *TINY, *SMALL, *out) == 1
    error = capsys.readouterr().err.strip()
    assert "Traceback" not in error
    assert not Path("never").exists()
    return error.splitlines()[-1]


def test_bad_folders_end_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    said = problem(capsys)
    assert "--data.root is missing, expected your folder: slotmesh train images" in said
    assert "nothing does not exist, expected a folder" in problem(capsys, "--data.root", "nothing")
    for task in ("images", "video"):
        assert "--data.root is missing" in problem(capsys, task=task)
    Path("empty").mkdir()
    assert "empty has no PNG, JPEG" in problem(capsys, "--data.root", "empty")
    assert "has no mp4 clips" in problem(capsys, "--data.root", "empty", task="video")
    Path("text").mkdir()
    Path("text/readme.txt").write_text("words")
    assert "it has 1 other file, readme.txt" in problem(capsys, "--data.root", "text")
    with h5py.File("wide.h5", "w") as file:
        file["images"] = np.zeros((20, 3, 8, 12), np.uint8)
    said = problem(capsys, "--data.root", "wide.h5")
    assert "wide.h5 has samples of shape (3, 8, 12), expected images (3, 8, 8)" in said
    assert "wide.h5 is a file, expected a folder" in problem(
        capsys, "--data.root", "wide.h5", task="video"
    )
    fill(Path("few"), 2)
    assert "too few images" in problem(capsys, "--data.root", "few")
    fill(Path("small"), 3)
    said = problem(capsys, "--data.root", "small")
    assert "--data.batch-size is 2, but small has only 1 samples to train on" in said
    Path("broken").mkdir()
    for i in range(12):
        Path(f"broken/{i}.jpg").write_bytes(b"no image")
    said = problem(capsys, "--data.root", "broken")
    assert re.search(
        r"None of the \d+ training images in broken can be used. broken/\d+.jpg: it is", said
    )
    assert re.search(r"and \d+ more\.$", said)
    for i in range(12):
        Path(f"broken/{i}.jpg").write_bytes(header_of(30_000, 30_000))
    assert "67,108,864 pixels. Shrink it" in problem(capsys, "--data.root", "broken")


def test_bad_masks_end_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    root = fill(Path("x"), masks=True)
    assert "--data.masks is no" in problem(capsys, "--data.root", root, "--data.masks", "no")
    made = experiment(change(preset("images", root=root), data__root=root))
    held_out = made.reader("val").names[0]
    path = root / "masks" / held_out
    right = path.read_bytes()
    Image.new("L", (4, 4)).save(path)
    assert f"{held_out}: the mask has 4 x 4 pixels, its image 20 x 20" in problem(
        capsys, "--data.root", root
    )
    path.write_bytes(right)
    Image.new("L", (20, 20)).save(root / "masks" / "stray.png")
    assert "stray.png: it is a mask without its image" in problem(capsys, "--data.root", root)


def test_more_than_fits_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotmesh.training.tasks.folder._memory", lambda: 1000)
    settings = change(preset("images"), data__root=fill(tmp_path / "x"))
    with pytest.raises(ValueError, match=r"which take .* GiB in memory, .*smaller --data.size"):
        experiment(settings)


def test_a_run_has_the_name_of_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = change(preset("images", "SA"), data__root=tmp_path / "söme pics")
    assert settings.folder == Path("runs/images/söme-pics-SA-quick-0")
    # A run that has the name of an earlier version goes on.
    old = Path("runs/images/s-me-pics-SA-quick-0")
    old.mkdir(parents=True)
    assert settings.folder == old


SHORT = ("--variant", "SA", "--steps", "4", "--save-every", "2", "--hardware.accelerator", "cpu")


def test_a_run_finds_its_images_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    root = fill(Path("photos"))
    assert run("train", "images", "--data.root", root, "--out", "run", *SHORT) == 0
    # The same folder, written in another way, is the same data.
    for same in (tmp_path / "photos", "photos/../photos"):
        assert run("train", "images", "--data.root", same, "--out", "run", *SHORT) == 0
        assert "Resuming" in capsys.readouterr().out
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    assert run("evaluate", tmp_path / "run", "--device", "cpu") == 0
    other = fill(tmp_path / "other")
    assert run("train", "images", "--data.root", other, "--out", tmp_path / "run", *SHORT) == 1
    assert "holds a run with --data.root" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    assert run("export", "run", "--out", "weights") == 0
    kept = json.loads(Path("weights/settings.json").read_text())
    assert kept["data"]["root"] == "photos"


def test_other_images_are_said_and_change_no_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    root = fill(Path("photos"), 12)
    words = ("train", "images", "--data.root", root, "--variant", "SA")
    first = parse_train([str(word) for word in words[1:]])
    assert run(*words, "--steps", 4, "--hardware.accelerator", "cpu") == 0
    assert run(*words, "--steps", 4, "--hardware.accelerator", "cpu") == 0
    assert "not those that the run began with" not in capsys.readouterr().out
    fill(root, 40, height=64, width=64)
    changed = parse_train([str(word) for word in words[1:]])
    assert changed.steps == 4
    assert (changed.data.size, changed.data.batch_size) == (first.data.size, first.data.batch_size)
    other = parse_train([str(word) for word in (*words[1:], "--seed", 1)])
    assert other.data.batch_size != first.data.batch_size
    assert run(*words, "--hardware.accelerator", "cpu") == 0
    said = capsys.readouterr().out
    assert "The files in photos have changed since the run began: 40 now, 12 then" in said
    assert run(*words, "--data.size", 40) == 1
    assert "holds a run with --data.size" in capsys.readouterr().err


def test_a_link_to_nothing_is_skipped_like_any_file_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    root = fill(Path("photos"))
    lost = root / ImageReader(root).names[0]
    lost.unlink()
    lost.symlink_to(tmp_path / "gone.png")
    words = ("train", "images", "--data.root", root, *TINY, *SMALL)
    assert run(*words) == 0
    assert f"{lost}: the file is missing" in capsys.readouterr().err
    assert run(*words) == 0
    assert "not those that the run began with" not in capsys.readouterr().out
