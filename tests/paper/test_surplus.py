"""Surplus slots: what is measured, and that the page says what the file holds."""

import io
import json
import re
from pathlib import Path
from types import SimpleNamespace

import torch
from rich.console import Console

from paper.surplus import FILE, SurplusSlots, _merged, _pruned, run_surplus

from ..demo.test_scenes import put_weights

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "slots-do-not-bind.md"


def test_every_way_is_measured(tmp_path: Path) -> None:
    weights = put_weights(tmp_path, data__size=64)
    out = tmp_path / "out.json"
    settings = SurplusSlots(
        n=2, slots=(6, 3), merge=(0.05,), prune=(0.1,), checkpoints=weights, out=out, device="cpu"
    )
    run_surplus(settings, Console(file=io.StringIO()))
    rows = json.loads(out.read_text())["rows"]
    ways = [("as it is", 6), ("merge 0.05", 6), ("prune 0.1", 6), ("as it is", 3)]
    assert [(r["variant"], r["way"], r["n_slots"]) for r in rows] == [
        (variant, *way) for variant in ("SA", "SA-MESH") for way in ways
    ]
    for row in rows:
        assert 1 <= row["used"] <= row["n_slots"]
        assert 1 <= row["background"] <= row["n_slots"]


def test_merging_and_pruning_by_hand() -> None:
    masks = torch.tensor([0.5, 0.3, 0.15, 0.05])[None, :, None, None].expand(1, 4, 8, 8)
    rgb = torch.tensor([0.5, -0.5, 0.5, 0.0])[None, :, None, None, None].expand(1, 4, 3, 8, 8)
    out = SimpleNamespace(masks=masks, rgb=rgb)
    torch.testing.assert_close(_merged(out, 0.05)[0, :, 0, 0], torch.tensor([0.65, 0.3, 0.05, 0.0]))
    pruned = _pruned(out, 0.1)[0, :, 0, 0]
    torch.testing.assert_close(pruned, torch.tensor([0.5, 0.3, 0.15, 0.0]) / 0.95)


def test_the_page_says_what_was_measured() -> None:
    rows = json.loads((ROOT / FILE).read_text())["rows"]
    measured = {
        (row["variant"], row["n_slots"], row["way"]): [
            *(f"{100 * row[name]:.1f}" for name in ("ari", "fg_ari", "miou", "fg_miou")),
            f"{row['background']:.1f}",
        ]
        for row in rows
    }
    lines = re.findall(r"^\| (SA[-A-Z]*), (\d) slots?, ([^|]+?) \|(.*)\|$", PAGE.read_text(), re.M)
    assert len(lines) == len(measured)
    for variant, slots, way, numbers in lines:
        told = [number.strip(" *") for number in numbers.split("|")]
        assert told == measured[variant, int(slots), way], (variant, slots, way)


def test_merging_is_what_helps() -> None:
    """What the page says in words."""
    rows = json.loads((ROOT / FILE).read_text())["rows"]
    for variant, gain in (("SA", 0.4), ("SA-MESH", 0.4)):
        ari = {(r["n_slots"], r["way"]): r["ari"] for r in rows if r["variant"] == variant}
        assert max(ari, key=ari.__getitem__)[1].startswith("merge")
        assert ari[6, "merge 0.05"] > ari[6, "as it is"] + gain
