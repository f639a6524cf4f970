"""Killed at any moment and started again, a run ends as if nothing had happened."""

import shutil
from pathlib import Path
from random import Random

import pytest

from ..training._jobs import assert_same, metrics, run_job, state, tiny
from .conftest import Campaign

pytestmark = pytest.mark.slow


def a_moment(dice: Random, kind: str) -> str:
    """Where to die; a run that resumes may end before it gets there."""
    part = dice.choice(["0", "1", "after", f"{dice.random():.3f}"])
    if kind == "a step":
        return f"{dice.choice(['a_step', 'a_validation'])} {dice.randint(1, 11)}"
    if kind == "any time":
        return f"seconds {dice.uniform(0.01, 2):.3f}"
    if kind == "a picture":
        return f"write step-*.png 1 {part}"
    if kind == "a checkpoint":
        name = dice.choice(["last", "last", "previous", "best"])
        # That is a second name of the last, and never written.
        part = dice.choice(["1", "after"]) if name == "previous" else part
        return f"write {name}.ckpt {dice.randint(1, 2)} {part}"
    name = dice.choice(["metrics.csv", "settings.json", "environment.json"])
    return f"write {name} 1 {part}"


def assert_equal_runs(found: Path, expected: Path) -> None:
    for name in ("last", "best"):
        assert_same(state(found, name), state(expected, name), name)
    assert metrics(found) == metrics(expected)
    files = [
        {p.relative_to(run): p.read_bytes() for p in run.glob("pictures/*")}
        for run in (found, expected)
    ]
    assert len(files[1]) == 3
    assert files[0] == files[1]
    # Neither parts of files nor the lock.
    assert not [p for p in found.rglob("*") if p.name.startswith(".")]


def test_kills(tmp_path: Path, campaign: Campaign) -> None:
    dice = campaign.rng("kills")
    log, run, whole = tmp_path / "log", tmp_path / "killed", tmp_path / "whole"
    task, variant = dice.choice([("random-objects", "SA-MESH"), ("random-objects", "SA")])
    code, said = run_job(log, "train", settings=tiny(task, variant, whole))
    assert code == 0, said
    settings = tiny(task, variant, run)
    kinds = ["a picture", "a checkpoint", "a step", "any time", "another file"]
    n, kills = campaign.size(2, 20), 0
    while kills < n:
        kind = kinds[kills % len(kinds)]
        code, said = run_job(log, "train", settings=settings, kill=a_moment(dice, kind))
        assert code in (-9, 0), said
        if code == 0:
            assert_equal_runs(run, whole)
            shutil.rmtree(run)
        else:
            kills += 1
            campaign.count(f"training killed in {kind}")
    code, said = run_job(log, "train", settings=settings)
    assert code == 0, said
    assert_equal_runs(run, whole)


@pytest.mark.parametrize("part", ["0", "0.5", "1", "after"])
def test_a_picture_that_was_being_written(tmp_path: Path, part: str, campaign: Campaign) -> None:
    """It is drawn again, and its part is gone."""
    if part != "0.5" and not campaign.long:
        pytest.skip("in make soak")
    log, run, whole = tmp_path / "log", tmp_path / "killed", tmp_path / "whole"
    changes = {"steps": 4, "val_every": 2, "save_every": 1}
    settings = tiny("random-objects", "SA", run, **changes)
    assert run_job(log, "train", settings=settings, kill=f"write step-*.png 2 {part}")[0] == -9
    assert run_job(log, "train", settings=settings)[0] == 0, log.read_text()
    assert run_job(log, "train", settings=tiny("random-objects", "SA", whole, **changes))[0] == 0
    pictures = [{p.name: p.read_bytes() for p in f.glob("pictures/*")} for f in (run, whole)]
    assert sorted(pictures[0]) == ["step-000002.png", "step-000004.png"]
    assert pictures[0] == pictures[1]
    campaign.count("pictures killed: drawn again, the same")
