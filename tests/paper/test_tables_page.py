"""The trained tables of RESULTS.md, and the results and weights behind them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paper.page import render
from paper.page.notes import NOTES
from paper.recorded import difference
from paper.tables.command import KINDS, settings_of
from paper.tables.definitions import TABLES
from paper.tables.record import (
    RunOutcome,
    RunRecord,
    deciding,
    mean_cells,
    records_in,
    write,
)
from slotmesh.training.export import weights_name
from slotmesh.training.published import published_rows
from slotmesh.training.runs import open_run
from slotmesh.training.settings import INCIDENTAL
from slotmesh.training.tasks import preset

from .test_page import row, section

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
PARTS = [
    {"from_step": 0, "device": "A GPU", "torch": "2.11.0"},
    {"from_step": 40_000, "device": "Another", "torch": "2.11.0"},
]


def record(variant: Any, metrics: tuple[float, float] | None, **changes: Any) -> RunRecord:
    """A result that was never measured."""
    test = None
    if metrics is not None:
        test = RunOutcome(
            metrics={"fg_ari": metrics[0], "fg_miou": metrics[1]},
            standard_errors={"fg_ari": 0.0012, "fg_miou": 0.0034},
            undefined={"fg_ari": 0, "fg_miou": 0},
            loss=0.001,
            blind={"loss": 0.1, "metrics": {"fg_ari": 0.21, "fg_miou": 0.11}},
            n=2880,
            seconds=9.0,
            environment={"device": "A GPU", "torch": "2.11.0"},
        )
    settings = deciding(settings_of(KINDS["table3"](), variant, 0)) | {"hardware.precision": "bf16"}
    values: dict[str, Any] = {
        "row": variant,
        "seed": 0,
        "steps": 75_000,
        "command": f"python -m paper table3 --variants {variant} --seeds 0",
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
    return RunRecord(**values | changes)


def put(results: Path, variant: str, *args: Any, **changes: Any) -> None:
    made = record(variant, *args, **changes)
    write(results / "table3" / f"{variant}-{made.seed}.json", made)


def table3(results: Path) -> str:
    return section(render(results), "## Table 3")


def test_without_results_it_says_so(tmp_path: Path) -> None:
    text = table3(tmp_path)
    assert row(text, "SA-MESH") == ["not measured yet", "not measured yet", "", ""]
    assert row(text, "*SA-MESH, paper*") == ["*95.6 ± 0.2*", "*86.2 ± 2.2*", "*5*", "*496,610*"]
    assert "python -m paper table3" in text
    assert "trained on |" not in text
    assert "](results" not in text


def test_ours_beside_the_papers(tmp_path: Path) -> None:
    put(tmp_path, "SA", (0.912, 0.254), trained_on=PARTS[:1])
    put(tmp_path, "SA-MESH", (0.943, 0.871))
    for name in ("SA-0.png", "SA-MESH-0.png", "curves.svg"):
        (tmp_path / "table3" / name).write_text("")
    text = table3(tmp_path)
    assert row(text, "*SA, paper*") == ["*92.2 ± 0.5*", "*24.3 ± 5.4*", "*5*", "*496,610*"]
    assert row(text, "SA") == ["91.2", "25.4", "1", "75,000"]
    assert row(text, "SA-SH")[1] == "not measured yet"
    assert row(text, "*SA (original), quoted by the paper*")[:2] == ["*91.3 ± 0.3*", "—"]
    assert row(text, "ignores its input")[:2] == ["21.0", "11.0"]
    how = [line for line in text.splitlines() if "235,812" in line]
    samples = "2,880 samples, standard errors 0.12 and 0.34"
    run = "`python -m paper table3 --variants"
    assert how == [
        f"| SA | 0 | 235,812 | A GPU, torch 2.11.0, bfloat16 | 10.5 min | 70,000 | {samples} | "
        f"`checkpoints/multi-dsprites-sa` | {run} SA --seeds 0` |",
        "| SA-MESH | 0 | 235,812 | A GPU, then Another, torch 2.11.0, bfloat16, 2 parts | 10.5 min "
        f"| 70,000 | {samples} | `checkpoints/multi-dsprites-sa-mesh` | {run} SA-MESH --seeds 0` |",
    ]
    places = [line.split("](")[1].strip(")") for line in text.splitlines() if "](" in line]
    assert places == [f"results/table3/{n}" for n in ("curves.svg", "SA-0.png", "SA-MESH-0.png")]


def test_only_percentages_are_multiplied_by_100(tmp_path: Path) -> None:
    made = record("SA", (0.9, 0.2))
    assert made.test is not None
    test = replace(made.test, metrics={"nrmse": 0.218}, standard_errors={"nrmse": 0.000513})
    write(tmp_path / "table3" / "SA-0.json", replace(made, test=test))
    assert "2,880 samples, standard error 0.0005 |" in table3(tmp_path)


def test_the_number_of_seeds_is_said_where_the_paper_gives_it(tmp_path: Path) -> None:
    page = render(tmp_path)
    text = section(page, "## Table 3")
    assert "The paper: mean and standard deviation of 5 seeds. Ours: the number" in text
    assert "Not in the paper, and not measured yet: SA-MESH-reuse, SA-MESH-detach." in text
    assert row(section(page, "## Table 2, appendix"), "*SA, paper*")[-2] == "*5*"
    assert row(section(page, "## Appendix, ablations"), "*SA, 5 iterations, paper*")[-2] == "—"
    objective = section(page, "## Appendix, objective")
    assert "The paper shows this objective but reports no number." in objective
    assert "seeds is in the table" not in objective


def test_what_is_compared_is_trained_for_as_long() -> None:
    steps = {table.name: table.steps for table in TABLES}
    assert steps["section-5-4"] == steps["table5"]


def test_seeds_are_shown_together(tmp_path: Path) -> None:
    for seed, found in enumerate([(0.90, 0.20), (0.92, 0.30), (0.94, 0.40)]):
        put(tmp_path, "SA", found, seed=seed)
    text = table3(tmp_path)
    assert row(text, "SA") == ["92.0 ± 2.0", "30.0 ± 10.0", "3", "75,000"]
    weights = [line.split("|")[-3].strip() for line in text.splitlines() if "235,812" in line]
    assert weights == ["`checkpoints/multi-dsprites-sa`", "—", "—"]
    # Which of them failed counts, and a longer run is not hidden.
    put(tmp_path, "SA", None, seed=1)
    put(tmp_path, "SA", (0.94, 0.40), seed=2, steps=80_000)
    expected = ["92.0 ± 2.8", "30.0 ± 14.1", "3, 1 failed", "75,000 or 80,000"]
    assert row(table3(tmp_path), "SA") == expected


def test_rows_that_the_paper_does_not_have(tmp_path: Path) -> None:
    put(tmp_path, "SA-MESH", (0.943, 0.871))
    assert "| SA-MESH-detach |" not in table3(tmp_path)
    put(tmp_path, "SA-MESH-detach", (0.951, 0.882), best_step=65_000)
    text = table3(tmp_path)
    assert row(text, "SA-MESH") == ["94.3", "87.1", "1", "75,000"]
    assert row(text, "SA-MESH-detach") == ["95.1", "88.2", "1", "75,000"]
    assert "| SA-MESH-reuse |" not in text
    assert [line.split("|")[-3] for line in text.splitlines() if "235,812" in line] == [
        " `checkpoints/multi-dsprites-sa-mesh` ",
        " — ",
    ]


def test_weights_from_before_the_end_are_named(tmp_path: Path) -> None:
    put(tmp_path, "SA", (0.912, 0.254), best_step=75_000)
    assert "was lowest" not in table3(tmp_path)
    put(tmp_path, "SA-MESH", (0.943, 0.871))
    text = table3(tmp_path)
    said = "loss of SA-MESH, seed 0, was lowest at step 70,000, 0.04; at the end it was 0.06."
    assert said in text
    assert "loss of SA," not in text


def test_what_failed_is_shown_as_failed(tmp_path: Path) -> None:
    put(tmp_path, "SA-MESH", None)
    text = table3(tmp_path)
    assert row(text, "SA-MESH") == ["failed", "failed", "1, 1 failed", "75,000"]
    assert "| failed at step 1,234 | — | — |" in text
    assert row(text, "SA")[1] == "not measured yet"


# ---- what is committed ----


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_committed_results_are_whole(table: Any) -> None:
    folder = RESULTS / table.name
    found = records_in(folder, table.rows)
    runs = [one for group in found.values() for one in group]
    for one in runs:
        asked = KINDS[table.name](steps=one.steps)
        expected = deciding(settings_of(asked, one.row, one.seed))
        assert difference(one.settings, expected, ignore=INCIDENTAL) is None
        assert one.train["step"][-1] == one.steps or one.failed is not None
        assert "/" not in one.command
        assert (folder / "curves.svg").is_file()
        if one.test is not None:
            assert one.test.n == expected["data.test_size"]
            assert one.best_step in one.val["step"]
            if one.seed == 0 and (folder / f"{one.row}-0.png").is_file():
                assert (folder / f"{one.row}-0.png").stat().st_size < 1_000_000
    papers = {one.steps for one in runs if table.rows[one.row] not in table.more}
    assert len(papers) <= 1, "not the same budget"
    names = {f"{one.row}-{one.seed}.json" for one in runs}
    assert {path.name for path in folder.glob("*.json")} == names


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_committed_weights_are_those_of_the_results(table: Any) -> None:
    found = records_in(RESULTS / table.name, table.rows)
    for name, paper in table.rows.items():
        if not table.keeps_weights(name, 0):
            continue
        one = next((one for one in found.get(name, []) if one.seed == 0), None)
        folder = ROOT / "checkpoints" / weights_name(paper.task, str(paper.variant))
        if one is None or one.test is None:
            assert not folder.exists(), "weights without a result"
            continue
        assert (folder / "model.safetensors").stat().st_size < 4_000_000
        run = open_run(folder)
        assert sum(p.numel() for p in run.load_model().parameters()) == one.parameters
        kept = run.settings
        assert (kept.variant, kept.seed, kept.steps) == (paper.variant, one.seed, one.steps)
        said = " ".join((folder / "README.md").read_text().split())
        for part in ("license: mit", "Training data:", f"{one.steps:,} steps", "Licence: MIT"):
            assert part in said


README_ROWS = [
    ("Multi-dSprites", "Table 3", "", "fg_ari", "FG-ARI, %"),
    ("", "Table 3", "", "fg_miou", "FG-mIoU, %"),
    ("ClevrTex", "Table 4", "", "fg_ari", "FG-ARI, %"),
    ("", "Table 4", "", "fg_miou", "FG-mIoU, %"),
    ("CLEVRER-S (videos)", "Table 5", "clevrer-s", "fg_ari", "FG-ARI, %"),
    ("CLEVRER-L (videos)", "Table 5", "clevrer-l", "fg_ari", "FG-ARI, %"),
    ("CLEVR properties", "Table 2", "", "ap_0.125", "AP 0.125, %"),
]


def test_readme_says_what_was_measured() -> None:
    """SA and SA-MESH, the paper's numbers beside them, and what a blind model reaches."""
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    expected: list[list[str]] = []
    steps: dict[str, set[int]] = {}
    for name, table, task, metric, title in README_ROWS:
        folder = RESULTS / table.lower().replace(" ", "")
        cells: list[str] = []
        blind = ""
        for variant in ("SA", "SA-MESH"):
            key = f"{task}-{variant}" if task else variant
            records = records_in(folder, (key,))[key]
            assert len(records) == 1, "the README says that each cell is one seed"
            steps.setdefault(name or table, set()).update(one.steps for one in records)
            [paper] = [
                r
                for r in published_rows()
                if (r.table, r.variant) == (table, variant) and r.task in (task or r.task,)
            ]
            cells += [*mean_cells(records, [metric]), f"{100 * paper.results[metric][0]:.1f}"]
            assert records[0].test is not None
            blind = f"{100 * records[0].test.blind['metrics'][metric]:.1f}"
        expected.append([name, title, *cells, blind])
    shown = page.split("| ignores its input |\n")[1].split("\n\n")[0].splitlines()[1:]
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in shown]
    assert found[:-1] == expected
    # Shares of the paper's steps.
    assert max(steps["Multi-dSprites"]) / preset("multi-dsprites", "SA", "paper").steps < 1 / 6
    assert round(preset("clevrtex", "SA", "paper").steps / max(steps["ClevrTex"])) in (16, 17)
    assert round(preset("clevrer-s", "SA", "paper").steps / max(steps["CLEVRER-S (videos)"])) == 4
    reused = records_in(RESULTS / "table3", ("SA-MESH-reuse",))
    said = "We have not trained with the authors' gradient." in " ".join(page.split())
    assert said == (not reused)


def test_notes_say_where_a_table_is_not_the_papers_experiment() -> None:
    """As the settings have it: fewer steps, and another gradient or lambda of MESH."""
    for table in TABLES:
        rows = [one for one in table.rows.values() if one not in table.more]
        shorter = table.steps is not None and table.steps < rows[0].settings().steps
        said = NOTES.get(table.paper, "")
        assert shorter == ("shorter" in said or "also in the number of steps" in said)
        if any(one.changes.get("transport.grad") == "implicit" for one in rows):
            assert 'grad="implicit"' in said
    [one] = KINDS["section-5-4"].table.rows.values()
    usual: Any = preset("clevrer-s", "SA-MESH", "paper")
    assert (
        f"lambda of {one.changes['transport.lr']:g} in place of {usual.transport.lr:g}"
        in (NOTES["Section 5.4"])
    )
