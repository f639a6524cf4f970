"""Table 3 of RESULTS.md, and the results and weights behind it."""

import json
from pathlib import Path
from typing import Any

import pytest

from slotmesh.experiments.paper import ROWS
from slotmesh.experiments.reproduce import MultiDSprites
from slotmesh.experiments.reproduce.multi_dsprites.card import weights_name
from slotmesh.experiments.reproduce.multi_dsprites.command import settings_of
from slotmesh.experiments.reproduce.multi_dsprites.record import (
    GRADIENTS,
    Measured,
    Outcome,
    deciding,
    records_in,
    write,
)
from slotmesh.experiments.reproduce.page import render
from slotmesh.experiments.reproduce.record import difference
from slotmesh.models import ObjectDiscovery

from .test_reproduce_page import row, section

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results" / "multi-dsprites"
PARTS = [
    {"from_step": 0, "device": "A GPU", "torch": "2.11.0"},
    {"from_step": 40_000, "device": "Another", "torch": "2.11.0"},
]


def record(variant: Any, metrics: tuple[float, float] | None, **changes: Any) -> Measured:
    """A result that was never measured."""
    test = None
    if metrics is not None:
        test = Outcome(
            metrics={"fg_ari": metrics[0], "fg_miou": metrics[1]},
            standard_errors={"fg_ari": 0.0012, "fg_miou": 0.0034},
            undefined={"fg_ari": 0, "fg_miou": 0},
            loss=0.001,
            blind={"loss": 0.1, "metrics": {"fg_ari": 0.21, "fg_miou": 0.11}},
            n=2880,
            seconds=9.0,
            environment={"device": "A GPU", "torch": "2.11.0"},
        )
    settings = deciding(settings_of(MultiDSprites(), variant)) | {"hardware.precision": "bf16"}
    values: dict[str, Any] = {
        "variant": variant,
        "seed": 0,
        "steps": 75_000,
        "command": f"slotmesh reproduce multi-dsprites --variants {variant}",
        "settings": settings,
        "parameters": 235_812,
        "trained_on": PARTS,
        "seconds": 630.0,
        "failed": None if test else 1_234,
        "best_step": 70_000 if test else None,
        "test": test,
        "train": {"step": [250, 500], "loss": [0.1, 0.05]},
        "val": {
            "step": [65_000, 70_000, 75_000],
            "loss": [0.05, 0.04, 0.06],
            "fg_ari": [0.2, 0.4, 0.3],
            "fg_miou": [0.1, 0.3, 0.2],
        },
    }
    return Measured(**values | changes)


def put(results: Path, variant: str, *args: Any, **changes: Any) -> None:
    write(results / "multi-dsprites" / f"{variant}.json", record(variant, *args, **changes))


def table3(results: Path) -> str:
    return section(render(results), "## Table 3")


def test_without_results_it_says_so(tmp_path: Path) -> None:
    text = table3(tmp_path)
    assert row(text, "SA-MESH")[1::2][:2] == ["not measured yet"] * 2
    assert "75,000 steps, one seed" in text
    assert "496,610 steps, five seeds" in text
    assert "trained on |" not in text
    assert "![" not in text


def test_ours_beside_the_papers(tmp_path: Path) -> None:
    put(tmp_path, "SA", (0.912, 0.254), trained_on=PARTS[:1])
    put(tmp_path, "SA-MESH", (0.943, 0.871))
    for name in ("SA.png", "SA-MESH.png", "curves.svg"):
        (tmp_path / "multi-dsprites" / name).write_text("")
    text = table3(tmp_path)
    command = "`slotmesh reproduce multi-dsprites --variants SA`"
    numbers = ["92.2 ± 0.5", "91.2", "24.3 ± 5.4", "25.4"]
    assert row(text, "SA") == [*numbers, "0", "75,000", command]
    assert row(text, "SA-SH")[1] == "not measured yet"
    assert row(text, "SA (original)")[1] == "copied by the paper"
    assert row(text, "a fixed grid, blind")[:4] == ["—", "21.0", "—", "11.0"]
    how = [line for line in text.splitlines() if "235,812" in line]
    scenes = "2,880 scenes, standard errors 0.12 and 0.34"
    assert how == [
        f"| SA | 235,812 | A GPU, torch 2.11.0, bfloat16 | 10.5 min | 70,000 | {scenes} | "
        "`checkpoints/multi-dsprites-sa` |",
        "| SA-MESH | 235,812 | A GPU, then Another, torch 2.11.0, bfloat16, 2 parts | 10.5 min | "
        f"70,000 | {scenes} | `checkpoints/multi-dsprites-sa-mesh` |",
    ]
    places = [line.split("](")[1].strip(")") for line in text.splitlines() if line[:2] == "!["]
    assert places == [
        f"results/multi-dsprites/{n}" for n in ("curves.svg", "SA.png", "SA-MESH.png")
    ]


def test_other_gradients_have_a_table_of_their_own(tmp_path: Path) -> None:
    put(tmp_path, "SA-MESH", (0.943, 0.871))
    assert "*reuse*" not in table3(tmp_path)
    put(tmp_path, "SA-MESH-detach", (0.951, 0.882), best_step=65_000)
    text = table3(tmp_path)
    command = "`slotmesh reproduce multi-dsprites --variants SA-MESH-detach`"
    assert row(text, "SA-MESH-detach") == ["95.1", "88.2", "65,000", command]
    assert "| SA-MESH | 94.3 | 87.1 | 70,000 |" in text
    assert "SA-MESH-reuse |" not in text
    assert [line.split("|")[-2] for line in text.splitlines() if "235,812" in line] == [
        " `checkpoints/multi-dsprites-sa-mesh` ",
        " — ",
    ]


def test_weights_from_before_the_end_are_named(tmp_path: Path) -> None:
    put(tmp_path, "SA", (0.912, 0.254), best_step=75_000)
    assert "was lowest" not in table3(tmp_path)
    put(tmp_path, "SA-MESH", (0.943, 0.871))
    text = table3(tmp_path)
    assert "loss of SA-MESH was lowest at step 70,000, 0.0400; at the end it was 0.0600." in text
    assert "loss of SA was" not in text


def test_what_failed_is_shown_as_failed(tmp_path: Path) -> None:
    put(tmp_path, "SA-MESH", None)
    text = table3(tmp_path)
    assert row(text, "SA-MESH")[1::2][:2] == ["failed at step 1,234"] * 2
    assert "| — | failed | — |" in text
    assert row(text, "SA")[1] == "not measured yet"


# ---- what is committed ----


def test_committed_results_are_whole() -> None:
    found = records_in(RESULTS)
    for variant, one in found.items():
        asked = MultiDSprites(steps=one.steps, seed=one.seed)
        expected = deciding(settings_of(asked, variant))  # pyright: ignore
        assert difference(one.settings, expected, free=("hardware.precision",)) is None
        assert one.steps >= 75_000
        assert one.train["step"][-1] == one.steps or one.failed is not None
        assert "/" not in one.command
        assert (RESULTS / "curves.svg").is_file()
        if one.test is not None:
            assert one.test.n == 2880
            assert one.best_step in one.val["step"]
            if variant not in GRADIENTS:
                assert (RESULTS / f"{variant}.png").stat().st_size < 1_000_000
    assert len({(one.seed, one.steps) for one in found.values()}) <= 1, "not the same budget"


@pytest.mark.parametrize("variant", ["SA", "SA-SH", "SA-MESH"])
def test_committed_weights_are_those_of_the_results(variant: str) -> None:
    one = records_in(RESULTS).get(variant)
    folder = ROOT / "checkpoints" / weights_name(variant)
    if one is None or one.test is None:
        assert not folder.exists(), "weights without a result"
        return
    assert (folder / "model.safetensors").stat().st_size < 4_000_000
    model = ObjectDiscovery.from_pretrained(folder)
    assert sum(p.numel() for p in model.parameters()) == one.parameters
    kept = json.loads((folder / "settings.json").read_text())
    assert (kept["variant"], kept["seed"], kept["steps"]) == (variant, one.seed, one.steps)


def test_readme_says_what_was_measured() -> None:
    said = " ".join((RESULTS.parents[1] / "README.md").read_text(encoding="utf-8").split())
    ours, papers = {}, {}
    found = records_in(RESULTS)
    for variant in ("SA", "SA-MESH"):
        test = found[variant].test
        assert test is not None
        ours[variant] = round(100 * test.metrics["fg_miou"])
        [row] = [r for r in ROWS if (r.table, r.variant) == ("Table 3", variant)]
        papers[variant] = round(100 * row.results["fg_miou"][0])
    expected = (
        f"fit the objects with an FG-mIoU of {ours['SA-MESH']} %, those of SA with {ours['SA']} % "
        f"(paper: {papers['SA-MESH']} and {papers['SA']})"
    )
    assert expected in said
