"""Runs of which a part is missing, folders that cannot be written, and two processes at once."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from paper import run_table
from paper.tables import command
from paper.tables.record import read, write
from slotmesh.training import processes
from slotmesh.training.processes import Lock
from slotmesh.training.published import Row
from slotmesh.training.runs import steps_done

from . import test_tables
from .test_tables import all_tables, asked, measure, only, small_settings, stop_at

pytestmark = pytest.mark.usefixtures("one_thread")
small, two_tables = test_tables.small, test_tables.two_tables
RUN = Path("runs/table3/SA-0")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    """A run that is finished, and measured."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Row, "settings", small_settings)
        measure(folder, variants=("SA",))
    return folder


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Path:
    """A run that stopped after 6 of 10 steps."""
    folder = tmp_path_factory.mktemp("stopped")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Row, "settings", small_settings)
        stop_at(patch, 5)
        with pytest.raises(SystemExit):
            measure(folder, variants=("SA",))
    return folder


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def half_of_all(folder: Path) -> None:
    for path in folder.iterdir():
        half(path)


def later_part(path: Path) -> None:
    path.write_text(json.dumps([{"from_step": 4, "device": "another"}]))


BROKEN: dict[str, tuple[str, Callable[[Path], object], str]] = {
    "no settings": ("settings.json", Path.unlink, "settings.json is missing"),
    "half the settings": ("settings.json", half, "settings.json cannot be read"),
    "no machines": ("machines.json", Path.unlink, "machines.json does not say where it began"),
    "half the machines": ("machines.json", half, "machines.json cannot be read"),
    "a later machine": ("machines.json", later_part, "machines.json does not say where it began"),
    "no metrics": ("metrics.csv", Path.unlink, "metrics.csv does not have all steps up to 6"),
    "half the metrics": ("metrics.csv", half, "metrics.csv does not have all steps up to 6"),
    "no best": ("checkpoints/best.ckpt", Path.unlink, "checkpoints.best.ckpt is missing"),
    "half the checkpoints": ("checkpoints", half_of_all, "its last checkpoints are damaged"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_part_of_a_run_is_not_continued(stopped: Path, tmp_path: Path, case: str) -> None:
    """Its record would lack a machine, time or curves."""
    shutil.copytree(stopped / "runs", tmp_path / "runs")
    name, change, said = BROKEN[case]
    change(tmp_path / RUN / name)
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=f"SA-0 is not a whole run: {said}.*Copy it") as error:
        measure(tmp_path, variants=("SA",))
    # --out and --overwrite of `slotmesh train` would not help.
    assert "--" not in str(error.value)
    assert contents(tmp_path) == before


def test_other_weights_than_the_best_are_not_tested(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained / "runs", tmp_path / "runs")
    folder = tmp_path / RUN / "checkpoints"
    best = read(trained / "out" / "SA-0.json").best_step
    assert best is not None
    other = next(p for p in folder.glob("[lp]*.ckpt") if steps_done(p) != best)
    shutil.copy(other, folder / "best.ckpt")
    steps = f"checkpoints.best.ckpt is of step {steps_done(other)}, but the .* at step {best}"
    with pytest.raises(ValueError, match=f"SA-0 is not a whole run: {steps}. Copy it again"):
        measure(tmp_path, variants=("SA",))
    half(folder / "best.ckpt")
    with pytest.raises(ValueError, match=r"not a whole run: checkpoints.best\.ckpt is damaged"):
        measure(tmp_path, variants=("SA",))
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("two_tables")
def test_the_list_changes_no_file(stopped: Path, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "ablations" / "SA-5-iterations-0"
    shutil.copytree(stopped / RUN, folder)
    changed = json.loads((folder / "settings.json").read_text())
    changed["model"]["n_iters"] = 5
    (folder / "settings.json").write_text(json.dumps(changed))
    assert "6 of 10" in all_tables(tmp_path, dry_run=True)
    half(folder / "checkpoints" / "last.ckpt")
    before = contents(tmp_path)
    assert "4 of 10" in all_tables(tmp_path, dry_run=True)
    assert contents(tmp_path) == before


@pytest.mark.usefixtures("two_tables")
def test_of_all_tables_only_missing_rows_are_named(tmp_path: Path) -> None:
    all_tables(tmp_path)
    (tmp_path / "results" / "ablations" / "SA-5-iterations-0.json").unlink()
    said = all_tables(tmp_path)
    assert "SA-5-iterations, seed 0: written to" in said
    # That command has no --overwrite.
    assert "is measured:" not in said
    assert "--" not in said
    assert said.rstrip().endswith("Everything is measured. Next: python -m paper results")


@pytest.mark.usefixtures("two_tables")
def test_no_seed_is_a_mistake_and_the_same_twice_is_one(tmp_path: Path) -> None:
    for run in (lambda: all_tables(tmp_path, seeds=()), lambda: measure(tmp_path, seeds=())):
        with pytest.raises(ValueError, match="--seeds is empty, expected at least one"):
            run()
    assert all_tables(tmp_path, seeds=(0, 0), dry_run=True).count("0 of 10") == 3


def test_half_an_export_is_written_again(trained: Path, tmp_path: Path) -> None:
    shutil.copytree(trained / "runs", tmp_path / "runs")
    shutil.copytree(trained / "checkpoints", tmp_path / "checkpoints")
    [where] = (tmp_path / "checkpoints").iterdir()
    for name in ("settings.json", "README.md"):
        (where / name).unlink()
    measure(tmp_path, variants=("SA",))
    old = contents(trained / "checkpoints" / where.name)
    assert {p.name: text for p, text in contents(where).items()} == {
        p.name: text for p, text in old.items()
    }


@pytest.mark.parametrize("name", ["out", "checkpoints"])
def test_results_that_have_no_place_are_an_error_before_the_work(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    with pytest.raises(ValueError, match=rf"Results go to .*{name}, but .*{name} is a file"):
        measure(tmp_path, variants=("SA",))
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_what_another_process_measured_meanwhile_is_not_measured_again(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = read(trained / "out" / "SA-0.json")
    measured: list[str] = []

    def measure_(asked: Any, row: str, *args: Any) -> Any:
        measured.append(row)
        settings = command.deciding(command.settings_of(asked, "SA-SH", 0))
        write(asked.folder / "SA-SH-0.json", replace(whole, row="SA-SH", settings=settings))
        return whole

    monkeypatch.setattr(command, "_measure", measure_)
    found = only(measure(tmp_path, variants=("SA", "SA-SH"))[0])
    assert list(found) == ["SA", "SA-SH"]
    assert measured == ["SA"]


def test_no_two_processes_test_a_run_at_once(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(trained / "runs", tmp_path / "runs")
    monkeypatch.setattr(processes, "_PATIENCE_S", 0.0)
    before = command.evaluate_run

    def evaluate_run(*args: Any, **options: Any) -> Any:
        with pytest.raises(ValueError, match="is in use by another process"):
            Lock(tmp_path / RUN).acquire()
        return before(*args, **options)

    monkeypatch.setattr(command, "evaluate_run", evaluate_run)
    run_table(asked(tmp_path, variants=("SA",)), Console(quiet=True))
    assert not (tmp_path / RUN / ".lock").exists()
