"""``python -m paper real-clevr``, on a folder like CLEVR's, and on the real images if here."""

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from paper import RealClevr, run_real
from paper.page import render
from slotmesh.training.evaluate import Evaluate, run_evaluate
from slotmesh.training.export import ExportModel, run_export_model

from ..readers.test_clevr import OBJECT, OTHER, scene, write
from ..training._jobs import fake_run, tiny
from .test_page import row, section

pytestmark = pytest.mark.usefixtures("one_thread")
ROOT = Path(__file__).parents[2]
SAMPLES = ROOT.resolve().parent / "shared" / "data" / "clevr_v1"


def weights(folder: Path, variant: str, **changes: Any) -> None:
    run = folder / f"run-{variant}"
    fake_run(tiny("clevr-properties", variant, run, data__size=16, **changes))
    out = folder / f"clevr-properties-{variant.lower()}"
    run_export_model(ExportModel(run, out), Console(quiet=True))


def asked(tmp_path: Path, root: Path, **changes: Any) -> RealClevr:
    places = {"checkpoints": tmp_path, "out": tmp_path / "results" / "real-clevr"}
    return replace(RealClevr(root, device="cpu", **places), **changes)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    scenes = [scene(i, [OBJECT, OTHER]) for i in range(3)]
    write(tmp_path / "somewhere" / "CLEVR_v1.0", scenes)
    (tmp_path / "somewhere/CLEVR_v1.0/images/train/CLEVR_train_000001.png").unlink()
    return tmp_path / "somewhere"


def test_a_record_is_the_evaluation(tmp_path: Path, root: Path) -> None:
    for variant in ("SA", "SA-MESH"):
        weights(tmp_path, variant)
    screen = StringIO()
    made = run_real(asked(tmp_path, root), Console(file=screen, width=200))
    assert "SA-MESH on 2 real images of train: written to" in screen.getvalue()
    for variant, one in zip(("SA", "SA-MESH"), made, strict=True):
        text = (tmp_path / "results" / "real-clevr" / f"{variant}.json").read_text()
        assert json.loads(text) == one
        assert str(tmp_path) not in text
        kept = ("dataset", "licence", "split", "n")
        assert [one[k] for k in kept] == ["CLEVR v1.0", "CC BY 4.0", "train", 2]
        folder = tmp_path / f"clevr-properties-{variant.lower()}"
        alone = run_evaluate(
            Evaluate(folder, n=15_000, root=root, partial=True, device="cpu", out=tmp_path),
            Console(quiet=True),
        )
        assert one["metrics"] == alone["metrics"]
        # The weights' folder stays as it was exported.
        assert not (folder / "evaluation.json").exists()
    page = section(render(tmp_path / "results"), "### On the real dataset")
    ap = 100 * made[1]["metrics"]["ap_inf"]
    assert row(page, "SA-MESH†")[::5][:1] == [f"{ap:.1f}"]
    assert row(page, "SA-MESH†")[-2:] == ["2, train", "CC BY 4.0"]
    assert row(page, "*SA†, paper*")[0] == "*94.3 ± 0.4*"
    nothing = section(render(tmp_path / "none"), "### On the real dataset")
    assert row(nothing, "SA†")[0] == "not measured yet"


def test_weights_that_have_seen_the_dataset_are_refused(tmp_path: Path, root: Path) -> None:
    seen = {"data__root": root, "data__partial": True, "data__train_size": None}
    weights(tmp_path, "SA", data__batch_size=2, **seen)
    with pytest.raises(ValueError, match="expected one of clevr-properties that was trained on"):
        run_real(asked(tmp_path, root, variants=("SA",)), Console(quiet=True))
    assert not (tmp_path / "results").exists()


def test_missing_weights_are_named(tmp_path: Path, root: Path) -> None:
    with pytest.raises(ValueError, match="clevr-properties-sa is not a run"):
        run_real(asked(tmp_path, root), Console(quiet=True))


def test_committed_results_name_their_data() -> None:
    for path in (ROOT / "results" / "real-clevr").glob("*.json"):
        one = json.loads(path.read_text(encoding="utf-8"))
        assert (one["dataset"], one["licence"], one["n"]) == ("CLEVR v1.0", "CC BY 4.0", 100)
        kept = ROOT / "checkpoints" / f"clevr-properties-{one['variant'].lower()}"
        settings = json.loads((kept / "settings.json").read_text(encoding="utf-8"))
        assert (settings["seed"], settings["steps"]) == (one["seed"], one["steps"])
        assert not any(str(value).startswith("/") for value in one.values())


def test_the_real_samples(tmp_path: Path) -> None:
    if not SAMPLES.is_dir():
        pytest.skip("the real CLEVR samples are not beside this repository (shared/data/clevr_v1)")
    weights(tmp_path, "SA")
    [one] = run_real(asked(tmp_path, SAMPLES, variants=("SA",), n=3), Console(quiet=True))
    assert (one["split"], one["n"]) == ("train", 3)
