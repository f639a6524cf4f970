"""Every example of the gallery runs, and shows what it says one should see."""

import contextlib
import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest
import torch

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Without windows, in a folder of its own, and leaving no trace in torch's generator."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["example"])
    before = torch.get_rng_state()
    with mpl.rc_context({"backend": "agg"}):
        yield
        plt.close("all")
    torch.set_rng_state(before)


def run(name: str, *smaller: tuple[str, str]) -> dict[str, Any]:
    """What an example leaves behind, with some of its text replaced to make it smaller."""
    path = EXAMPLES / f"{name}.py"
    code = path.read_text(encoding="utf-8")
    for old, new in smaller:
        assert code.count(old) == 1, f"{name}.py should say {old!r} once"
        code = code.replace(old, new)
    names: dict[str, Any] = {"__name__": "__main__", "__file__": str(path)}
    with contextlib.redirect_stdout(io.StringIO()) as said:
        exec(compile(code, str(path), "exec"), names)  # noqa: S102
    return names | {"said": said.getvalue()}


def scripts() -> list[Path]:
    return sorted(EXAMPLES.glob("*.py"))


@pytest.mark.parametrize("path", scripts(), ids=lambda path: path.stem)
def test_is_short_and_says_what_to_see(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert sum(bool(line.strip()) for line in text.splitlines()) <= 80
    said = " ".join(text.split('"""')[1].split())
    assert said.count("**You should see**") == 1
    assert "plt.show()" in text


def test_slots() -> None:
    out = run("slots")
    apart = {name: torch.pdist(slots).min().item() for name, slots in out["slots"].items()}
    assert apart["Softmax"] < 1e-4
    assert apart["Mesh"] > 0.1
    # Each slot has inputs that it takes most of.
    assert out["attention"]["Mesh"].argmax(0).unique().numel() == 7


def test_tie() -> None:
    out = run("tie")
    plans, entropies = out["plans"], out["entropies"]
    assert (plans[0][0] - plans[0][1]).abs().max() < 0.01
    # The clear case is settled while the tie is not.
    assert plans[5][2, 2] > 0.9
    assert (plans[5][:2, :2] - 0.5).abs().max() < 0.1
    assert plans[-1].round().sum(0).tolist() == plans[-1].round().sum(1).tolist() == [1, 1, 1]
    assert (entropies.diff() < 0).all()
    out["draw"](3)
    plt.close(out["figure"])
    out["animation"]._draw_was_started = True  # it was drawn, by hand


def test_sorting() -> None:
    out = run("sorting", ("STEPS = 200", "STEPS = 60"), ("(5, 10, 20)", "(5,)"))
    mesh = out["errors"].pop("MESH")
    assert len(out["errors"]) == 3
    for errors in out["errors"].values():
        assert mesh[0] < errors[0] / 2


def test_set_prediction() -> None:
    out = run(
        "set_prediction", ("STEPS, SIZE, MOST, QUERIES = 800", "STEPS, SIZE, MOST, QUERIES = 150")
    )
    # One to three squares: guessing is right in a third of the images.
    assert out["counted"] > 0.5


def test_router() -> None:
    out = run(
        "router", ("STEPS, EXPERTS, TOKENS, SIZE = 250", "STEPS, EXPERTS, TOKENS, SIZE = 150")
    )
    (plain, alone), (balanced, even) = out["results"].values()
    assert (alone == 0).any()
    assert even.min() >= 12
    assert even.max() <= 20
    assert sum(balanced[-20:]) < 0.8 * sum(plain[-20:])


def test_merging() -> None:
    out = run("merging", ("STEPS, WIDTH = 250, 256", "STEPS, WIDTH = 150, 96"))
    before, *after = out["accuracy"].values()
    assert before[0] > 0.9
    assert min(before) < 0.9
    for aligned in after:
        assert min(aligned) > min(before) + 0.05


def test_hyper_connections() -> None:
    out = run(
        "hyper_connections",
        ("NETWORKS, DEPTH, STREAMS, SIZE = 20", "NETWORKS, DEPTH, STREAMS, SIZE = 5"),
    )
    free, stochastic = out["sizes"].values()
    assert max(signal[-1] for signal, _ in free) > 20
    for signal, gradient in stochastic:
        assert signal.min() > 0.3
        assert signal.max() < 2
        assert gradient.min() > 0.3
        assert gradient.max() < 2


def test_own_images() -> None:
    out = run("own_images", ("range(16)", "range(4)"))
    assert out["found"][0].masks.shape == (6, 64, 64)
    assert min(out["scores"]) > 0.8


def test_frozen_features() -> None:
    lines = run("frozen_features")["said"].splitlines()
    found = {line.partition(":")[0]: [float(x[-4:]) for x in line.split(", ")] for line in lines}
    (ari, overlap), (_, blind) = found["slots"], found["quarters"]
    assert ari > 0.6
    assert overlap > blind


def test_keypoints() -> None:
    out = run("keypoints")
    right = {k: (v == out["truth"]).float().mean().item() for k, v in out["matches"].items()}
    assert right["with dustbins"] > 0.85
    # A third of the points has no partner, and gets one.
    assert right["without"] < 0.7
