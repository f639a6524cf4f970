"""The table of the quick presets in the documentation, against the committed results."""

import csv
import json
from pathlib import Path

import pytest

from slotmesh.training.tasks import from_plain, preset

from ._jobs import WORLD_TASKS

ROOT = Path(__file__).parents[2]


def row_of(task: str) -> list[str]:
    lines = (ROOT / "docs" / "experiments.md").read_text(encoding="utf-8").splitlines()
    [line] = [line for line in lines if line.startswith(f"| `{task}` | ") and " s |" in line]
    return [cell.strip() for cell in line.split("|")[2:-1]]


@pytest.mark.parametrize("task", WORLD_TASKS)
def test_the_table_is_the_results(task: str) -> None:
    folder = ROOT / "results" / "quick" / task
    found = json.loads((folder / "evaluation.json").read_text(encoding="utf-8"))
    with (folder / "metrics.csv").open(newline="", encoding="utf-8") as file:
        last = list(csv.DictReader(file))[-1]
    time, loss, blind, metric, value, blind_value = row_of(task)
    assert int(last["step"]) == preset(task).steps
    assert time == f"{float(last['seconds']):.0f} s"
    assert float(last["seconds"]) < 180
    assert loss == f"{found['loss']:.3g}"
    assert blind == f"{found['blind']['loss']:.3g}"
    assert value == f"{found['metrics'][metric]:.3g}"
    assert blind_value == f"{found['blind']['metrics'][metric]:.3g}"
    assert found["loss"] < 0.9 * found["blind"]["loss"]


@pytest.mark.parametrize("task", WORLD_TASKS)
def test_the_results_are_of_the_preset(task: str) -> None:
    path = ROOT / "results" / "quick" / task / "settings.json"
    # A setting that came later has its default, which is what there was before it.
    assert from_plain(json.loads(path.read_text()), str(path)) == preset(task)
