"""``python -m paper features``: an encoder without labels, two variants, one result; resumable."""

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import paper.features
from paper import COMMANDS, FeaturesStudy, run_features
from slotmesh.nn import FrozenFeatures
from slotmesh.worlds import make_world

pytest.importorskip("transformers")
pytestmark = pytest.mark.usefixtures("one_thread")
TINY = FeaturesStudy(
    size=16,
    dim=16,
    depth=1,
    images=4,
    test_size=2,
    encoder_steps=8,
    encoder_batch=4,
    steps=2,
    batch_size=2,
    hidden=8,
    device="cpu",
)


def asked(tmp_path: Path, **changes: Any) -> FeaturesStudy:
    return replace(TINY, runs=tmp_path / "runs", out=tmp_path / "out" / "x.json", **changes)


def test_one_result_for_both_variants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = StringIO()
    found = run_features(asked(tmp_path), Console(file=screen, width=200))
    assert found == json.loads((tmp_path / "out" / "x.json").read_text())
    assert "python -m paper features --size 16" in found["command"]
    assert list(found["variants"]) == ["SA", "SA-MESH"]
    for one in found["variants"].values():
        assert set(one["metrics"]) == {"fg_ari", "fg_miou", "mbo"}
        assert (one["n"], one["settings"]["steps"], one["settings"]["seed"]) == (2, 2, 0)
        assert one["settings"]["data.train_size"] == 4
    losses = [loss for _, loss in found["encoder"]["losses"]]
    assert len(losses) == 8
    assert losses[-1] < losses[0]
    assert {p.name for p in (tmp_path / "out").iterdir()} == {
        "x.json",
        "x-SA.png",
        "x-SA-MESH.png",
    }
    # Both learned from the same features, which nobody trains any further.
    encoder = FrozenFeatures(tmp_path / "runs" / "encoder")
    assert encoder.out_grid == (4, 4)
    assert encoder.normalisation == ((0.5,) * 3, (0.5,) * 3)
    images = make_world("clevrtex", seed=0, size=16).sample(range(4)).image
    values = encoder(images).flatten(0, 1)
    torch.testing.assert_close(values.mean(0), torch.zeros(16), atol=1e-4, rtol=0)
    torch.testing.assert_close(values.std(0), torch.ones(16), atol=1e-3, rtol=0)
    # The same command has nothing left to train.
    monkeypatch.setattr(paper.features, "_render", None)
    again = run_features(asked(tmp_path), Console(file=screen, width=200))
    assert again["encoder"] == found["encoder"]
    for name, one in again["variants"].items():
        assert one["metrics"] == found["variants"][name]["metrics"]
    with pytest.raises(ValueError, match=r"an encoder with --encoder-steps 8, but got 9"):
        run_features(asked(tmp_path, encoder_steps=9), Console(quiet=True))


def test_an_encoder_that_was_killed_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    images = torch.randint(0, 256, (6, 3, 16, 16), dtype=torch.uint8)
    monkeypatch.setattr(paper.features, "_render", lambda *_: images)
    monkeypatch.setattr(paper.features, "_SAVE_S", 0.0)
    train = paper.features.train_encoder
    cpu, quiet = torch.device("cpu"), Console(quiet=True)
    whole = train(asked(tmp_path / "a"), cpu, quiet)
    learn = paper.features._Encoder.learn

    def killed(self: Any, batch: Any) -> None:
        if self.step == 5:
            raise KeyboardInterrupt
        learn(self, batch)

    monkeypatch.setattr(paper.features._Encoder, "learn", killed)
    with pytest.raises(KeyboardInterrupt):
        train(asked(tmp_path / "b"), cpu, quiet)
    monkeypatch.setattr(paper.features._Encoder, "learn", learn)
    resumed = train(asked(tmp_path / "b"), cpu, quiet)
    assert resumed["losses"] == whole["losses"]
    hashes = {FrozenFeatures(tmp_path / k / "runs" / "encoder").hash for k in "ab"}
    assert len(hashes) == 1


def test_bad_input(tmp_path: Path) -> None:
    assert COMMANDS["features"] == (FeaturesStudy, run_features)
    with pytest.raises(ValueError, match="--size is 12, expected a multiple of 8"):
        run_features(asked(tmp_path, size=12))
    with pytest.raises(ValueError, match="--encoder-steps is 0"):
        run_features(asked(tmp_path, encoder_steps=0))
