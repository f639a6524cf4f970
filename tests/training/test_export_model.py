"""``slotmesh export``: what ``from_pretrained`` loads is the trained model."""

import json
import pickle
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import slotmesh.models
from slotmesh.training.evaluate import Evaluate, evaluate_run, run_evaluate
from slotmesh.training.export import ExportModel, run_export_model
from slotmesh.training.runs import Run, open_run

from ..readers._folders import fill
from ._jobs import WORLD_TASKS, change, fake_run, tiny
from .test_runs import Hostile

VARIANTS = [(task, variant) for task, kind in WORLD_TASKS.items() for variant in kind.variants()]


def export(run: Path, out: Path) -> str:
    screen = StringIO()
    run_export_model(ExportModel(run, out), Console(file=screen, width=500))
    return screen.getvalue()


def output(run: Run, model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Numbers of each of two samples."""
    made = run.experiment
    sample = made.source("test", torch.device("cpu"))[0].sample([0, 1])
    with torch.inference_mode():
        return made.judge(model, sample, made.noise("test", 0, total=2), made.metrics())


@pytest.mark.parametrize(("task", "variant"), VARIANTS)
def test_the_exported_model_is_the_trained_one(tmp_path: Path, task: str, variant: str) -> None:
    fake_run(tiny(task, variant, tmp_path / "run"), trained=True)
    said = export(tmp_path / "run", tmp_path / "out")
    assert {p.name for p in (tmp_path / "out").iterdir()} >= {
        "model.safetensors",
        "config.json",
        "settings.json",
    }
    run = open_run(tmp_path / "run")
    model = run.load_model()
    name = said.partition("slotmesh.models.")[2].partition(".")[0]
    assert name == type(model).__name__
    loaded = getattr(slotmesh.models, name).from_pretrained(tmp_path / "out").eval()
    assert repr(loaded) == repr(model)
    for key, value in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[key], value)
    expected, found = output(run, model), output(run, loaded)
    assert all(torch.equal(found[k], expected[k]) for k in expected)
    fresh = output(run, run.experiment.fresh_model().eval())
    assert not torch.equal(fresh["loss"], expected["loss"])


def test_the_page_tells_the_truth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotmesh.training.evaluate._BLIND", 4)
    fake_run(tiny("multi-dsprites", "SA-MESH", tmp_path / "run"), trained=True)
    found = evaluate_run(open_run(tmp_path / "run"), device="cpu")
    export(tmp_path / "run", tmp_path / "out")
    page = (tmp_path / "out" / "README.md").read_text()
    assert "# SA-MESH on Multi-dSprites" in page
    assert "18 samples of slotmesh's own procedural world for Multi-dSprites, seed 0" in page
    assert f"FG-ARI {100 * found['metrics']['fg_ari']:.1f} %" in page
    assert "on 8 held-out samples" in page
    for said in ("push", "hub", "Hub", "huggingface"):
        assert said not in page
    # What an export says of itself stays when it is exported again, whatever its author wrote.
    (tmp_path / "out" / "README.md").write_text("Ours.")
    export(tmp_path / "out", tmp_path / "again")
    assert (tmp_path / "again" / "README.md").read_text() == "Ours."


def test_the_page_of_other_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    root = fill(tmp_path / "secret" / "holiday")
    fake_run(change(tiny("images", "SA", tmp_path / "run"), data__root=root, data__batch_size=2))
    fake_run(tiny("clevrtex", "SA", tmp_path / "real"))
    made = json.loads((tmp_path / "real" / "settings.json").read_text())
    made["data"]["root"] = str(tmp_path / "clevrtex_full")
    (tmp_path / "real" / "settings.json").write_text(json.dumps(made))
    for name in ("run", "real"):
        export(tmp_path / name, tmp_path / f"{name}-out")
    page = (tmp_path / "run-out" / "README.md").read_text()
    assert "# SA on images of holiday" in page
    assert "the images in a folder named `holiday`, without labels" in page
    assert "secret" not in page
    assert "world" not in page
    page = (tmp_path / "real-out" / "README.md").read_text()
    assert "Training data: ClevrTex, read from `clevrtex_full`" in page


def test_ablations_are_exported_too(tmp_path: Path) -> None:
    changes = {
        "transport__objective": "learned",
        "transport__potentials": "reuse",
        "model__init": "learned-slots",
        "model__n_iters": 2,
        "model__implicit": False,
    }
    fake_run(tiny("random-objects", "SA-MESH", tmp_path / "run", **changes), trained=True)
    export(tmp_path / "run", tmp_path / "out")
    run = open_run(tmp_path / "run")
    loaded = slotmesh.models.SetCopier.from_pretrained(tmp_path / "out").eval()
    assert repr(loaded) == repr(run.load_model())
    assert torch.equal(output(run, loaded)["loss"], output(run, run.load_model())["loss"])


def test_an_export_evaluates_as_its_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotmesh.training.evaluate._BLIND", 4)
    fake_run(tiny("multi-dsprites", "SA-MESH", tmp_path / "run"), trained=True)
    export(tmp_path / "run", tmp_path / "out")
    one, two = (evaluate_run(open_run(tmp_path / name), device="cpu") for name in ("run", "out"))
    for key in ("metrics", "loss", "undefined", "n", "task", "variant", "seed"):
        assert one[key] == two[key]
    assert two["checkpoint"] == "model.safetensors"
    assert not (tmp_path / "out" / "evaluation.json").exists()
    assert json.loads((tmp_path / "out" / "settings.json").read_text())["out"] is None
    # An export of an export is the same again.
    export(tmp_path / "out", tmp_path / "again")
    files = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("out", "again")]
    assert files[0] == files[1]


def test_where_an_export_cannot_go(tmp_path: Path) -> None:
    fake_run(tiny("random-objects", "SA", tmp_path / "run"))
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"--out is .*file, which is a file"):
        export(tmp_path / "run", tmp_path / "file")
    fake_run(tiny("random-objects", "SA", tmp_path / "other", seed=9))
    for other in ("run", "other"):
        with pytest.raises(ValueError, match=r"--out is .*, which is the folder of a run"):
            export(tmp_path / "run", tmp_path / other)
    with pytest.raises(ValueError, match="is not a run"):
        export(tmp_path / "nothing", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_files_of_others_are_kept(tmp_path: Path) -> None:
    fake_run(tiny("random-objects", "SA", tmp_path / "run"))
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / ".git").mkdir()
    export(tmp_path / "run", mine)
    # An export may be written again.
    export(tmp_path / "run", mine)
    other = tmp_path / "other"
    other.mkdir()
    (other / "README.md").write_text("Mine.")
    with pytest.raises(ValueError, match=r"--out is .*other, which holds other files; .*--overw"):
        export(tmp_path / "run", other)
    assert [path.name for path in other.iterdir()] == ["README.md"]
    assert (other / "README.md").read_text() == "Mine."
    settings = ExportModel(tmp_path / "run", other, overwrite=True)
    run_export_model(settings, Console(quiet=True))
    assert "Mine." not in (other / "README.md").read_text()


def test_an_unfinished_run_says_so(tmp_path: Path) -> None:
    fake_run(tiny("random-objects", "SA", tmp_path / "run"))
    path = tmp_path / "run" / "checkpoints" / "last.ckpt"
    for step, said in ((7, True), (12, False)):
        torch.save(torch.load(path) | {"global_step": step}, path)
        shown = export(tmp_path / "run", tmp_path / f"out-{step}")
        screen = StringIO()
        settings = Evaluate(tmp_path / "run", n=2, out=tmp_path / "found", device="cpu")
        run_evaluate(settings, Console(file=screen, width=500))
        page = (tmp_path / f"out-{step}" / "README.md").read_text()
        for text in (shown, screen.getvalue()):
            assert ("The run is not finished: it stopped at step 7 of 12." in text) == said
        assert ("stopped at step 7 of 12" in page) == said
        assert ("12 steps of 4" in page) != said


@pytest.mark.parametrize("damage", ["cut", "empty", "hostile", "other"])
def test_damaged_weights(tmp_path: Path, damage: str) -> None:
    fake_run(tiny("random-objects", "SA", tmp_path / "run"))
    export(tmp_path / "run", tmp_path / "out")
    path = tmp_path / "out" / "model.safetensors"
    whole = path.read_bytes()
    content: Any = {
        "cut": whole[:-100],
        "empty": b"",
        "hostile": pickle.dumps(Hostile(tmp_path / "ran")),
        "other": whole,
    }[damage]
    path.write_bytes(content)
    if damage == "other":
        fake_run(tiny("random-objects", "SA", tmp_path / "wide", model__mlp_dim=9))
        export(tmp_path / "wide", tmp_path / "wide-out")
        path.write_bytes((tmp_path / "wide-out" / "model.safetensors").read_bytes())
    with pytest.raises(ValueError, match=r"model.safetensors (cannot be read|does not fit)"):
        open_run(tmp_path / "out").load_model()
    assert not (tmp_path / "ran").exists()
