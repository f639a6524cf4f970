"""Trained weights on fresh scenes: which scenes, and what is shown of them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from slotmesh.demo import scenes
from slotmesh.demo.scenes import Weights, draw_scenes, find_weights, try_weights
from slotmesh.metrics import fg_ari, fg_miou
from slotmesh.report.side_by_side import SegmentedScene
from slotmesh.training import weights as shipped
from slotmesh.training.evaluate import evaluate_run
from slotmesh.training.export import ExportModel, run_export_model

from ..training._jobs import fake_run, tiny

NAMES = {"SA": "multi-dsprites-sa", "SA-MESH": "multi-dsprites-sa-mesh"}


def put_weights(folder: Path, **changes: Any) -> Path:
    """Weights of both variants, as an export leaves them."""
    for variant, name in NAMES.items():
        settings = tiny("multi-dsprites", variant, folder / "runs" / variant, **changes)
        fake_run(settings, trained=True)
        run_export_model(ExportModel(settings.folder, folder / name), Console(quiet=True))
    return folder


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return put_weights(tmp_path_factory.mktemp("weights"))


def attempt(folder: Path, out: Path, seed: int = 0) -> list[Weights]:
    return [try_weights(run, seed, out, Console(quiet=True)) for run in find_weights(folder)]


def test_scenes_are_fresh_and_the_same_for_both(weights: Path, tmp_path: Path) -> None:
    def pictures(one: Any, split: Any) -> set[bytes]:
        source, _ = one.run.experiment.source(split, torch.device("cpu"))
        return {bytes(image.numpy().tobytes()) for image in source.sample(range(40)).image}

    first, second = (tried.found for tried in attempt(weights, tmp_path))
    fresh = pictures(first, "test")
    assert len(fresh) == 40
    assert pictures(second, "test") == fresh
    before = find_weights(weights)[0]
    for split in ("train", "val", "test"):
        trained_on = replace(first, run=before)
        assert not fresh & pictures(trained_on, split), split
    other = attempt(weights, tmp_path, seed=1)[0]
    assert not fresh & pictures(other.found, "test")


def test_numbers_are_those_of_an_evaluation(weights: Path, tmp_path: Path) -> None:
    for tried in attempt(weights, tmp_path):
        again = evaluate_run(tried.found.run, out=tmp_path / "again", device="cpu")
        assert again["n"] == 64
        assert tried.metrics == again["metrics"]
        assert tried.row()["fg_ari"] == 100 * again["metrics"]["fg_ari"]
        assert tried.row()["paper"]["fg_ari"] == {"SA": 92.2, "SA-MESH": 95.6}[tried.variant]


def test_pictures_are_of_what_was_measured(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[SegmentedScene] = []
    monkeypatch.setattr(scenes, "side_by_side", drawn.append)
    tried = attempt(weights, tmp_path)
    draw_scenes(tried)
    assert len(drawn) == 4
    for i, scene in enumerate(drawn):
        assert list(scene.masks) == ["SA", "SA-MESH"]
        for one in tried:
            masks = scene.masks[one.variant]
            # Measured several at a time, drawn one by one: rounding decides where two are as good.
            best, second = masks.topk(2, dim=0).values
            doubtful = int((best - second < 1e-4 * best).sum())
            assert doubtful < masks[0].numel() / 20
            sizes = scene.truth.unique(return_counts=True)[1]
            off = 1e-6 + 2 * doubtful / int(sizes.min())
            for name, measure in (("fg_ari", fg_ari), ("fg_miou", fg_miou)):
                drawn_value = float(measure(masks.argmax(0), scene.truth, n_slots=6, n_objects=5))
                assert one.by_scene[name][i] == pytest.approx(drawn_value, abs=off)
            ari, miou = (100 * one.by_scene[name][i] for name in ("fg_ari", "fg_miou"))
            assert scene.notes[one.variant] == f"FG-ARI {ari:.0f} %, FG-mIoU {miou:.0f} %"


def test_weights_are_found_here_or_in_the_repository(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(scenes, "_HERE", Path("some-weights"))
    monkeypatch.setattr(shipped, "_CLONE", tmp_path / "clone")
    monkeypatch.setattr(shipped, "_INSTALLED", tmp_path / "installed")
    assert find_weights(None) == []
    for place in ("clone", "installed", "some-weights"):
        (tmp_path / place).symlink_to(weights)
        assert [run.folder.parent.name for run in find_weights(None)] == [place] * 2


def test_one_variant_is_not_enough(weights: Path, tmp_path: Path) -> None:
    (tmp_path / NAMES["SA"]).symlink_to(weights / NAMES["SA"])
    with pytest.raises(ValueError, match="expected a folder with multi-dsprites-sa and"):
        find_weights(tmp_path)


def test_weights_of_another_kind_are_refused(weights: Path, tmp_path: Path) -> None:
    (tmp_path / NAMES["SA"]).symlink_to(weights / NAMES["SA-MESH"])
    (tmp_path / NAMES["SA-MESH"]).symlink_to(weights / NAMES["SA-MESH"])
    with pytest.raises(ValueError, match="holds multi-dsprites SA-MESH, expected"):
        find_weights(tmp_path)
    (tmp_path / NAMES["SA"]).unlink()
    put_weights(tmp_path / "small", data__size=16)
    (tmp_path / NAMES["SA"]).symlink_to(tmp_path / "small" / NAMES["SA"])
    with pytest.raises(ValueError, match=r"\(16, 6\) and \(32, 6\), expected the same"):
        find_weights(tmp_path)
