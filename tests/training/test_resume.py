"""Killed in the middle and started again, a run ends bit for bit as if nothing had happened."""

from pathlib import Path

import pytest

from slotmesh.training.settings import Settings

from ._jobs import assert_same, metrics, run_job, state, tiny

pytestmark = pytest.mark.slow

# One after the other. Validations are at 5, 10 and 12, other checkpoints at 3, 6 and 9.
KILLS = [
    "a_step 1",  # before the first checkpoint
    "a_validation 5",  # in a validation, its metrics half full
    "best.ckpt 5",  # validated, nothing saved of it
    "last.ckpt 5",  # the best is saved, but not the last
    "a_step 5",  # right after a validation
    "a_step 8",  # between two checkpoints
    "last.ckpt 9",  # a checkpoint is written, but has not taken its place
    "a_step 11",
    "a_validation 12",  # in the last validation, all training done
]


def assert_equal_runs(found: Path, expected: Path) -> None:
    for name in ("last", "best"):
        assert_same(state(found, name), state(expected, name), name)
    assert metrics(found) == metrics(expected)
    pictures = [sorted(p.name for p in (f / "pictures").iterdir()) for f in (found, expected)]
    assert pictures[0] == pictures[1] == [f"step-0000{step}.png" for step in ("05", "10", "12")]
    for name in pictures[0]:
        a, b = (folder / "pictures" / name for folder in (found, expected))
        assert a.read_bytes() == b.read_bytes()
    assert not list(found.rglob("*.part"))


def kill_and_resume(settings: Settings, kills: list[str], log: Path) -> None:
    for kill in kills:
        assert run_job(log, "train", settings=settings, kill=kill)[0] == -9, log.read_text()
    code, said = run_job(log, "train", settings=settings)
    assert code == 0, said
    assert "Resuming from the last checkpoint" in said


@pytest.mark.parametrize(
    ("task", "variant", "kills"),
    [
        ("random-objects", "SA-MESH", KILLS),
        ("multi-dsprites", "SA", KILLS[:1] + KILLS[3:6]),
        ("clevrer-s", "SA-learned-noise", KILLS[1:2] + KILLS[5:6]),
    ],
)
def test_kills(tmp_path: Path, task: str, variant: str, kills: list[str]) -> None:
    # Scenes of videos take long to render: epochs of 2 steps there.
    less = {"data__train_size": 9} if task == "clevrer-s" else {}
    whole, killed = (tiny(task, variant, tmp_path / name, **less) for name in ("whole", "killed"))
    log = tmp_path / "log"
    assert run_job(log, "train", settings=whole)[0] == 0, log.read_text()
    kill_and_resume(killed, kills, log)
    assert_equal_runs(tmp_path / "killed", tmp_path / "whole")
    rows = metrics(tmp_path / "whole")
    assert [r["step"] for r in rows if r["val/loss"]] == ["5", "10", "12"]
    assert [r["step"] for r in rows if r["train/loss"]] == ["2", "4", "6", "8", "10", "12"]


def test_an_endless_world_and_other_intervals(tmp_path: Path) -> None:
    """What may change in between does not change what is computed."""
    changes = {"data__train_size": None, "steps": 9, "val_every": 3}
    whole = tiny("random-objects", "SA-SH", tmp_path / "whole", **changes)
    log = tmp_path / "log"
    assert run_job(log, "train", settings=whole)[0] == 0, log.read_text()
    first = tiny("random-objects", "SA-SH", tmp_path / "killed", save_every=2, **changes)
    assert run_job(log, "train", settings=first, kill="a_step 5")[0] == -9
    second = tiny("random-objects", "SA-SH", tmp_path / "killed", save_every=5, **changes)
    assert run_job(log, "train", settings=second)[0] == 0, log.read_text()
    for name in ("last", "best"):
        assert_same(state(tmp_path / "killed", name), state(tmp_path / "whole", name), name)
    assert metrics(tmp_path / "killed") == metrics(tmp_path / "whole")


def test_the_comparison_can_fail(tmp_path: Path) -> None:
    """Another order of the data is another run: the tests above would see it."""
    log = tmp_path / "log"
    for seed in (0, 1):
        settings = tiny("random-objects", "SA", tmp_path / str(seed), data__seed=seed, steps=2)
        assert run_job(log, "train", settings=settings)[0] == 0, log.read_text()
    with pytest.raises(AssertionError):
        assert_same(state(tmp_path / "0"), state(tmp_path / "1"))
    assert metrics(tmp_path / "0") != metrics(tmp_path / "1")
