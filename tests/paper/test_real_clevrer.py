"""``python -m paper real-clevrer``, on the real videos if they are here."""

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from rich.console import Console

from paper import RealClevrer, run_real_videos
from paper.page import render
from slotmesh.training.export import ExportModel, run_export_model

from ..training._jobs import fake_run, tiny
from .test_page import section

pytestmark = pytest.mark.usefixtures("one_thread")
ROOT = Path(__file__).parents[2]
SAMPLES = ROOT.resolve().parent / "shared" / "data" / "clevrer"


def weights(folder: Path, variant: str, **changes: Any) -> None:
    run = folder / f"run-{variant}"
    fake_run(tiny("clevrer-s", variant, run, data__size=16, **changes))
    out = folder / f"clevrer-s-{variant.lower()}"
    run_export_model(ExportModel(run, out), Console(quiet=True))


def asked(tmp_path: Path, **changes: Any) -> RealClevrer:
    places: dict[str, Any] = {"checkpoints": tmp_path, "out": tmp_path / "results" / "real-clevrer"}
    return replace(RealClevrer(SAMPLES, device="cpu", **places), **changes)


def test_pictures_of_real_videos(tmp_path: Path) -> None:
    if not SAMPLES.is_dir():
        pytest.skip("the real CLEVRER samples are not beside this repository (shared/data/clevrer)")
    pytest.importorskip("av", reason="PyAV, which reads videos, is not installed")
    weights(tmp_path, "SA")
    screen = StringIO()
    settings = asked(tmp_path, variants=("SA",), n=2)
    [one] = run_real_videos(settings, Console(file=screen, width=200))
    assert "SA on 2 real videos" in screen.getvalue()
    text = (settings.out / "SA.json").read_text()
    assert json.loads(text) == one
    assert str(tmp_path) not in text
    assert (one["dataset"], one["n"], one["frames"]) == ("CLEVRER", 2, [0, 16])
    with Image.open(settings.out / "SA.png") as picture:
        assert picture.size[1] > 2 * 2 * 16
    page = section(render(tmp_path / "results"), "### On real videos")
    assert "real-clevrer/SA.png" in page
    # The same videos, the same pictures.
    before = (settings.out / "SA.png").read_bytes()
    torch.manual_seed(1)
    run_real_videos(settings, Console(quiet=True))
    assert (settings.out / "SA.png").read_bytes() == before


def test_weights_of_another_task_or_none_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--n is 0, expected at least 1"):
        run_real_videos(asked(tmp_path, n=0), Console(quiet=True))
    with pytest.raises(ValueError, match="clevrer-s-sa is not a run"):
        run_real_videos(asked(tmp_path), Console(quiet=True))
    weights(tmp_path, "SA")
    (tmp_path / "clevrer-s-sa").rename(tmp_path / "clevrer-l-sa")
    with pytest.raises(ValueError, match="holds a model of clevrer-s that was"):
        run_real_videos(asked(tmp_path, task="clevrer-l", variants=("SA",)), Console(quiet=True))


def test_committed_pictures_are_of_the_committed_weights() -> None:
    for path in (ROOT / "results" / "real-clevrer").glob("*.json"):
        one = json.loads(path.read_text(encoding="utf-8"))
        assert (one["dataset"], one["licence"]) == ("CLEVRER", "CC0")
        kept = ROOT / "checkpoints" / f"{one['task']}-{one['variant'].lower()}"
        settings = json.loads((kept / "settings.json").read_text(encoding="utf-8"))
        assert (settings["seed"], settings["steps"]) == (one["seed"], one["steps"])
        assert path.with_suffix(".png").is_file()
