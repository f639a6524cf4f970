"""The committed runs of the quick presets: what they reach, and the table of them in the docs."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slotmesh.training.tasks import from_plain, preset

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results" / "quick"
RUNS = sorted((p.parent.parent.name, int(p.parent.name)) for p in RESULTS.glob("*/*/settings.json"))
"""Task and seed of each."""
TASKS = {
    "random-objects",
    "clevr-properties",
    "multi-dsprites",
    "clevrtex",
    "clevrer-s",
    "clevrer-l",
}
SEEDS = {0, 1, 2}
ALONE = 0
"""The seed whose runs had two cores to themselves."""
HEADLINES = {"random-objects": ("nrmse",), "clevr-properties": ("ap_inf",)}
"""Of each task; of object discovery the two of the paper's tables."""


def folder_of(task: str, seed: int) -> Path:
    return RESULTS / task / str(seed)


def evaluation(task: str, seed: int) -> dict[str, Any]:
    return json.loads((folder_of(task, seed) / "evaluation.json").read_text(encoding="utf-8"))


def seconds(task: str) -> float:
    """Of training and validation."""
    with (folder_of(task, ALONE) / "metrics.csv").open(newline="", encoding="utf-8") as file:
        return float(list(csv.DictReader(file))[-1]["seconds"])


def test_there_are_three_runs_of_every_task() -> None:
    assert set(RUNS) == {(task, seed) for task in TASKS for seed in SEEDS}


@pytest.mark.parametrize("task", sorted(TASKS))
def test_a_quick_run_takes_less_than_three_minutes(task: str) -> None:
    assert seconds(task) + evaluation(task, ALONE)["seconds"] < 180


def test_the_docs_say_how_long_they_take() -> None:
    times = sorted(seconds(task) for task in TASKS)
    text = " ".join((ROOT / "docs" / "experiments.md").read_text(encoding="utf-8").split())
    assert f"training took {times[0]:.0f} to {times[-1]:.0f} seconds" in text


@pytest.mark.parametrize(("task", "seed"), RUNS)
def test_a_run_is_complete(task: str, seed: int) -> None:
    with (folder_of(task, seed) / "metrics.csv").open(newline="", encoding="utf-8") as file:
        last = list(csv.DictReader(file))[-1]
    assert int(last["step"]) == preset(task).steps
    assert evaluation(task, seed)["seed"] == seed


@pytest.mark.parametrize(("task", "seed"), RUNS)
def test_a_quick_run_beats_the_blind_model(task: str, seed: int) -> None:
    found = evaluation(task, seed)
    mine, blind = found["metrics"], found["blind"]["metrics"]
    assert found["loss"] < 0.9 * found["blind"]["loss"]
    if task == "random-objects":
        assert mine["nrmse"] < 0.5 * blind["nrmse"]
    elif task == "clevr-properties":
        assert mine["ap_inf"] > 0.3 > blind["ap_inf"]
    else:
        assert mine["fg_ari"] > blind["fg_ari"] + 0.1
        assert mine["fg_miou"] > 1.2 * blind["fg_miou"]


@pytest.mark.parametrize(("task", "seed"), RUNS)
def test_the_results_are_of_the_preset(task: str, seed: int) -> None:
    path = folder_of(task, seed) / "settings.json"
    # A setting that came later has its default, which is what there was before it.
    found = from_plain(json.loads(path.read_text(encoding="utf-8")), str(path))
    assert found == replace(preset(task), seed=seed)


def test_the_table_is_the_results() -> None:
    lines = (ROOT / "docs" / "experiments.md").read_text(encoding="utf-8").splitlines()
    shown = [line for line in lines if line.startswith("| `") and line.count("|") == 6]
    expected: list[str] = []
    for task, seed in RUNS:
        found = evaluation(task, seed)
        for name in HEADLINES.get(task, ("fg_ari", "fg_miou")):
            mine, blind = found["metrics"][name], found["blind"]["metrics"][name]
            expected.append(f"| `{task}` | {seed} | {name} | {mine:.2f} | {blind:.2f} |")
    assert expected
    assert shown == expected
