"""``slotmesh train features``: from a folder to a report, and features that are computed once."""

import io
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import Tensor, nn

import slotmesh
from slotmesh.models import FeatureDiscovery
from slotmesh.nn import FrozenFeatures
from slotmesh.readers import BadRecord, ImageReader
from slotmesh.training.feature_cache import cached_features
from slotmesh.training.loop import run_train
from slotmesh.training.runs import open_run
from slotmesh.training.tasks import experiment, preset

from ..nn._vits import vit_folder
from ..readers._folders import fill
from ._commands import run, text_of
from ._jobs import Job, assert_same, change, state

CPU = torch.device("cpu")
TINY = ["--steps", "2", "--val-every", "1", "--save-every", "2", "--log-every", "1"]
TINY += ["--data.batch-size", "2", "--hardware.accelerator", "cpu", "--hardware.threads", "1"]
TINY += ["--model.hidden", "8", "--model.slot-dim", "8", "--model.mlp-dim", "8"]


@pytest.fixture(scope="module")
def vit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return vit_folder(tmp_path_factory.mktemp("backbones") / "a-vit")


@pytest.mark.parametrize("masks", [False, True])
def test_from_a_folder_to_a_report(
    tmp_path: Path,
    vit: Path,
    masks: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    # Pages show the command that made a run.
    monkeypatch.setattr("sys.argv", ["slotmesh", "train", "features"])
    root = fill(Path("holiday"), masks=masks)
    bad = root / ImageReader(root).names[0]
    bad.write_bytes(bad.read_bytes()[:-40])
    words = ["features", "--data.root", root, "--model.backbone", vit, *TINY]
    assert run("train", *words) == 0
    said = capsys.readouterr()
    n = len(ImageReader(root).names)
    assert f"Computing the features of {n} images for holiday-train, once: " in said.err
    assert re.search(rf"Skipped 1 of {n} images for train: {bad}: it is not a .*\.\n", said.err)
    assert ("fg_ari" in said.out) is masks
    folder = Path("runs/features/holiday-SA-MESH-quick-0")
    assert str(folder) in said.out
    assert run("evaluate", folder, "--device", "cpu") == 0
    found = json.loads((folder / "evaluation.json").read_text())
    assert set(found["metrics"]) == ({"fg_ari", "fg_miou", "mbo"} if masks else set())
    assert run("report", folder, "--device", "cpu") == 0
    text = text_of(Path("report.html"))
    assert "Images of holiday" in text
    assert "paper" not in text.lower().replace("preset paper", "")
    assert run("export", folder, "--out", "weights") == 0
    card = Path("weights/README.md").read_text()
    assert "images of 32 x 32 pixels" in card
    assert "Features: those of `a-vit`" in card
    assert str(tmp_path) not in card
    assert run("segment", "weights", root, "--device", "cpu", "--out", "found") == 0
    assert run("segment", "weights", root, "--merge", "0.1", "--device", "cpu") == 1
    assert "--merge compares what slots look like" in capsys.readouterr().err
    assert Path("found/sheet.png").is_file()
    capsys.readouterr()
    # Another variant, and a run that resumes, compute nothing but the features that are missing.
    assert run("train", *words, "--variant", "SA") == 0
    assert run("train", *words, "--steps", "4", "--out", "other") == 0
    assert "Computing" not in capsys.readouterr().err
    # What was learned, from Python.
    model = FeatureDiscovery.from_pretrained("weights")
    mine = open_run(Path("weights")).load_model()
    assert_same(dict(model.state_dict()), dict(mine.state_dict()))


def test_a_world_needs_no_folder(
    tmp_path: Path, vit: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["--data.world", "clevrtex", "--model.backbone", vit, *TINY, "--data.train-size", "6"]
    words += ["--data.val-size", "2", "--data.test-size", "2", "--data.size", "16"]
    assert run("train", "features", *words) == 0
    assert "fg_ari" in capsys.readouterr().out
    folder = Path("runs/features/clevrtex-SA-MESH-quick-0")
    assert run("evaluate", folder, "--device", "cpu") == 0
    assert run("export", folder, "--out", "weights") == 0
    assert "6 samples of slotmesh's own procedural world for clevrtex" in (
        Path("weights/README.md").read_text()
    )


def test_the_usual_recipe() -> None:
    made: Any = preset("features", "SA", "paper")
    assert (made.steps, made.data.batch_size, made.optim.lr) == (50_000, 32, 2e-4)
    assert (made.model.slot_dim, made.model.n_iters, made.model.hidden) == (256, 3, 2048)
    assert (made.optim.clip, made.model.layers) == (1.0, 3)
    # 5% of warm-up, whatever the number of steps, then a cosine to 0.
    for steps in (50_000, 2000):
        rates = [made.optim.factor(step, steps) for step in range(steps)]
        top = max(range(steps), key=rates.__getitem__)
        assert top == round(0.05 * steps) - 1
        assert rates[0] == pytest.approx(20 / steps, rel=1e-3)
        assert rates[-1] < 1e-5
        assert all(a >= b for a, b in zip(rates[top:], rates[top + 1 :], strict=False))


@pytest.mark.parametrize(("name", "batch"), [("quick", 16), ("paper", 32)])
def test_a_large_folder_has_the_batch_of_the_preset(tmp_path: Path, name: str, batch: int) -> None:
    fill(tmp_path / "photos", 100)
    assert preset("features", "SA", name, root=tmp_path / "photos").data.batch_size == batch
    fill(tmp_path / "few", 12)
    assert preset("features", "SA", name, root=tmp_path / "few").data.batch_size < 6


def test_a_killed_run_resumes_to_the_same_bits(tmp_path: Path, vit: Path) -> None:
    root = fill(tmp_path / "photos", masks=True)
    start: Any = preset("features", "SA-MESH", root=root)
    start = change(
        start,
        steps=6,
        val_every=3,
        save_every=2,
        data__batch_size=4,
        data__root=root,
        data__cache=tmp_path / "cache",
        model__backbone=str(vit),
        model__hidden=8,
        model__slot_dim=8,
        model__mlp_dim=8,
        hardware__accelerator="cpu",
        hardware__threads=1,
    )
    run_train(change(start, out=tmp_path / "whole"), Console(quiet=True))
    settings = change(start, out=tmp_path / "killed")
    job = Job(tmp_path / "killed.log", "train", settings=settings, kill="a_step 4")
    assert job.wait() == -9, job.output
    assert "Computing" not in job.output
    screen = io.StringIO()
    run_train(settings, Console(file=screen))
    assert "Resuming" in screen.getvalue()
    assert_same(state(tmp_path / "killed"), state(tmp_path / "whole"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--data.root", "photos"), "--model.backbone is missing, expected a vision model"),
        (("--model.backbone", "VIT"), "--data.root is missing, expected your folder"),
        (
            ("--data.root", "photos", "--model.backbone", "./gone"),
            "backbone: ./gone does not exist",
        ),
        (("--data.root", "photos", "--model.backbone", "texts"), "backbone: texts has no config.j"),
        (("--data.root", "photos", "--model.backbone", "some_vit"), "timm, which is not installed"),
        (
            ("--data.root", "gone", "--model.backbone", "VIT"),
            "gone, which does not exist",
        ),
        (
            ("--data.root", "texts", "--model.backbone", "VIT"),
            "texts has no PNG, JPEG, WebP, BMP, TIFF or GIF",
        ),
        (
            ("--data.root", "photos", "--model.backbone", "VIT", "--data.size", "20"),
            "20 x 20 pixels cannot be cut into the patches",
        ),
        (
            ("--data.root", "photos", "--model.backbone", "VIT", "--data.batch-size", "99"),
            "--data.batch-size is 99, but there are only",
        ),
        (
            ("--data.world", "mars", "--model.backbone", "VIT"),
            "--data.world is 'mars', expected one",
        ),
        (("--data.world", "clevrer-s", "--model.backbone", "VIT"), "expected a world of images"),
        (("--data.root", "photos", "--model.hidden", "0"), "--model.hidden is 0"),
        (
            ("--data.root", "photos", "--model.backbone", "VIT", "--data.cache", "texts/a.txt"),
            "The feature cache texts/a.txt/",
        ),
    ],
)
def test_bad_input_is_one_line(
    words: tuple[str, ...],
    said: str,
    vit: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "timm", None)
    fill(Path("photos"))
    Path("texts").mkdir()
    Path("texts/a.txt").write_text("x")
    given = [str(vit) if word == "VIT" else word for word in words]
    assert run("train", "features", *given, "--hardware.accelerator", "cpu") == 1
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("slotmesh:")]
    assert len(errors) == 1
    assert said in errors[0]


def test_a_run_whose_backbone_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    vit_folder(Path("vit"))
    fill(Path("photos"))
    words = ["--data.root", "photos", "--model.backbone", "vit", *TINY, "--out", "run"]
    assert run("train", "features", *words) == 0
    vit_folder(Path("vit"), seed=1)
    for command in (["evaluate", "run"], ["segment", "run", "photos"]):
        assert run(*command, "--device", "cpu") == 1
        error = capsys.readouterr().err.strip().splitlines()[-1]
        assert "the backbone vit has other weights" in error
    assert run("segment", "run", "photos", "--device", "cpu") == 1
    for file in Path("vit").iterdir():
        file.unlink()
    Path("vit").rmdir()
    capsys.readouterr()
    assert run("evaluate", "run", "--device", "cpu") == 1
    assert "vit" in capsys.readouterr().err


# ---- the cache ----


class Grey:
    """Images of one grey level each; counts how often each is asked for."""

    title = "grey"

    def __init__(self, n: int = 40) -> None:
        self.levels = list(range(n))
        self.times = [0] * n
        self.what = f"grey {n}"
        self.asked: list[int] = []
        self.broken: set[int] = set()

    def __len__(self) -> int:
        return len(self.levels)

    def stamp(self, row: int) -> str:
        return str(self.times[row])

    def images(self, rows: Any) -> list[Tensor | BadRecord]:
        self.asked += rows
        return [
            BadRecord(Path(f"{row}.png"), None, "it is broken")
            if row in self.broken
            else torch.full((3, 8, 8), self.levels[row], dtype=torch.uint8)
            for row in rows
        ]


class Counting(nn.Module):
    """Means of 4 x 4 pixels, and how many images it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0
        self.stop_after = 10**9

    def forward(self, x: Tensor) -> Tensor:
        if self.seen >= self.stop_after:
            raise KeyboardInterrupt
        self.seen += len(x)
        return nn.functional.avg_pool2d(x, 4)


def opened(
    rows: Grey, cache: Path, net: Counting, screen: io.StringIO | None = None
) -> tuple[Any, str]:
    """The features, and what was said."""
    encoder = FrozenFeatures(net, resolution=8)
    net.seen = 0
    rows.asked = []
    screen = io.StringIO() if screen is None else screen
    file = cached_features(encoder, rows, cache, CPU, Console(file=screen, width=300))
    return file, screen.getvalue()


def check(file: Any, rows: Grey) -> None:
    """Row by row what the images are."""
    good = [row for row in range(len(rows)) if row not in rows.broken]
    expected = torch.tensor([rows.levels[row] / 255 for row in good])
    found = file.read(range(len(good)))
    assert found.dtype == torch.float16
    assert found.shape == (len(good), 4, 3)
    torch.testing.assert_close(
        found.float(), expected[:, None, None].expand_as(found).half().float()
    )


def test_features_are_computed_once(tmp_path: Path) -> None:
    rows, net = Grey(), Counting()
    file, said = opened(rows, tmp_path, net)
    check(file, rows)
    assert net.seen == 40
    assert "Computing the features of 40 images for grey, once" in said
    file, said = opened(rows, tmp_path, net)
    check(file, rows)
    assert (net.seen, rows.asked, said) == (0, [], "")


def test_a_kill_costs_one_block(tmp_path: Path) -> None:
    rows, net = Grey(), Counting()
    net.stop_after = 30
    with pytest.raises(KeyboardInterrupt):
        opened(rows, tmp_path, net)
    # Blocks of 16 images on the CPU: two were finished.
    net.stop_after = 10**9
    file, said = opened(rows, tmp_path, net)
    assert net.seen == 8
    assert "Computing the features of 8 images" in said
    check(file, rows)


def test_a_changed_image_is_computed_again_and_a_touched_one_is_not(tmp_path: Path) -> None:
    rows, net = Grey(), Counting()
    opened(rows, tmp_path, net)
    rows.times[3] = rows.times[7] = 1
    rows.levels[7] = 200
    file, _ = opened(rows, tmp_path, net)
    assert (rows.asked, net.seen) == ([3, 7], 1)
    check(file, rows)
    _, said = opened(rows, tmp_path, net)
    assert (rows.asked, said) == ([], "")


def test_damage_costs_the_rows_that_it_touches(tmp_path: Path) -> None:
    rows, net = Grey(), Counting()
    opened(rows, tmp_path, net)
    [folder] = tmp_path.iterdir()
    values = np.memmap(folder / "features.f16", np.float16, mode="r+", shape=(40, 4, 3))
    values[[5, 21], 2] += 1
    values.flush()
    file, said = opened(rows, tmp_path, net)
    assert "2 of 40 features in" in said
    assert net.seen == 2
    check(file, rows)


@pytest.mark.parametrize("damage", ["shorter", "about", "rows", "gone"])
def test_a_bad_cache_is_rebuilt_with_a_line(tmp_path: Path, damage: str) -> None:
    rows, net = Grey(), Counting()
    opened(rows, tmp_path, net)
    [folder] = tmp_path.iterdir()
    if damage == "shorter":
        os.truncate(folder / "features.f16", 50)
    elif damage == "about":
        (folder / "about.json").write_text("{")
    elif damage == "rows":
        os.truncate(folder / "rows.bin", 50)
    else:
        (folder / "features.f16").unlink()
    file, said = opened(rows, tmp_path, net)
    assert f"The feature cache {folder} is damaged" in said
    assert "and is rebuilt" in said
    assert net.seen == 40
    check(file, rows)


def test_images_that_cannot_be_read_have_no_row(tmp_path: Path) -> None:
    rows, net = Grey(), Counting()
    rows.broken = {0, 17}
    file, _ = opened(rows, tmp_path, net)
    assert len(file) == 38
    assert [bad.path.name for bad in file.bad] == ["0.png", "17.png"]
    check(file, rows)
    # They are tried again, and only they.
    rows.broken = {17}
    file, _ = opened(rows, tmp_path, net)
    assert (rows.asked, len(file)) == ([0, 17], 39)
    check(file, rows)


def test_other_weights_or_images_have_a_cache_of_their_own(tmp_path: Path) -> None:
    rows, net = Grey(), Counting()
    opened(rows, tmp_path, net)
    encoder = FrozenFeatures(Counting(), resolution=8, mean=(0.5,) * 3)
    cached_features(encoder, rows, tmp_path, CPU, Console(quiet=True))
    opened(Grey(39), tmp_path, net)
    assert len([*tmp_path.iterdir()]) == 3


def test_two_processes_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second waits for the first, then finds everything."""
    from slotmesh.training.processes import Lock

    rows, net = Grey(), Counting()
    opened(rows, tmp_path, net)
    [folder] = tmp_path.iterdir()
    lock = Lock(folder)
    lock.acquire()

    class Screen(io.StringIO):
        def write(self, text: str) -> int:
            if "Waiting for another process" in text:
                lock.release()
            return super().write(text)

    monkeypatch.setattr("slotmesh.training.processes._PATIENCE_S", 0.0)
    _, said = opened(rows, tmp_path, net, Screen())
    assert "Waiting for another process" in said
    assert net.seen == 0


def test_no_room_is_said_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from types import SimpleNamespace

    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=10))
    with pytest.raises(ValueError, match=r"take 0\.0 MB, but .* has room for .* --data\.cache"):
        opened(Grey(), tmp_path, Counting())


def test_features_beyond_half_precision_are_refused_or_cut(tmp_path: Path) -> None:
    class Large(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.avg_pool2d(x, 4) * 1e6 + 1e6

    file = cached_features(
        FrozenFeatures(Large(), resolution=8), Grey(2), tmp_path, CPU, Console(quiet=True)
    )
    assert file.read([0, 1]).isfinite().all()

    class Wrong(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.avg_pool2d(x, 4) / 0

    with pytest.raises(ValueError, match="features that are not finite"):
        cached_features(
            FrozenFeatures(Wrong(), resolution=8), Grey(2), tmp_path, CPU, Console(quiet=True)
        )


def test_the_backbone_is_loaded_once(vit: Path, tmp_path: Path) -> None:
    start = preset("features", root=fill(tmp_path / "photos"))
    made: Any = experiment(
        change(start, data__root=tmp_path / "photos", model__backbone=str(vit), data__batch_size=2)
    )
    one, other = made.fresh_model(), made.fresh_model()
    assert one.encoder is other.encoder is made.encoder
    assert_same(dict(one.state_dict()), dict(other.state_dict()))


def test_fit_with_a_backbone(vit: Path, tmp_path: Path) -> None:
    images = torch.rand(8, 3, 12, 12)
    options: dict[str, Any] = {"n_slots": 3, "steps": 2, "device": "cpu", "progress": False}
    model = slotmesh.fit(images, backbone=vit, **options)
    assert isinstance(model, FeatureDiscovery)
    assert not model.training
    assert model.encoder.resolution == (32, 32)
    assert model.segment(images[0]).masks.shape == (3, 12, 12)
    smaller = slotmesh.fit(images, backbone=str(vit), size=16, out=tmp_path / "run", **options)
    assert smaller.encoder.out_grid == (2, 2)
    again = open_run(tmp_path / "run").load_model()
    assert_same(dict(again.state_dict()), dict(smaller.state_dict()))
