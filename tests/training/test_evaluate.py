"""``slotmesh evaluate``: what JSON, CSV and the table say is one and the same."""

import csv
import json
import math
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import Tensor

from slotmesh.metrics import slot_usage
from slotmesh.training.evaluate import Evaluate, evaluate_run, run_evaluate
from slotmesh.training.export import ExportModel, run_export_model
from slotmesh.training.report.collect import Found
from slotmesh.training.report.samples import SamplePainter
from slotmesh.training.runs import open_run
from slotmesh.training.tasks.discovery import Discovery, MultiDSpritesDiscovery

from ..readers._folders import fill
from ..readers.test_clevr import OBJECT, OTHER, scene, write
from ._jobs import change, fake_run, tiny

TASKS = {
    "random-objects": "SA-MESH",
    "clevr-properties": "SA-MESH",
    "multi-dsprites": "SA",
    "clevrer-s": "SA-learned-noise",
}


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotmesh.training.evaluate._BLIND", 4)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of every task, with its first weights."""
    folder = tmp_path_factory.mktemp("runs")
    for task, variant in TASKS.items():
        fake_run(tiny(task, variant, folder / task, data__test_size=7))
    return {task: folder / task for task in TASKS}


def evaluate(path: Path, out: Path, **changes: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What was written as JSON and as CSV."""
    returned = run_evaluate(
        Evaluate(path, out=out, device="cpu", **changes), Console(file=StringIO(), width=200)
    )
    found = json.loads((out / "evaluation.json").read_text())
    assert json.dumps(found) == json.dumps(returned)
    with (out / "evaluation.csv").open(newline="") as file:
        rows = [{k: float(v) for k, v in row.items()} for row in csv.DictReader(file)]
    return found, rows


def column(rows: list[dict[str, Any]], name: str) -> np.ndarray:
    return np.array([row[name] for row in rows])


def test_the_easy_world_is_said(tmp_path: Path) -> None:
    few = {"model__n_slots": 4, "data__test_size": 4}
    fake_run(tiny("clevr-properties", "SA", tmp_path, data__easy=True, **few))
    text = StringIO()
    found = run_evaluate(Evaluate(tmp_path, device="cpu"), Console(file=text, width=200))
    assert found["easy"] is True
    assert "the easy version of the world" in text.getvalue()
    # Images of the dataset have more objects than it has slots.
    with pytest.raises(ValueError, match=r"--model.n-slots is 4, expected at least 10"):
        run_evaluate(Evaluate(tmp_path, root=tmp_path, device="cpu"))


@pytest.mark.parametrize("task", TASKS)
def test_json_and_csv_agree(runs: dict[str, Path], tmp_path: Path, task: str) -> None:
    found, rows = evaluate(runs[task], tmp_path)
    assert (found["task"], found["variant"]) == (task, TASKS[task])
    assert (found["n"], found["batch_size"], found["split"]) == (7, 4, "test")
    assert found["checkpoint"] == "last.ckpt"
    assert found["environment"]["device"] == "cpu"
    assert [row["sample"] for row in rows] == [*range(7)]
    assert column(rows, "loss").mean() == pytest.approx(found["loss"], rel=1e-5)
    if task == "random-objects":
        rmse = math.sqrt((column(rows, "nrmse") ** 2).mean())
        assert found["metrics"] == {"nrmse": pytest.approx(rmse, rel=1e-5)}
        assert rmse == pytest.approx(math.sqrt(found["loss"]), rel=1e-5)
    elif task == "clevr-properties":
        made = open_run(runs[task]).experiment
        objects = made.source("test", torch.device("cpu"))[0].sample(range(7)).present.sum(1)
        assert column(rows, "objects").tolist() == objects.tolist()
        assert {*found["metrics"]} >= {"ap_inf", "ap_0.0625"}
    else:
        for name, value in found["metrics"].items():
            assert found["undefined"][name] == 0
            assert column(rows, name).mean() == pytest.approx(value, abs=1e-5)


@pytest.mark.parametrize("task", TASKS)
def test_the_same_numbers_twice(runs: dict[str, Path], tmp_path: Path, task: str) -> None:
    one, two = (evaluate(runs[task], tmp_path / str(i)) for i in range(2))
    assert one[0] | {"seconds": 0} == two[0] | {"seconds": 0}
    assert one[1] == two[1]
    # A checkpoint by its own name is the same model.
    three, _ = evaluate(runs[task] / "checkpoints" / "last.ckpt", tmp_path / "three")
    assert three["metrics"] == one[0]["metrics"]


def test_undefined_images_are_left_out_and_counted(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two images of nothing but background."""
    whole, before = evaluate(runs["multi-dsprites"], tmp_path / "whole")
    old = Discovery.source

    class Emptied:
        def __init__(self, source: Any) -> None:
            self.source = source

        def sample(self, index: Any) -> Any:
            sample = self.source.sample(index)
            nothing = torch.isin(sample.index, torch.tensor([2, 5]))
            return replace(sample, mask=sample.mask.masked_fill(nothing[:, None, None], 0))

    def source(self: Discovery, split: Any, device: torch.device) -> Any:
        found, n = old(self, split, device)
        return Emptied(found), n

    monkeypatch.setattr(Discovery, "source", source)
    screen = StringIO()
    run_evaluate(
        Evaluate(runs["multi-dsprites"], out=tmp_path / "some", device="cpu"),
        Console(file=screen, width=200),
    )
    found, rows = evaluate(runs["multi-dsprites"], tmp_path / "some")
    assert found["undefined"] == {"fg_ari": 2, "fg_miou": 2}
    assert screen.getvalue().count("undefined for 2") == 2
    for name in ("fg_ari", "fg_miou"):
        values = column(rows, name)
        assert np.flatnonzero(np.isnan(values)).tolist() == [2, 5]
        assert np.nanmean(values) == pytest.approx(found["metrics"][name], abs=1e-5)
        kept = [value for i, value in enumerate(column(before, name)) if i not in (2, 5)]
        assert np.mean(kept) == pytest.approx(found["metrics"][name], abs=1e-5)
    assert found["loss"] == whole["loss"]


def test_more_or_fewer_at_a_time(runs: dict[str, Path], tmp_path: Path) -> None:
    """Also more than the training set has, and what does not divide anything."""
    for size in (1, 5, 64):
        found, rows = evaluate(runs["clevr-properties"], tmp_path, batch_size=size)
        assert found["batch_size"] == size
        assert [row["sample"] for row in rows] == [*range(7)]
    few, rows = evaluate(runs["clevr-properties"], tmp_path, n=3)
    assert (few["n"], len(rows)) == (3, 3)


def test_without_noise_the_batch_size_does_not_matter(tmp_path: Path) -> None:
    changes = {"model__init": "learned-slots", "data__test_size": 7}
    fake_run(tiny("multi-dsprites", "SA", tmp_path / "run", **changes))
    one, seven = (evaluate(tmp_path / "run", tmp_path, batch_size=n) for n in (1, 7))
    for a, b in zip(one[1], seven[1], strict=True):
        assert a == pytest.approx(b, abs=1e-5)
    assert one[0]["metrics"] == pytest.approx(seven[0]["metrics"], abs=1e-5)


def test_a_run_of_two_processes_is_evaluated_by_one(tmp_path: Path) -> None:
    fake_run(tiny("random-objects", "SA", tmp_path / "run", hardware__devices=2))
    assert evaluate(tmp_path / "run", tmp_path, batch_size=3)[0]["batch_size"] == 3


def test_a_model_that_looks_at_nothing(runs: dict[str, Path], tmp_path: Path) -> None:
    found, _ = evaluate(runs["random-objects"], tmp_path)
    made = open_run(runs["random-objects"]).experiment
    targets = made.source("test", torch.device("cpu"))[0].sample(range(7)).targets
    assert found["blind"]["loss"] == pytest.approx(float(targets.square().mean()), rel=1e-5)
    assert found["blind"]["metrics"]["nrmse"] == pytest.approx(float(targets.std()), rel=0.05)


def test_the_blind_model_does_not_know_a_few_test_samples(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    many, _ = evaluate(runs["multi-dsprites"], tmp_path, n=4)
    assert "fitted_to" not in many["blind"]
    one, _ = evaluate(runs["multi-dsprites"], tmp_path, n=1)
    assert one["blind"]["fitted_to"] == "other samples"
    assert one["blind"]["loss"] > 1e-3
    # Masks are a grid, whatever it is fitted to.
    assert 0 <= one["blind"]["metrics"]["fg_miou"] <= 1
    kept = MultiDSpritesDiscovery.source

    def gone(self: Any, split: Any, device: torch.device) -> Any:
        if split == "train":
            raise ValueError("not here")
        return kept(self, split, device)

    monkeypatch.setattr(MultiDSpritesDiscovery, "source", gone)
    text = StringIO()
    settings = Evaluate(runs["multi-dsprites"], n=1, out=tmp_path, device="cpu")
    found = run_evaluate(settings, Console(file=text, width=80))
    assert found["blind"]["fitted_to"] == "the test samples"
    assert "its loss is too low" in text.getvalue()


def test_the_table_fits_a_narrow_terminal(runs: dict[str, Path], tmp_path: Path) -> None:
    text = StringIO()
    settings = Evaluate(runs["multi-dsprites"], n=4, out=tmp_path, device="cpu")
    run_evaluate(settings, Console(file=text, width=80))
    lines = text.getvalue().splitlines()
    assert "multi-dsprites SA seed 0, 4 test samples" in lines
    assert "blind: a model that ignores its input" in lines
    [loss] = [line for line in lines if " loss " in line]
    assert "lower is better" in loss
    [metric] = [line for line in lines if " fg_ari " in line]
    assert "higher is better" in metric


def test_a_path_has_one_colour(runs: dict[str, Path], tmp_path: Path) -> None:
    """Names of runs end in a number, which rich would show in another one."""
    screen = Console(file=StringIO(), width=80, force_terminal=True, color_system="standard")
    found = Evaluate(runs["random-objects"], out=tmp_path / "SA-quick-0", device="cpu")
    run_evaluate(found, screen)
    assert f"{tmp_path / 'SA-quick-0'}/evaluation.json" in screen.file.getvalue()  # pyright: ignore


def test_data_that_are_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = fill(tmp_path / "photos")
    fake_run(change(tiny("images", "SA", tmp_path / "run"), data__root=root, data__batch_size=2))
    root.rename(tmp_path / "moved")
    with pytest.raises(
        ValueError, match=r"was trained on .*photos, .* Pass its folder with --root"
    ):
        run_evaluate(Evaluate(tmp_path / "run", device="cpu"))
    found = run_evaluate(
        Evaluate(tmp_path / "run", root=tmp_path / "moved", device="cpu"), Console(quiet=True)
    )
    assert found["n"] > 0


def test_weights_that_come_with_slotmesh(tmp_path: Path) -> None:
    settings = Evaluate(Path("multi-dsprites-sa-mesh"), n=2, out=tmp_path, device="cpu")
    assert run_evaluate(settings, Console(quiet=True))["n"] == 2
    with pytest.raises(ValueError, match="nothing is not a run, an export or a checkpoint"):
        run_evaluate(Evaluate(Path("nothing")))


@pytest.mark.parametrize("task", ["multi-dsprites", "clevrer-s", "random-objects"])
def test_how_slots_are_used(runs: dict[str, Path], tmp_path: Path, task: str) -> None:
    """Counted with the library's own function, on samples that need no other noise."""
    found, _ = evaluate(runs[task], tmp_path / "out", batch_size=4)
    if task == "random-objects":
        assert found["slots"] == {}
        return
    run = open_run(runs[task])
    source, _ = run.experiment.source("test", torch.device("cpu"))
    used: list[Tensor] = []
    for first, n in ((0, 4), (4, 3)):
        sample = source.sample(range(first, first + n))
        noise = run.experiment.noise("usage", first // 4, total=n)
        out = run.load_model()(sample.image, generator=noise, trace=True)
        usage = slot_usage(out.masks, trace=out.trace, truth=sample.mask)
        used.append(usage.n_used.double().reshape(n, -1).mean(1))
    assert found["slots"]["used"] == pytest.approx(float(torch.cat(used).mean()))
    assert found["slots"]["n"] == 7
    names = {"used", "evenness", "duplicates", "background", "n"}
    n_iters: int = run.experiment.settings.model.n_iters  # pyright: ignore
    assert set(found["slots"]) == names | {f"entropy_{i + 1}" for i in range(n_iters)}


def test_nothing_is_written_beside_weights(tmp_path: Path) -> None:
    """An export is not a run: its folder stays as it is, unless it is asked for."""
    fake_run(tiny("random-objects", "SA", tmp_path / "run"))
    run_export_model(ExportModel(tmp_path / "run", tmp_path / "weights"), Console(quiet=True))
    alone = tmp_path / "alone.ckpt"
    alone.write_bytes((tmp_path / "run" / "checkpoints" / "last.ckpt").read_bytes())
    before = sorted(tmp_path.rglob("*"))
    for path in (tmp_path / "weights", alone):
        screen = StringIO()
        run_evaluate(Evaluate(path, device="cpu"), Console(file=screen, width=200))
        assert "Nothing was written: pass --out FOLDER" in screen.getvalue()
        assert sorted(tmp_path.rglob("*")) == before
    run_evaluate(Evaluate(alone, device="cpu", out=tmp_path / "out"), Console(quiet=True))
    assert (tmp_path / "out" / "evaluation.json").is_file()


def test_the_files_go_to_the_run_by_default(tmp_path: Path) -> None:
    fake_run(tiny("random-objects", "SA", tmp_path / "run"))
    found = evaluate_run(open_run(tmp_path / "run"), device="cpu")
    assert json.loads((tmp_path / "run" / "evaluation.json").read_text()) == found
    assert (tmp_path / "run" / "evaluation.csv").is_file()
    assert not list((tmp_path / "run").rglob("*.part"))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"n": 0}, "--n is 0, expected at least 1"),
        ({"n": 10**12}, "--n is 1000000000000, expected at most 10000000"),
        ({"batch_size": -1}, "--batch-size is -1, expected at least 1"),
        ({"device": "tpu"}, "--device is 'tpu', expected cpu, cuda or auto"),
        ({"root": Path()}, "--root: there is no real dataset for random-objects"),
    ],
)
def test_a_wrong_setting_names_its_flag(
    runs: dict[str, Path], tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    settings = {"device": "cpu", "out": tmp_path / "out"} | changes
    with pytest.raises(ValueError, match=said):
        run_evaluate(Evaluate(runs["random-objects"], **settings))
    assert not (tmp_path / "out").exists()


def test_what_is_not_there(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match=r"--root is .*gone, which .* Correct the path"):
        run_evaluate(Evaluate(runs["multi-dsprites"], root=tmp_path / "gone"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="--device is cuda, but torch finds no GPU here"):
        run_evaluate(Evaluate(runs["random-objects"], device="cuda", out=tmp_path))


# ---- an incomplete copy of a real dataset ----


def clevr(root: Path, split: str, images: int, scenes: int = 5) -> Path:
    """CLEVR with fewer images than scenes."""
    there = [scene(i, [OBJECT, OTHER], split) for i in range(scenes)]
    write(root, there, split)
    for path in sorted((root / "images" / split).iterdir())[images:]:
        path.unlink()
    return root


def test_an_incomplete_copy(runs: dict[str, Path], tmp_path: Path) -> None:
    """With the split that is there; a report shows the same images."""
    run = runs["clevr-properties"]
    root = clevr(tmp_path / "CLEVR_v1.0", "train", 3)
    with pytest.raises(ValueError, match="images/val does not exist"):
        evaluate(run, tmp_path, root=root)
    found, rows = evaluate(run, tmp_path, root=root, partial=True)
    assert (found["n"], found["split"], found["partial"]) == (3, "train", True)
    screen = Console(file=StringIO(), width=80)
    run_evaluate(Evaluate(run, root=root, partial=True, out=tmp_path, device="cpu"), screen)
    assert ", 3 training samples" in screen.file.getvalue()  # pyright: ignore
    assert column(rows, "objects").tolist() == [2.0, 2.0, 2.0]
    painter = SamplePainter(Found(run, open_run(run), True, None, evaluation=found), "cpu")
    assert painter.draw(2, trace=False).size[0] > 0
    # Validation images, which results are on, come first.
    clevr(root, "val", 1)
    found, rows = evaluate(run, tmp_path, root=root, partial=True)
    assert (found["n"], found["split"]) == (1, "val")
    # A split without an image is as if it were not there.
    for path in (root / "images" / "val").iterdir():
        path.unlink()
    assert evaluate(run, tmp_path, root=root, partial=True)[0]["split"] == "train"
    for path in (root / "images" / "train").iterdir():
        path.unlink()
    with pytest.raises(ValueError, match="has nothing of the test split: there is no sample of"):
        evaluate(run, tmp_path, root=root, partial=True)


def test_a_damaged_file_is_not_a_missing_one(runs: dict[str, Path], tmp_path: Path) -> None:
    root = clevr(clevr(tmp_path, "train", 3), "val", 3)
    (root / "scenes" / "CLEVR_val_scenes.json").write_text("{")
    with pytest.raises(ValueError, match=r"CLEVR_val_scenes\.json"):
        evaluate(runs["clevr-properties"], tmp_path / "out", root=root, partial=True)


def test_nothing_is_tested_on_what_it_learned_from(tmp_path: Path) -> None:
    root = clevr(tmp_path / "CLEVR_v1.0", "train", 5)
    data = {"data__root": root, "data__partial": True, "data__train_size": None}
    run = tmp_path / "run"
    fake_run(tiny("clevr-properties", "SA", run, **data))
    for partial in (True, False):
        with pytest.raises(ValueError, match="has training images only, and clevr-properties SA"):
            evaluate(run, tmp_path / "out", root=root, partial=partial)


def test_partial_without_a_folder_of_files(runs: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="pass its folder with --root"):
        evaluate(runs["random-objects"], tmp_path, partial=True)
    (tmp_path / "test.h5").touch()
    with pytest.raises(ValueError, match=r"--data\.partial is for the folders of CLEVR"):
        evaluate(runs["clevr-properties"], tmp_path, root=tmp_path, partial=True)
