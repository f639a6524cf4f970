"""``python -m paper table3`` and its like: stopped and moved, they end where they would have."""

import json
import os
import re
import shutil
import signal
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from paper import TrainTable, TrainTables, run_table, run_tables
from paper.tables import command, everything, training
from paper.tables.definitions import BY_NAME, TABLES
from paper.tables.pictures import draw_curves, write_curves
from paper.tables.record import RunRecord, read, records_in, write
from slotmesh.models import ObjectDiscovery
from slotmesh.training import processes
from slotmesh.training.evaluate import Evaluate, run_evaluate
from slotmesh.training.export import weights_name
from slotmesh.training.loop import Training
from slotmesh.training.processes import Lock
from slotmesh.training.published import Row, published_rows
from slotmesh.training.settings import Optim
from slotmesh.training.tasks import experiment

from ..training._jobs import WORLD_TASKS, assert_same, count_sets, metrics, state

pytestmark = pytest.mark.usefixtures("one_thread")
SETTINGS = Row.settings
SIZES: dict[str, Any] = {
    "steps": 10,
    "batch_size": 2,
    "train_size": 8,
    "val_size": 3,
    "test_size": 7,
}
BOTH = ("SA", "SA-MESH")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Images of 16 pixels and a network to match."""
    monkeypatch.setattr(Row, "settings", small_settings)


def small_settings(row: Row, start: str = "paper") -> Any:
    made: Any = SETTINGS(row, start)
    if row.task == "random-objects":
        return made
    model = {"channels": 4, "slot_dim": 8, "mlp_dim": 8}
    return replace(
        made,
        data=replace(made.data, size=16),
        model=replace(made.model, **model),
        optim=Optim(lr=1e-3, half_life=20, clip=0.1),
    )


def asked(folder: Path, table: str = "table3", **changes: Any) -> TrainTable:
    places: dict[str, Any] = {name: folder / name for name in ("runs", "out", "checkpoints")}
    return command.KINDS[table](**{**SIZES, **places, "device": "cpu", **changes})


def measure(folder: Path, *args: Any, **changes: Any) -> tuple[dict[str, list[RunRecord]], str]:
    console = Console(file=StringIO(), width=200)
    found = run_table(asked(folder, *args, **changes), console)
    return found, console.file.getvalue()  # pyright: ignore


Whole = tuple[Path, dict[str, RunRecord], str]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Whole:
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Row, "settings", small_settings)
        found, said = measure(folder, variants=BOTH)
    return folder, only(found), said


def only(found: dict[str, list[RunRecord]]) -> dict[str, RunRecord]:
    """The one seed of each row."""
    assert all(len(group) == 1 for group in found.values())
    return {row: group[0] for row, group in found.items()}


def test_a_record_is_the_run_that_it_stands_for(whole: Whole) -> None:
    folder, found, _ = whole
    assert list(found) == ["SA", "SA-MESH"]
    for variant, one in found.items():
        run = folder / "runs" / "table3" / f"{variant}-0"
        again = run_evaluate(Evaluate(run, device="cpu", out=folder / "again"), Console(quiet=True))
        assert one.test is not None
        assert one.test.metrics == again["metrics"]
        assert (one.test.loss, one.test.blind) == (again["loss"], again["blind"])
        assert one.test.n == 7
        rows = metrics(run, seconds=True)
        assert one.seconds == pytest.approx(float(rows[-1]["seconds"]), abs=0.06)
        losses = {int(r["step"]): float(r["train/loss"]) for r in rows if r["train/loss"]}
        assert dict(zip(one.train["step"], one.train["loss"], strict=True)) == pytest.approx(
            losses, rel=1e-5
        )
        checked = {int(r["step"]): float(r["val/fg_ari"]) for r in rows if r["val/fg_ari"]}
        assert dict(zip(one.val["step"], one.val["fg_ari"], strict=True)) == pytest.approx(
            checked, rel=1e-5
        )
        assert one.val["step"] == [2, 4, 6, 8, 10]
        best = min(zip(one.val["loss"], one.val["step"], strict=True))
        assert one.best_step == best[1]
        [part] = one.trained_on
        assert (part["from_step"], part["torch"]) == (0, torch.__version__)
        assert one.device == part["device"] != ""
        assert one.command.startswith(f"python -m paper table3 --variants {variant} --seeds 0 --st")
        assert "/" not in one.command
        assert read(folder / "out" / f"{variant}-0.json") == one


def test_standard_errors_are_those_of_the_scenes(whole: Whole) -> None:
    folder, found, _ = whole
    lines = (folder / "runs/table3/SA-0/evaluation.csv").read_text().splitlines()
    scenes = np.array(
        [float(line.split(",")[lines[0].split(",").index("fg_ari")]) for line in lines[1:]]
    )
    test = found["SA"].test
    assert test is not None
    assert test.metrics["fg_ari"] == pytest.approx(scenes.mean(), abs=1e-6)
    assert test.standard_errors["fg_ari"] == pytest.approx(scenes.std(ddof=1) / 7**0.5, abs=1e-6)


def test_weights_are_those_that_were_tested(whole: Whole) -> None:
    folder, found, _ = whole
    for variant in found:
        where = folder / "checkpoints" / weights_name("multi-dsprites", variant)
        model = ObjectDiscovery.from_pretrained(where)
        kept = state(folder / "runs/table3" / f"{variant}-0", "best")["state_dict"]
        expected = {name.removeprefix("model."): value for name, value in kept.items()}
        assert_same(dict(model.state_dict()), expected)
        test = found[variant].test
        assert test is not None
        # The folder of an export can be evaluated like a run.
        again = run_evaluate(
            Evaluate(where, device="cpu", out=folder / "again"), Console(quiet=True)
        )
        assert again["metrics"] == test.metrics
        page = (where / "README.md").read_text()
        assert f"FG-ARI {100 * test.metrics['fg_ari']:.1f} %" in page
        assert f"of step {found[variant].best_step}, which" in " ".join(page.split())


def test_pictures(whole: Whole) -> None:
    folder, _, _ = whole
    names = {path.name for path in (folder / "out").iterdir()}
    assert names == {"SA-0.json", "SA-MESH-0.json", "SA-0.png", "SA-MESH-0.png", "curves.svg"}
    sheets = [
        np.asarray(Image.open(folder / "out" / name)) for name in ("SA-0.png", "SA-MESH-0.png")
    ]
    assert sheets[0].shape == sheets[1].shape
    # The image, the truth and all captions are the same; what was found is not.
    same = (sheets[0] == sheets[1]).all(-1).mean()
    assert 0.3 < same < 0.99


def test_curves_of_both(whole: Whole, tmp_path: Path) -> None:
    folder, found, _ = whole
    loss, ari, miou = draw_curves({row: [one] for row, one in found.items()}).axes
    for variant, i in (("SA", 0), ("SA-MESH", 1)):
        one = found[variant]
        assert loss.lines[i].get_label() == variant
        for axes, name in ((ari, "fg_ari"), (miou, "fg_miou")):
            x, y = map(np.asarray, axes.lines[i].get_data())
            assert x.tolist() == one.val["step"]
            assert y.tolist() == pytest.approx([100 * value for value in one.val[name]])
        assert np.asarray(loss.lines[i].get_ydata()).tolist() == one.train["loss"]
    write_curves({row: [one] for row, one in found.items()}, tmp_path)
    assert (tmp_path / "curves.svg").read_bytes() == (folder / "out" / "curves.svg").read_bytes()
    # One that failed at its first step has none.
    write_curves({"SA": [replace(found["SA"], train={"step": []}, val={"step": []})]}, tmp_path)


def test_what_is_measured_stays(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, found, _ = whole
    monkeypatch.setattr(command, "_measure", None)
    again, said = measure(folder, variants=BOTH)
    assert only(again) == found
    assert said.count("is measured") == 2
    with pytest.raises(ValueError, match=r"SA-0\.json has --data.val-size 3, but got 4.*--overwr"):
        measure(folder, val_size=4)


def test_a_trained_run_is_tested_elsewhere(
    whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its folder alone; what is said of the training is of the machine that trained."""
    folder, found, _ = whole
    shutil.copytree(folder / "runs", tmp_path / "runs")
    monkeypatch.setattr(training, "run_train", None)
    for module in (training, command):
        monkeypatch.setattr(
            module, "environment", lambda device: {"device": "another", "torch": "9"}
        )
    again, _ = measure(tmp_path, variants=("SA-MESH",))
    again = only(again)
    assert list(again) == ["SA-MESH"]
    old, new = found["SA-MESH"], again["SA-MESH"]
    assert old.test is not None
    assert new.test is not None
    assert new.test.environment["device"] == "another"
    same = replace(new.test, environment=old.test.environment, seconds=old.test.seconds)
    assert replace(new, test=same) == old
    drawn = [(place / "out" / "SA-MESH-0.png").read_bytes() for place in (tmp_path, folder)]
    assert drawn[0] == drawn[1]


def test_the_file_of_a_run_comes_last(
    whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that has one is not done again, so that a kill must not leave out anything else."""
    folder, _, _ = whole
    shutil.copytree(folder / "runs", tmp_path / "runs")

    def write(path: Path, record: RunRecord) -> None:
        if record.row == "SA-MESH":
            raise KeyboardInterrupt
        before(path, record)

    before = command.write
    monkeypatch.setattr(command, "write", write)
    with pytest.raises(KeyboardInterrupt):
        measure(tmp_path, variants=BOTH)
    files = [*folder.glob("out/*.png"), *folder.glob("out/*.svg"), *folder.glob("checkpoints/*/*")]
    done = {path.relative_to(folder): path.read_bytes() for path in files}
    assert Path("out/curves.svg") in done
    assert {name: (tmp_path / name).read_bytes() for name in done} == done
    assert not (tmp_path / "out" / "SA-MESH-0.json").exists()


def test_stopped_and_moved_it_ends_with_the_same_weights(
    whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, found, _ = whole
    with monkeypatch.context() as patch:
        stop_at(patch, 5)
        with pytest.raises(SystemExit) as stopped:
            measure(tmp_path / "first", variants=("SA-MESH",))
    assert stopped.value.code == 128 + signal.SIGTERM
    assert not (tmp_path / "first" / "out").exists()
    moved = tmp_path / "second" / "runs"
    shutil.copytree(tmp_path / "first" / "runs", moved)
    monkeypatch.setattr(training, "environment", lambda device: {"device": "another", "torch": "9"})
    again = only(measure(tmp_path / "second", variants=("SA-MESH",))[0])
    run = Path("table3/SA-MESH-0")
    assert_same(state(moved / run), state(folder / "runs" / run))
    assert metrics(moved / run) == metrics(folder / "runs" / run)
    old, new = found["SA-MESH"], again["SA-MESH"]
    assert [part["from_step"] for part in new.trained_on] == [0, 6]
    assert new.device == f"{old.device}, then another"
    assert old.test is not None
    assert new.test is not None
    assert new.test.metrics == old.test.metrics
    assert (new.val, new.train, new.best_step) == (old.val, old.train, old.best_step)


def stop_at(patch: pytest.MonkeyPatch, step: int) -> None:
    """Be asked to stop while a step is computed."""
    before = Training.learn

    def learn(self: Any, batch: Any) -> None:
        if self.step == step:
            os.kill(os.getpid(), signal.SIGTERM)
        before(self, batch)

    patch.setattr(Training, "learn", learn)


@pytest.mark.parametrize("first", [6, 7])
def test_more_steps_go_on_from_the_end(
    whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int, long: bool
) -> None:
    # A validation is at 6, and none at 7.
    if first == 6 and not long:
        pytest.skip("in make soak")
    folder, found, _ = whole
    monkeypatch.setattr(command, "_EVERY", {"save_every": 2, "log_every": 2})
    monkeypatch.setattr(command.KINDS["table3"], "table", replace(BY_NAME["table3"], val_every=2))
    measure(tmp_path, variants=("SA",), steps=first)
    with pytest.raises(ValueError, match=f"SA-0.json has --steps {first}, but got 10"):
        measure(tmp_path, variants=("SA",))
    again = only(measure(tmp_path, variants=("SA",), overwrite=True)[0])
    run = Path("runs/table3/SA-0")
    assert_same(state(tmp_path / run), state(folder / run))
    assert [part["from_step"] for part in again["SA"].trained_on] == [0, first]
    assert again["SA"].steps == 10
    assert again["SA"].settings == found["SA"].settings
    with pytest.raises(ValueError, match=r"holds a run with --steps 10, but got 8.*--runs"):
        measure(tmp_path, variants=("SA",), steps=8, overwrite=True)


def test_other_settings_are_another_run(whole: Whole, tmp_path: Path) -> None:
    folder, _, _ = whole
    shutil.copytree(folder / "runs", tmp_path / "runs")
    with pytest.raises(ValueError, match=r"holds a run with --data\.train-size 8, but got 9"):
        measure(tmp_path, train_size=9)
    assert not (tmp_path / "out").exists()


def test_a_run_that_another_process_trains_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        stop_at(patch, 5)
        with pytest.raises(SystemExit):
            measure(tmp_path, variants=("SA",))
    folder = tmp_path / "runs" / "table3" / "SA-0"
    # What that process is writing.
    (folder / "checkpoints" / ".last.ckpt.1.1.part").write_text("half")
    monkeypatch.setattr(processes, "_PATIENCE_S", 0.0)
    monkeypatch.setattr(training, "environment", lambda device: {"device": "another"})
    lock = Lock(folder)
    lock.acquire()
    try:
        before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        with pytest.raises(ValueError, match=r"SA-0 is in use by another process"):
            measure(tmp_path, variants=("SA",))
        assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before
    finally:
        lock.release()


def test_a_run_that_fails_is_shown_as_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Training.losses

    def losses(self: Any, batch: Any) -> Any:
        found = before(self, batch)
        return {"loss": float("nan") * found["loss"]} if self.step == 6 else found

    monkeypatch.setattr(Training, "losses", losses)
    found, said = measure(tmp_path, variants=("SA",))
    [one] = found["SA"]
    assert (one.failed, one.test, one.best_step) == (6, None, None)
    assert one.val["step"] == [2, 4, 6]
    assert one.settings["hardware.precision"] == "32"
    assert "failed" in said
    assert not (tmp_path / "checkpoints").exists()
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"SA-0.json", "curves.svg"}
    assert "keeping" in measure(tmp_path, variants=("SA",))[1]


def test_a_kill_leaves_its_part_written_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it was killed before anything was saved: that part is done again."""
    names = iter(("one", "two", "three"))
    monkeypatch.setattr(training, "environment", lambda device: {"device": next(names)})
    settings = replace(command.settings_of(asked(tmp_path), "SA", 0), out=tmp_path / "run")

    def dies(*args: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(training, "run_train", dies)
        with pytest.raises(KeyboardInterrupt):
            training.train(settings, torch.device("cpu"), Console(quiet=True))
    found = training.train(settings, torch.device("cpu"), Console(quiet=True))
    assert found.trained_on == [{"from_step": 0, "device": "two"}]


def test_bad_records(tmp_path: Path, whole: Whole) -> None:
    folder, _, _ = whole
    values = json.loads((folder / "out" / "SA-0.json").read_text())
    for bad in ({}, values | {"test": None}, values | {"failed": 3}, values | {"trained_on": []}):
        (tmp_path / "SA-0.json").write_text(json.dumps(bad))
        with pytest.raises(ValueError, match=r"SA-0\.json holds no result"):
            records_in(tmp_path, ["SA"])


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_the_settings_are_the_papers_but_for_its_length(
    table: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    kind = command.KINDS[table.name]
    for row in kind.table.chosen(()):
        made = command.settings_of(kind(), row, 1)
        usual = table.rows[row].settings()
        steps = usual.steps if table.steps is None else table.steps
        every = {"val_every": min(table.val_every, steps // 5)}
        every |= {"save_every": 2500, "log_every": 250}
        assert made == replace(usual, seed=1, steps=steps, out=made.out, **every)
        assert made.out == Path("runs/reproduce") / table.name / f"{row}-1"
    with pytest.raises(ValueError, match="--steps is 0"):
        run_table(kind(steps=0))


def test_every_row_of_the_paper_is_in_a_table() -> None:
    trained = [row for table in TABLES for row in table.rows.values()]
    mine = [row for row in published_rows() if row.variant is not None and row.table != "Table 1"]
    assert [row for row in trained if row in published_rows()] == mine


def test_rows_by_their_names() -> None:
    table5 = BY_NAME["table5"]
    assert table5.chosen(("SA-MESH",)) == ["clevrer-s-SA-MESH", "clevrer-l-SA-MESH"]
    assert table5.chosen(("clevrer-l-SA-SH", "SA-SH")) == ["clevrer-l-SA-SH", "clevrer-s-SA-SH"]
    assert len(table5.chosen(())) == 10
    assert BY_NAME["table3"].chosen(()) == ["SA", "SA-SH", "SA-MESH"]
    assert BY_NAME["table3"].chosen(("SA-MESH-reuse",)) == ["SA-MESH-reuse"]
    with pytest.raises(ValueError, match=r"--variants has 'SA-EMD', expected rows of table4: SA, "):
        BY_NAME["table4"].chosen(("SA-EMD",))


# One row of each kind of task, and what its test has.
KINDS = {
    "table2": ("SA-EMD", "ap_0.0625", "clevr-properties"),
    "table2-appendix": ("SA", "ap_inf", "clevr-properties"),
    "table4": ("SA-SH", "fg_miou", "clevrtex"),
    "table5": ("clevrer-l-SA-learned-noise", "tc", "clevrer-l"),
    "ablations": ("SA-5-iterations", "fg_ari", "multi-dsprites"),
    "objective": ("SA-MESH-learned-objective", "nrmse", "random-objects"),
}


@pytest.mark.parametrize("table", KINDS)
def test_every_kind_of_task(table: str, tmp_path: Path) -> None:
    row, metric, task = KINDS[table]
    found, said = measure(tmp_path, table, variants=(row,), steps=2)
    [one] = found[row]
    assert one.test is not None
    assert metric in one.test.metrics
    assert metric in one.val
    assert (one.settings["task"], one.steps, one.best_step in (1, 2)) == (task, 2, True)
    assert one.command.startswith(f"python -m paper {table} --variants {row} --seeds 0 ")
    assert row in said
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        f"{row}-0.json",
        f"{row}-0.png",
        "curves.svg",
    }
    assert not (tmp_path / "checkpoints").exists()


def test_seeds_are_runs_of_one_row(whole: Whole, tmp_path: Path) -> None:
    folder, first, _ = whole
    shutil.copytree(folder / "runs", tmp_path / "runs")
    shutil.copytree(folder / "out", tmp_path / "out")
    found, said = measure(tmp_path, variants=("SA",), seeds=(0, 1))
    assert [one.seed for one in found["SA"]] == [0, 1]
    old, new = found["SA"]
    assert old == first["SA"]
    assert old.train["loss"] != new.train["loss"]
    assert {k for k, v in old.settings.items() if new.settings[k] != v} == {"seed"}
    assert new.test is not None
    assert old.test is not None
    # Samples are the same.
    assert new.test.blind == old.test.blind
    mean = 50 * (old.test.metrics["fg_ari"] + new.test.metrics["fg_ari"])  # pyright: ignore
    assert f"{mean:.1f} ± " in said
    assert not (tmp_path / "out" / "SA-1.png").exists()
    assert not (tmp_path / "checkpoints").exists()


def all_tables(folder: Path, **changes: Any) -> str:
    places: dict[str, Any] = {name: folder / name for name in ("runs", "checkpoints")}
    asked = TrainTables(results=folder / "results", device="cpu", **places, **changes)
    console = Console(file=StringIO(), width=80)
    run_tables(asked, console)
    return console.file.getvalue()  # pyright: ignore


@pytest.fixture
def two_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only Table 3 and the ablations, with small sizes."""
    kinds = {name: command.KINDS[name] for name in ("table3", "ablations")}
    for name, kind in kinds.items():
        few = dict(list(kind.table.rows.items())[-3:-1]) if name == "table3" else kind.table.rows
        table = replace(kind.table, steps=10)
        # Replaces what is computed once.
        table.__dict__["rows"] = few
        monkeypatch.setattr(kind, "table", table)
    monkeypatch.setattr(everything, "KINDS", kinds)
    small = command.settings_of

    def settings_of(asked: TrainTable, row: str, seed: int) -> Any:
        sizes = {name: SIZES[name] for name in SIZES if name != "steps"}
        return small(replace(asked, **sizes), row, seed)

    for module in (command, everything):
        monkeypatch.setattr(module, "settings_of", settings_of)


@pytest.mark.usefixtures("two_tables")
def test_all_tables_are_trained_one_seed_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = [("table3", "SA-MESH"), ("ablations", "SA-5-iterations")]
    every += [("ablations", "SA-learned-slot-initialisation")]
    in_order = [f"{t}/{row}-{seed}" for seed in (0, 1) for t, row in every]
    listed = all_tables(tmp_path, seeds=(0, 1), dry_run=True)
    assert listed.count("0 of 10") == 6
    assert "SA-MESH-reuse" not in listed
    assert all_tables(tmp_path, dry_run=True, more=True).count("0 of 10") == 4
    assert not list(tmp_path.iterdir())
    # Stopped in the second run, the first is measured.
    with monkeypatch.context() as patch:
        before = Training.learn

        def learn(self: Any, batch: Any) -> None:
            if (self.made.settings.folder.parent.name, self.step) == ("ablations", 5):
                os.kill(os.getpid(), signal.SIGTERM)
            before(self, batch)

        patch.setattr(Training, "learn", learn)
        with pytest.raises(SystemExit):
            all_tables(tmp_path, seeds=(0, 1))
    assert [path.stem for path in tmp_path.glob("results/*/*.json")] == ["SA-MESH-0"]
    listed = all_tables(tmp_path, seeds=(0, 1), dry_run=True)
    assert (listed.count("0 of 10"), listed.count("6 of 10")) == (4, 1)
    # A mistake is reported before anything is trained.
    bad = tmp_path / "results" / "ablations" / "SA-5-iterations-1.json"
    bad.parent.mkdir()
    bad.write_text("[]")
    with pytest.raises(ValueError, match=r"SA-5-iterations-1\.json holds no result"):
        all_tables(tmp_path, seeds=(0, 1))
    bad.unlink()
    other = tmp_path / "runs" / "ablations" / "SA-5-iterations-1"
    shutil.copytree(tmp_path / "runs" / "table3" / "SA-MESH-0", other)
    for dry_run in (True, False):
        with pytest.raises(ValueError, match=r"SA-5-iterations-1 holds a run with --"):
            all_tables(tmp_path, seeds=(0, 1), dry_run=dry_run)
    shutil.rmtree(other)
    assert len(list(tmp_path.glob("results/*/*.json"))) == 1
    with monkeypatch.context() as patch:
        made = count_sets(patch)
        said = all_tables(tmp_path, seeds=(0, 1))
    # All rows of both tables train on the same samples, and are validated on the same.
    assert made == [SIZES["train_size"], SIZES["val_size"]]
    written = [
        path.parent.name + "/" + path.stem
        for path in sorted(tmp_path.glob("results/*/*.json"), key=lambda p: p.stat().st_mtime_ns)
    ]
    assert written == in_order
    assert said.count("is measured:") == 0
    assert "Everything is measured" in all_tables(tmp_path, seeds=(0, 1))


@pytest.mark.usefixtures("two_tables")
def test_the_list_says_how_long_runs_may_take(
    whole: Whole, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "minutes" not in all_tables(tmp_path, dry_run=True)
    one = whole[1]["SA-MESH"]
    devices = [{"from_step": 0, "device": "a GPU"}]
    for seed, seconds in ((0, 600.0), (1, 1200.0)):
        made = replace(one, seed=seed, seconds=seconds, trained_on=devices)
        write(tmp_path / "results" / "table3" / f"SA-MESH-{seed}.json", made)
    # One run that has done 6 of its 10 steps, and one that has not begun.
    with monkeypatch.context() as patch:
        stop_at(patch, 5)
        with pytest.raises(SystemExit):
            all_tables(tmp_path)
    said = all_tables(tmp_path, dry_run=True)
    rows = [re.findall(r"(\d+ of 10|\S+-\S+)", line) for line in said.splitlines()]
    times = {row[-2]: row[-1] for row in rows if len(row) > 2}
    assert times == {"6 of 10": "4-8", "0 of 10": "10-20"}
    assert "(a GPU)" in said


def test_another_gradient_is_another_row(whole: Whole, tmp_path: Path) -> None:
    found, _ = measure(tmp_path, variants=("SA-MESH-detach",))
    [one], usual = found["SA-MESH-detach"], whole[1]["SA-MESH"]
    new = {name: x for name, x in one.settings.items() if usual.settings[name] != x}
    assert new == {"transport.grad": "straight_through"}
    assert one.train["loss"][0] == usual.train["loss"][0]
    assert one.train["loss"][-1] != usual.train["loss"][-1]
    assert one.command.startswith("python -m paper table3 --variants SA-MESH-detach")
    # Only the rows of the paper have weights.
    assert not (tmp_path / "checkpoints").exists()
    figure = draw_curves({"SA-MESH": [usual], **found})
    assert [line.get_linestyle() for line in figure.axes[0].get_lines()] == ["-", "--"]


def test_the_weights_of_every_task_are_small_enough_to_be_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.undo()
    kept = [row for t in TABLES for name, row in t.rows.items() if t.keeps_weights(name, 0)]
    assert sorted({row.task for row in kept}) == sorted(set(WORLD_TASKS) - {"random-objects"})
    assert len(kept) == 10
    for row in kept:
        model = experiment(row.settings()).fresh_model()
        assert 4 * sum(p.numel() for p in model.parameters()) < 3_950_000
