"""RESULTS.md is what ``results/`` holds, and says what it does not hold."""

from pathlib import Path
from typing import Any

import pytest

from paper import ResultsPage, __main__, run_results
from paper.page import render
from paper.recorded import difference
from paper.table1 import jobs
from paper.table1.choice import CANDIDATES, candidates_in, chosen
from paper.table1.emd_study import PARTS, parts_in
from paper.table1.record import SIGMAS
from paper.table1.rows import base, beyond, paper_error, rows_in
from slotmesh.training.published import TABLES, changed, published_rows

from ._records import put

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
VARIANTS = ("SA", "SA-SH", "SA-EMD", "SA-MESH")


def section(page: str, title: str) -> str:
    """What stands under a heading, up to the next of its kind."""
    mark = title.split()[0]
    return page.split(f"{title}\n", 1)[1].split(f"\n{mark} ")[0]


def row(text: str, name: str) -> list[str]:
    """The first row of a table that begins with a name."""
    [line, *_] = [line for line in text.splitlines() if line.startswith(f"| {name} |")]
    return [cell.strip() for cell in line.strip("|").split("|")[1:]]


def test_the_page_is_up_to_date() -> None:
    page = (ROOT / "RESULTS.md").read_text(encoding="utf-8")
    assert "\n\n\n" not in page
    assert page == render(RESULTS), "run `python -m paper results`"


def test_without_results_every_row_is_not_measured(tmp_path: Path) -> None:
    page = render(tmp_path)
    for table in TABLES:
        assert f"\n## {table}\n\n{TABLES[table].about}" in page
    assert "\n\n\n" not in page
    for one in published_rows():
        text = section(page, f"## {one.table}")
        if one.table == "Table 1":
            assert row(text, str(one.variant))[:3] == ["not measured yet"] * 3
        elif one.args is None:
            assert row(text, f"*{one.label}, quoted by the paper*")
        else:
            name = f"{one.label}, {one.task}" if one.table == "Table 5" else one.label
            assert "not measured yet" in row(text, name)
            assert "python -m paper " in text
    assert "0.2162" in section(page, "### Beyond the paper")
    assert " s in all" not in page


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """All that Table 1 can have, with one row that failed."""
    folder = tmp_path / "table1"
    first = changed(base("SA"), CANDIDATES["SA"]["1e-3-constant"])
    put(folder, "SA", "SA", (0.44, 0.51, 0.65), settings=first)
    other = changed(base("SA-SH"), CANDIDATES["SA-SH"]["3e-3-cosine"])
    put(folder, "SA-SH", "SA-SH", (0.27, 0.32, 0.41), settings=other)
    put(folder, "SA-EMD", "SA-EMD", (0.23, 0.52, None))
    best = changed(base("SA-MESH"), CANDIDATES["SA-MESH"]["lambda-2-reuse-3e-3-cosine"])
    put(folder, "SA-MESH", "SA-MESH", (0.22, 0.23, 0.24), settings=best)
    for variant, candidates in CANDIDATES.items():
        for i, (name, changes) in enumerate(candidates.items()):
            settings = changed(base(variant), changes)
            errors = (0.30 - i / 50, 0.33 - i / 50, 0.36 - i / 50)
            kind: dict[str, Any] = {"settings": settings, "split": "val"}
            put(folder / "choice", f"{variant}-{name}", variant, errors, **kind)
    for i, (part, (changes, _)) in enumerate(PARTS.items()):
        settings = changed(base("SA-EMD"), changes)
        put(folder / "emd-study", part, "SA-EMD", (0.1 + i / 10, 0.5, 0.6), settings=settings)
    for variant in VARIANTS:
        settings = beyond(variant)
        put(tmp_path / "table1-beyond", variant, variant, (0.05, 0.06, 0.07), settings=settings)
    return tmp_path


def test_a_row_has_its_numbers_beside_the_papers(whole: Path) -> None:
    text = section(render(whole), "## Table 1").split("###")[0]
    assert row(text, "*SA, paper*") == ["*0.44*", "*0.53*", "*0.65*", "*5*"]
    assert row(text, "SA-SH") == [
        "0.270 [0.250-0.290]",
        "0.320 [0.300-0.340]",
        "0.410 [0.390-0.430]",
        "5",
    ]
    assert row(text, "SA-EMD")[2] == "failed"
    how = [line for line in text.splitlines() if line.startswith("| SA-MESH | Adam")]
    assert how == [
        "| SA-MESH | Adam at 0.003, cosine; width 64; 3 iterations; lambda 2, potentials reuse | "
        "0 to 4 | 20,000 | 10,000 test sets | A GPU, torch 2.11.0 | 50 s | "
        "`python -m paper table1 --variants SA-MESH` |"
    ]
    assert "3.3 min in all" in text


def test_curves_of_the_smallest_sigma(whole: Path) -> None:
    text = section(render(whole), "## Table 1").split("During training")[1].split("###")[0]
    assert text.startswith(", sigma 0.01, by step:")
    assert "|  | 4,000 | 8,000 | 12,000 | 16,000 | 20,000 |" in text
    assert row(text, "SA")[0] == "1.300 [1.260-1.340]"
    assert row(text, "SA")[-1] == "0.650 [0.630-0.670]"
    assert row(text, "SA-EMD") == ["failed"] * 5


def test_the_candidates_and_the_one_that_was_taken(whole: Path) -> None:
    text = section(render(whole), "### How the settings were chosen")
    taken = [line.split("|")[1].strip() for line in text.splitlines() if "| chosen |" in line]
    assert taken == [
        "SA, 1e-3-constant",
        "SA-SH, 1e-3-constant",
        "SA-MESH, lambda-2-reuse-3e-3-cosine",
    ]
    assert "10,000 val sets" in text
    assert "The row SA-SH above has other settings (optim.lr, optim.cosine) than the" in text
    assert text.count("has other settings") == 1
    # What another choice would have reached is said, not left to the table.
    lower = (
        "- SA has a lower error with 3e-3-cosine: 0.280 instead of 0.300 at sigma 1, 0.310 instead"
    )
    assert lower in text
    assert "- SA-MESH has a lower error" not in text


def test_old_records_are_shown_with_the_command_of_today(whole: Path) -> None:
    former = "slotmesh reproduce table1 --variants SA"
    put(whole / "table1", "SA", "SA", (0.44, 0.51, 0.65), command=former)
    text = section(render(whole), "## Table 1")
    assert "`python -m paper table1 --variants SA`" in text
    assert former not in text
    assert rows_in(whole / "table1")["SA"].command == former
    page = (ROOT / "RESULTS.md").read_text(encoding="utf-8")
    assert "slotmesh reproduce" not in page


def test_the_parts_of_emd_and_what_is_beyond(whole: Path) -> None:
    page = render(whole)
    text = section(page, "### SA-EMD: exactness, sum, gradient")
    assert row(text, "SA-EMD")[1:] == ["0.230 [0.210-0.250]", "0.520 [0.500-0.540]", "failed"]
    for i, part in enumerate(PARTS):
        assert row(text, part)[1].startswith(f"{0.1 + i / 10:.3f} ")
    text = section(page, "### Beyond the paper")
    for variant in VARIANTS:
        assert row(text, variant)[0] == "0.050 [0.030-0.070]"
    assert "--model.raw-values --model.rescale --model.head --model.slot-dim 64" in text


def test_the_part_that_decides_is_named(whole: Path) -> None:
    assert "largest effect" not in render(whole), "the whole of it failed"
    folder = whole / "table1"
    put(folder, "SA-EMD", "SA-EMD", (0.23, 0.52, 0.25))
    settings = changed(base("SA-EMD"), PARTS["mean"][0])
    put(folder / "emd-study", "mean", "SA-EMD", (0.2, 0.5, 0.8), settings=settings)
    said = "is **mean**: an error of 0.800 instead of 0.250 (approximate 0.600, straight-through"
    assert said in render(whole)
    assert "None of them reaches the paper's 1.04" in render(whole)
    put(folder / "emd-study", "mean", "SA-EMD", (0.2, 0.5, 1.0), settings=settings)
    assert "None of them reaches" not in render(whole)


def test_the_command_writes_the_page(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "page.md"
    __main__.main(["results", "--results", str(whole), "--out", str(out)])
    assert out.read_text(encoding="utf-8") == render(whole)
    assert "page.md" in capsys.readouterr().out
    (whole / "table1" / "SA.json").write_text("{}")
    with pytest.raises(ValueError, match=r"SA\.json holds no result"):
        run_results(ResultsPage(whole, out))
    assert out.read_text(encoding="utf-8") != ""


# ---- the committed results ----


def all_records() -> list[Any]:
    found = [*rows_in(RESULTS / "table1").values(), *rows_in(RESULTS / "table1-beyond").values()]
    return [*found, *parts_in(RESULTS / "table1" / "emd-study").values()]


def test_committed_results_are_whole() -> None:
    for one in all_records():
        assert one.steps == [4_000, 8_000, 12_000, 16_000, 20_000], one.name
        assert one.seeds == [0, 1, 2, 3, 4], one.name
        assert [run.sigma for run in one.runs] == [s for s in SIGMAS for _ in range(5)], one.name
        assert (one.split, one.n) == ("test", 10_000), one.name
        assert "/" not in one.command, one.name
    files = list(RESULTS.glob("table1*/**/*.json"))
    assert sum(path.stat().st_size for path in files) < 300_000


def test_committed_rows_are_of_the_presets() -> None:
    for folder, of in (("table1", base), ("table1-beyond", beyond)):
        for variant, one in rows_in(RESULTS / folder).items():
            other = difference(one.settings, jobs.shared(of(variant)))
            assert other is None, f"{folder}/{variant}"
    for part, one in parts_in(RESULTS / "table1" / "emd-study").items():
        expected = changed(base("SA-EMD"), PARTS[part][0])  # pyright: ignore
        assert difference(one.settings, jobs.shared(expected)) is None, part


@pytest.mark.parametrize("variant", CANDIDATES)
def test_the_presets_are_those_that_were_taken(variant: str) -> None:
    name = chosen(RESULTS / "table1" / "choice", variant)
    assert name is not None, "not all candidates are measured"
    taken = changed(base(variant), CANDIDATES[variant][name])
    assert jobs.shared(base(variant)) == jobs.shared(taken)


def test_the_readme_says_what_was_measured() -> None:
    page = (RESULTS.parent / "README.md").read_text(encoding="utf-8")
    rows = rows_in(RESULTS / "table1")
    metric, *cells = row(page, "Random vectors")
    assert metric == "RMSE at sigma 0.01"
    pairs = [(rows[v].at(0.01).median, paper_error(v, 0.01)) for v in ("SA", "SA-MESH")]
    # The error of a prediction of zeros is sigma.
    assert cells == [f"{value:.2f}" for pair in pairs for value in pair] + ["1.00"]
    assert {len(rows[v].seeds) for v in ("SA", "SA-MESH")} == {5}
    # The baselines are not at their best.
    found = candidates_in(RESULTS / "table1" / "choice", "SA-SH")
    taken = found.pop(str(chosen(RESULTS / "table1" / "choice", "SA-SH"))).at(0.01).median
    assert min(one.at(0.01).median for one in found.values()) < taken
    assert "[not at their best](RESULTS.md#how-the-settings-were-chosen)" in " ".join(page.split())
