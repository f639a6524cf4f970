"""``slotmesh score``: two folders of masks from anywhere."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import adjusted_rand_score

from slotmesh.training.score import Score, run_score, score_masks

from ._commands import run


def masks(seed: int, n: int = 4, k: int = 5, size: int = 12) -> np.ndarray:
    """Patches of random labels."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, k, (n, size // 3, size // 3)).repeat(3, 1).repeat(3, 2).astype(np.uint8)


def save(folder: Path, content: np.ndarray, kind: str = "gray") -> Path:
    folder.mkdir(parents=True)
    colours = np.random.default_rng(1).permutation(256)[:200].astype(np.uint8)
    for i, mask in enumerate(content):
        path = folder / f"{i}.{'npy' if kind == 'npy' else 'png'}"
        if kind == "npy":
            np.save(path, mask.astype(np.uint16))
            continue
        image = Image.fromarray(mask)
        if kind == "indexed":
            image.putpalette(list(range(256)) * 3)
        elif kind == "colour":
            rgb = np.stack([mask, np.where(mask > 0, colours[mask], 0), mask], -1)
            image = Image.fromarray(rgb.astype(np.uint8))
        image.save(path)
    return folder


def overlaps(pred: np.ndarray, truth: np.ndarray, labels: list[int]) -> np.ndarray:
    """Intersection over union, object by segment, by counting."""
    rows = []
    for label in labels:
        a = truth == label
        rows.append([(a & b).sum() / (a | b).sum() for b in (pred == s for s in np.unique(pred))])
    return np.array(rows)


def test_against_others(tmp_path: Path) -> None:
    pred, truth = masks(0), masks(1, k=4)
    found = run_score(Score(save(tmp_path / "p", pred), save(tmp_path / "t", truth)))
    for i in range(4):
        one = found["images"][str(i)]
        front = truth[i] > 0
        assert one["ari"] == pytest.approx(adjusted_rand_score(truth[i].ravel(), pred[i].ravel()))
        expected = adjusted_rand_score(truth[i][front], pred[i][front])
        assert one["fg_ari"] == pytest.approx(expected)
        for name, first in (("fg_miou", 1), ("miou", 0)):
            iou = overlaps(pred[i], truth[i], list(range(first, 4)))
            assert one[name] == pytest.approx(iou[linear_sum_assignment(-iou)].sum() / len(iou))
        iou = overlaps(pred[i], truth[i], [1, 2, 3])
        assert one["mbo"] == pytest.approx(iou.max(1).mean())
    for name, value in found["metrics"].items():
        assert value == pytest.approx(np.mean([one[name] for one in found["images"].values()]))


@pytest.mark.parametrize("kind", ["indexed", "colour", "npy"])
def test_every_coding_scores_the_same(tmp_path: Path, kind: str) -> None:
    pred, truth = masks(0), masks(1)
    expected = run_score(Score(save(tmp_path / "p", pred), save(tmp_path / "t", truth)))
    coded = Score(save(tmp_path / "pc", pred, kind), save(tmp_path / "tc", truth, kind))
    assert run_score(coded)["metrics"] == expected["metrics"]
    mixed = Score(tmp_path / "pc", tmp_path / "t")
    assert run_score(mixed)["metrics"] == expected["metrics"]


def test_void_pixels_do_not_count(tmp_path: Path) -> None:
    pred, truth = masks(0), masks(1)
    truth[:, :, :3] = 255
    with_void = run_score(Score(save(tmp_path / "p", pred), save(tmp_path / "t", truth), void=255))
    cut = Score(save(tmp_path / "pc", pred[:, :, 3:]), save(tmp_path / "tc", truth[:, :, 3:]))
    assert with_void["metrics"] == run_score(cut)["metrics"]
    without = run_score(Score(tmp_path / "p", tmp_path / "t"))
    assert without["metrics"] != with_void["metrics"]


def test_undefined_images_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    truth = masks(1)
    truth[0], truth[1] = 0, 255
    words = [save(tmp_path / "p", masks(0)), save(tmp_path / "t", truth), "--void", "255"]
    assert run("score", *words, "--out", tmp_path / "deep" / "x.json") == 0
    found = json.loads((tmp_path / "deep" / "x.json").read_text())
    assert found["undefined"] == {"fg_ari": 2, "ari": 1, "mbo": 2, "miou": 1, "fg_miou": 2}
    assert found["images"]["1"]["ari"] is None
    said = capsys.readouterr().out
    assert "undefined for 2" in said
    assert f"{100 * found['metrics']['mbo']:.2f}" in said
    assert all(name in said for name in ("FG-ARI", "ARI", "mBO", "mIoU", "FG-mIoU"))


def test_perfect_and_hopeless() -> None:
    truth = masks(1)[0]
    assert set(score_masks(truth * 7 + 3, truth).values()) == {1.0}
    one = score_masks(np.zeros_like(truth), truth)
    assert one["ari"] == pytest.approx(0.0)
    assert one["miou"] < 0.3


def test_what_segment_wrote(tmp_path: Path) -> None:
    truth = save(tmp_path / "t", masks(1))
    out = save(tmp_path / "p", masks(1))
    for path in list(out.iterdir()):
        path.rename(out / f"{path.stem}-mask.png")
        Image.new("RGB", (12, 12)).save(out / f"{path.stem}-overlay.png")
    Image.new("RGB", (99, 99)).save(out / "sheet.png")
    assert run_score(Score(out, truth))["metrics"]["ari"] == 1.0


def test_bad_folders_end_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pred, truth = save(tmp_path / "p", masks(0)), save(tmp_path / "t", masks(1))

    def problem(*words: Any) -> str:
        assert run("score", *words) == 1
        said = capsys.readouterr().err
        assert len(said.strip().splitlines()) == 1
        return said

    assert "nothing does not exist, expected a folder" in problem(tmp_path / "nothing", truth)
    assert "0.png is a file, expected a folder" in problem(pred, truth / "0.png")
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("")
    assert "text has no masks, PNG or .npy: it has 1 other" in problem(tmp_path / "text", truth)
    assert "is a folder; expected a file" in problem(pred, truth, "--out", tmp_path)
    (pred / "3.png").rename(tmp_path / "3.png")
    said = problem(pred, truth)
    assert "3.png: it is a true mask without its prediction" in said
    (truth / "3.png").rename(tmp_path / "t3.png")
    (truth / "2.png").unlink()
    assert "2.png: it is a prediction without its truth" in problem(pred, truth)
    (pred / "2.png").unlink()
    Image.new("L", (5, 4)).save(pred / "1.png")
    assert "1.png: it has 5 x 4 pixels, and" in problem(pred, truth)
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(
        pred / "1.png"
    )
    Image.new("L", (64, 64)).save(truth / "1.png")
    assert "different values, expected a mask of at most 1024" in problem(pred, truth)
    (pred / "1.png").write_text("no mask")
    assert "1.png: it is not a PNG mask, or damaged" in problem(pred, truth)
    np.save(pred / "0.npy", np.zeros((12, 12), np.uint8))
    assert "is a mask of the same image, expected one" in problem(pred, truth)
