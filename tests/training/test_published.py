"""The paper's tables as data: every row trains by its own command."""

import shlex
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slotmesh.cli import parse_train
from slotmesh.training.published import TABLES, Row, published_rows, row_of
from slotmesh.training.tasks import TASKS, preset

OURS = [row for row in published_rows() if row.args is not None]


def name(row: Row) -> str:
    return f"{row.table}/{row.task}/{row.label}"


def parse(row: Row, *more: str) -> Any:
    return parse_train([row.task, *(row.args or ()), *more])


@pytest.mark.parametrize("row", OURS, ids=name)
def test_the_command_of_a_row_makes_its_settings(row: Row) -> None:
    settings = parse(row)
    assert settings == row.settings()
    assert row_of(settings) is row
    settings.check()


@pytest.mark.parametrize("row", OURS, ids=name)
def test_a_quick_run_belongs_to_its_row(row: Row) -> None:
    quick = parse(row, "--preset", "quick") if not row.changes else row.settings("quick")
    assert quick.preset == "quick"
    assert row_of(quick) is row


@pytest.mark.parametrize("task", ["multi-dsprites", "clevrer-s"])
def test_a_quick_run_on_a_dataset_belongs_to_its_row(task: str) -> None:
    on_dataset: Any = preset(task, root=Path("data"))
    assert not on_dataset.data.easy
    assert row_of(on_dataset) is row_of(preset(task, preset="paper")) is not None


def test_all_rows_of_the_tables_are_there() -> None:
    assert Counter(row.table for row in published_rows()) == {
        "Table 1": 12,
        "Table 2": 6,
        "Table 2, appendix": 6,
        "Table 3": 4,
        "Table 4": 3,
        "Table 5": 10,
        "Section 5.4": 1,
        "Appendix, ablations": 2,
        "Appendix, objective": 1,
    }
    assert {row.table for row in published_rows()} == set(TABLES)
    copied = [row.label for row in published_rows() if row.args is None]
    assert copied == ["iDSPN", "SA (original)"] * 2 + ["SA (original)"]


def test_every_variant_of_every_task_has_a_row() -> None:
    """But SA-EMD, which the paper has for sets only."""
    for task, kind in TASKS.items():
        # Nobody has published anything about your own images.
        assert bool(kind.published) is kind.has_world
        for variant in kind.variants() if kind.has_world else ():
            row = row_of(preset(task, variant, "paper"))
            if variant == "SA-EMD" and task not in ("random-objects", "clevr-properties"):
                assert row is None
                continue
            assert row is not None
            assert (row.task, row.variant) == (task, variant)
            assert row.results


def test_results_have_the_names_of_the_metrics_and_are_parts_of_1() -> None:
    for row in published_rows():
        for metric, (mean, std) in row.results.items():
            assert 0 < mean < (1.1 if metric == "nrmse" else 1)
            assert (std is None) == (metric == "nrmse" or row.table == "Section 5.4")
            if std is not None:
                assert 0 < std < 0.35
    for task, kind in TASKS.items():
        settings = preset(task, kind.variants()[0], "paper")
        known: set[str] = set()
        for metric, made in kind(settings).metrics().items():
            known |= set(getattr(made, "names", [metric]))
        assert {m for row in published_rows() if row.task == task for m in row.results} == known


def test_a_few_numbers_by_hand() -> None:
    def result(task: str, variant: str, metric: str) -> tuple[float, float | None]:
        row = row_of(preset(task, variant, "paper"))
        assert row is not None
        return row.results[metric]

    assert result("multi-dsprites", "SA-MESH", "fg_ari") == (0.956, 0.002)
    assert result("clevrtex", "SA", "fg_miou") == (0.263, 0.149)
    assert result("clevrer-l", "SA-learned-noise", "tc") == (0.194, 0.077)
    assert result("clevr-properties", "SA-EMD", "ap_0.125") == (0.42, 0.02)
    assert result("random-objects", "SA-SH", "nrmse") == (0.27, None)


def test_the_paper_finds_mesh_best_by_its_headline_metrics() -> None:
    for task, metric in (
        ("clevr-properties", "ap_0.25"),
        ("multi-dsprites", "fg_miou"),
        ("clevrtex", "fg_ari"),
        ("clevrer-s", "fg_miou"),
        ("clevrer-l", "tc"),
    ):
        ours = [row for row in OURS if row.task == task and metric in row.results]
        assert max(ours, key=lambda row: row.results[metric]).variant == "SA-MESH"


def test_other_settings_are_no_row() -> None:
    start: Any = preset("random-objects", "SA", "paper")
    assert row_of(replace(start, data=replace(start.data, sigma=0.5))) is None
    start = preset("multi-dsprites", "SA-MESH", "paper")
    assert row_of(replace(start, model=replace(start.model, n_iters=5))) is None
    assert row_of(replace(start, model=replace(start.model, implicit=True))) is None


def test_length_size_and_seed_do_not_change_the_row() -> None:
    start: Any = preset("clevrtex", "SA-SH", "paper")
    model = replace(start.model, channels=8, n_slots=7)
    other = replace(start, steps=10, seed=3, model=model, data=replace(start.data, size=32))
    assert row_of(other) is row_of(start)


def test_a_smaller_mesh_learning_rate_is_a_row_of_its_own_on_clevrer_s() -> None:
    for task, table in (("clevrer-s", "Section 5.4"), ("clevrer-l", "Table 5")):
        start: Any = preset(task, "SA-MESH", "quick")
        row = row_of(replace(start, transport=replace(start.transport, lr=1.0)))
        assert row is not None
        assert row.table == table


def test_a_copied_row_has_no_settings() -> None:
    copied = next(row for row in published_rows() if row.args is None)
    with pytest.raises(ValueError, match="copied"):
        copied.settings()


def test_the_documentation_has_the_command_of_every_row() -> None:
    page = (Path(__file__).parents[2] / "docs" / "experiments.md").read_text(encoding="utf-8")
    shown = [line for line in page.splitlines() if "--preset paper" in line and "slotmesh" in line]
    wanted = [shlex.join(["slotmesh", "train", row.task, *row.args]) for row in OURS]
    assert shown == wanted
