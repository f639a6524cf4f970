"""``python -m paper table1``: every cell is the run that it stands for."""

import json
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
import tyro
from rich.console import Console

from paper import COMMANDS, __main__
from paper.recorded import difference
from paper.replicas import trainer
from paper.table1 import (
    Table1,
    Table1Choice,
    Table1Emd,
    group,
    jobs,
    run_choice,
    run_emd_study,
    run_table1,
)
from paper.table1.choice import CANDIDATES, chosen, score, settings_of
from paper.table1.emd_study import PARTS
from paper.table1.record import SIGMAS, GroupRecord, read, summarise, write
from paper.table1.rows import BEYOND, BEYOND_MESH, base, beyond, paper_error
from slotmesh.training.published import changed, row_of
from slotmesh.training.stream import EvalBatches
from slotmesh.training.tasks import experiment

from ..training._oracle import train_plainly
from ._records import put, record

pytestmark = pytest.mark.usefixtures("one_thread")
Measured = tuple[Path, list[GroupRecord], str]
SMALL: dict[str, Any] = {
    "n_seeds": 1,
    "steps": 8,
    "batch_size": 2,
    "train_size": 8,
    "test_size": 3,
    "device": "cpu",
}


def tiny(kind: Any, folder: Path, **changes: Any) -> Any:
    settings = {**SMALL, "out": folder / "out", "runs": folder / "runs", **changes}
    return kind(**settings)


def quiet() -> Console:
    return Console(file=StringIO(), width=200)


def parsed(command: str) -> Any:
    """The settings that a recorded command stands for."""
    words = command.split()
    assert words[:3] == ["python", "-m", "paper"]
    return tyro.cli(COMMANDS[words[3]][0], args=words[4:])


def said(console: Console) -> str:
    return console.file.getvalue()  # pyright: ignore


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Measured:
    folder, console = tmp_path_factory.mktemp("table1"), quiet()
    settings = tiny(Table1, folder, n_seeds=2, first_seed=3, variants=("SA-SH", "SA-MESH"))
    return folder, run_table1(settings, console), said(console)


def test_a_cell_is_the_run_that_it_stands_for(
    measured: Measured,
) -> None:
    _, records, _ = measured
    for one in records:
        assert one.steps == [2, 4, 6, 8]
        assert [(run.sigma, run.seed) for run in one.runs] == [
            (sigma, seed) for sigma in SIGMAS for seed in (3, 4)
        ]
        start = tiny(Table1, Path()).sized(base(one.variant))
        for run in (one.runs[1], one.runs[4]):
            own = replace(start, seed=run.seed, data=replace(start.data, sigma=run.sigma))
            assert run.errors[-1] == pytest.approx(error_alone(own), rel=1e-3)
            # Where the rate is constant, a shorter run is the beginning of a longer one.
            if not own.optim.cosine:
                assert run.errors[1] == pytest.approx(error_alone(replace(own, steps=4)), rel=1e-3)


def error_alone(settings: Any) -> float:
    made = experiment(settings)
    model, metrics = train_plainly(made), made.metrics()
    source, n = made.source("test", torch.device("cpu"))
    assert n == 3
    batches = EvalBatches(source, n, batch_size=2)
    with torch.inference_mode():
        for i, sample in enumerate(batches):
            made.judge(model, sample, made.noise("test", i, total=batches.totals[i]), metrics)
    return float(metrics["nrmse"].compute())


def test_the_files_hold_what_was_measured_and_how(
    measured: Measured,
) -> None:
    folder, records, _ = measured
    assert sorted(path.name for path in (folder / "out").iterdir()) == [
        "SA-MESH.json",
        "SA-SH.json",
    ]
    for one in records:
        path = folder / "out" / f"{one.variant}.json"
        assert read(path) == one
        assert path.stat().st_size < 4_000
        assert one.settings["transport.lr" if one.variant == "SA-MESH" else "optim.lr"] > 0
        assert not {"seed", "data.sigma", "hardware.threads", "out"} & one.settings.keys()
        assert one.environment["torch"] == torch.__version__
        assert one.seconds > 0
        assert (one.split, one.n) == ("test", 3)


def test_the_command_makes_the_file_again(measured: Measured) -> None:
    _, records, _ = measured
    for one in records:
        again = parsed(one.command)
        asked = tiny(Table1, Path(), n_seeds=2, first_seed=3, variants=(one.variant,))
        assert again == replace(asked, out=None, runs=Path("runs/reproduce"), device="auto")


def test_it_says_what_it_does(measured: Measured) -> None:
    _, records, text = measured
    assert "SA-MESH, step 4: sigma 1: " in text
    for one in records:
        assert f"{one.variant}: {one.seconds:.0f} s. Written to " in text
        for sigma in SIGMAS:
            assert one.at(sigma).text in text
    for variant, sigma in (("SA-EMD", 0.01), ("SA", 0.1)):
        assert f"{paper_error(variant, sigma):.2f}" in text


def test_what_is_measured_stays(measured: Measured) -> None:
    folder, records, _ = measured
    console = quiet()
    asked = tiny(Table1, folder, n_seeds=2, first_seed=3, variants=("SA-SH",), device="auto")
    assert run_table1(asked, console) == records[:1]
    assert "SA-SH is measured" in said(console)
    for changes, why in (
        ({"steps": 9}, "SA-SH.json has --steps 8, but got 9"),
        ({"first_seed": 4}, r"SA-SH.json has the seeds \[3, 4\] on test sets, but got \[4, 5\]"),
        ({"beyond": True}, "has --model.mlp-dim 64, but got 256"),
    ):
        with pytest.raises(ValueError, match=why):
            run_table1(replace(asked, **changes), quiet())


def test_overwriting_measures_again(measured: Measured) -> None:
    folder, records, _ = measured
    path = folder / "out" / "SA-SH.json"
    before = path.read_text()
    write(path, replace(records[0], seconds=1e6))
    asked = tiny(Table1, folder, n_seeds=2, first_seed=3, variants=("SA-SH",), overwrite=True)
    [again] = run_table1(asked, quiet())
    path.write_text(before)
    assert again.runs == records[0].runs
    assert again.seconds < 1e6


class Killed(Exception):  # noqa: N818 (it says what happened)
    pass


@pytest.mark.parametrize("killed_at", [2, 4])
def test_what_was_stopped_resumes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    measured: Measured,
    killed_at: int,
) -> None:
    asked = tiny(Table1, tmp_path, n_seeds=2, first_seed=3, variants=("SA-SH",))
    old, calls = group.evaluate_replicas, []

    def judge(*args: Any, **given: Any) -> Any:
        calls.append(1)
        if len(calls) == killed_at:
            raise Killed
        return old(*args, **given)

    monkeypatch.setattr(group, "evaluate_replicas", judge)
    with pytest.raises(Killed):
        run_table1(asked, quiet())
    assert not (tmp_path / "out" / "SA-SH.json").exists()
    [found] = run_table1(asked, quiet())
    # All four evaluations, and the one that was cut short.
    assert len(calls) == 5
    assert found.runs == measured[1][0].runs
    (tmp_path / "out" / "SA-SH.json").unlink()
    assert run_table1(asked, quiet()) == [found]
    assert len(calls) == 5
    (tmp_path / "out" / "SA-SH.json").unlink()
    (tmp_path / "runs" / "out" / "SA-SH" / "errors.json").unlink()
    with pytest.raises(ValueError, match=r"holds a checkpoint, but no errors of step 2. Remove"):
        run_table1(asked, quiet())


def test_a_run_that_fails_is_shown_as_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, judged = trainer.losses_of, group.evaluate_replicas
    spoilt = torch.tensor([0.0, 0.0, float("nan"), 0.0, 0.0, 0.0])
    steps: list[int] = []

    def losses_of(*args: Any) -> torch.Tensor:
        steps.append(1)
        return old(*args) + (spoilt if len(steps) > 3 else 0.0)

    def judge(*args: Any, **given: Any) -> torch.Tensor:
        # A model can also fail on test sets alone; once is enough.
        off = torch.tensor([0.0] * 5 + [float("inf") if len(steps) == 6 else 0.0])
        return judged(*args, **given) + off

    monkeypatch.setattr(trainer, "losses_of", losses_of)
    monkeypatch.setattr(group, "evaluate_replicas", judge)
    console = quiet()
    [found] = run_table1(tiny(Table1, tmp_path, n_seeds=2, variants=("SA",)), console)
    assert [run.failed for run in found.runs] == [None, None, 3, None, None, 6]
    assert [error is None for error in found.runs[2].errors] == [False, True, True, True]
    assert [error is None for error in found.runs[5].errors] == [False, False, True, True]
    assert found.at(1.0).failed == 0
    assert found.at(0.1).text == "failed [" + found.at(0.1).text.split("[")[1]
    assert found.at(0.1).text.endswith("-failed], 1 of 2 failed")
    assert "1 of 2 failed" in said(console)
    assert read(tmp_path / "out" / "SA.json") == found


def test_summaries() -> None:
    found = summarise([0.3, 0.1, 0.2, None, 0.4])
    assert (found.median, found.low, found.n, found.failed) == (0.3, 0.1, 5, 1)
    assert found.text == "0.300 [0.100-failed], 1 of 5 failed"
    assert summarise([None, 0.1, None]).text == "failed [0.100-failed], 2 of 3 failed"
    assert record("SA", (0.4, 0.5, 0.6)).at(0.1, 0).text == "1.000 [0.960-1.040]"


@pytest.mark.parametrize("spoil", ["{", "[]", '{"runs": []}', "errors", "steps"])
def test_other_files_are_no_results(tmp_path: Path, spoil: str) -> None:
    path = tmp_path / "SA.json"
    write(path, record("SA", (0.4, 0.5, 0.6)))
    values = json.loads(path.read_text())
    if spoil == "errors":
        values["runs"][3]["errors"].pop()
    path.write_text(spoil if spoil not in values and spoil != "errors" else json.dumps(values))
    if spoil == "steps":
        path.write_text(json.dumps(values | {"steps": [1]}))
    with pytest.raises(ValueError, match=r"SA\.json holds no result of `python -m paper`"):
        read(path)


def test_candidates_are_measured_on_seeds_and_sets_of_their_own(tmp_path: Path) -> None:
    names = ("1e-3-constant", "3e-3-cosine")
    asked = tiny(Table1Choice, tmp_path, variants=("SA",), test_size=4)
    console = quiet()
    found = run_choice(asked, console)
    assert [one.name for one in found] == [f"SA-{name}" for name in names]
    assert all(one.seeds == [100] and one.split == "val" for one in found)
    assert [one.settings["optim.lr"] for one in found] == [1e-3, 3e-3]
    best = min(found, key=score)
    assert f"SA, {best.name.removeprefix('SA-')} (chosen)" in said(console)
    assert chosen(tmp_path / "out", "SA") == best.name.removeprefix("SA-")
    again = parsed(found[0].command)
    assert (again.variants, again.candidates) == (("SA",), ("1e-3-constant",))
    made = settings_of(tmp_path / "out", "SA")
    assert jobs.shared(asked.sized(made)) == best.settings
    # The table takes them from there.
    table = tiny(Table1, tmp_path, out=tmp_path / "table", variants=("SA",), choice=asked.out)
    [row] = run_table1(table, quiet())
    assert row.settings["optim.lr"] == best.settings["optim.lr"]
    assert "choice" not in row.command


def test_rules_of_choice(tmp_path: Path) -> None:
    near, far = (0.44, 0.50, 0.66), (0.30, 0.53, 0.65)
    put(tmp_path, "SA-1e-3-constant", "SA", far)
    assert chosen(tmp_path, "SA") is None
    put(tmp_path, "SA-3e-3-cosine", "SA", near)
    assert chosen(tmp_path, "SA") == "3e-3-cosine"
    assert score(read(tmp_path / "SA-3e-3-cosine.json")) == pytest.approx(0.03)
    errors = [(0.20, 0.30, 0.40), (0.20, 0.30, None), (0.28, 0.28, 0.28), *[(0.9, 0.9, 0.9)] * 3]
    for name, found in zip(CANDIDATES["SA-MESH"], errors, strict=True):
        put(tmp_path, f"SA-MESH-{name}", "SA-MESH", found)
    assert chosen(tmp_path, "SA-MESH") == "lambda-1-detach-3e-3-cosine"
    for name in CANDIDATES["SA-SH"]:
        put(tmp_path, f"SA-SH-{name}", "SA-SH", (None, 0.3, 0.4))
    assert chosen(tmp_path, "SA-SH") is None
    with pytest.raises(ValueError, match=r"candidates of SA-SH are measured, or all failed\. Run"):
        settings_of(tmp_path, "SA-SH")
    assert settings_of(tmp_path, "SA-EMD") == base("SA-EMD")


def test_candidates_differ() -> None:
    for variant, candidates in CANDIDATES.items():
        kinds = [jobs.shared(changed(base(variant), c)) for c in candidates.values()]
        assert all(one != other for i, one in enumerate(kinds) for other in kinds[:i])


def test_parts_of_emd(tmp_path: Path) -> None:
    asked = tiny(Table1Emd, tmp_path, parts=("approximate", "detached"), steps=2)
    found = run_emd_study(asked, quiet())
    assert [one.settings["transport.approximate"] for one in found] == [0.01, None]
    assert [one.settings["transport.combine"] for one in found] == ["sum", "detached"]
    usual = jobs.shared(asked.sized(base("SA-EMD")))
    for part, (changes, _) in PARTS.items():
        assert all(usual[name] != value for name, value in changes.items()), part
    for one in found:
        differ = {name for name, value in one.settings.items() if usual[name] != value}
        assert differ == set(PARTS[one.name][0])  # pyright: ignore
        assert one.command.startswith(f"python -m paper table1-emd --parts {one.name} ")


def test_beyond_is_the_same_for_all_and_no_row_of_the_paper(tmp_path: Path) -> None:
    for variant in ("SA", "SA-SH", "SA-EMD", "SA-MESH"):
        usual, other = jobs.shared(base(variant)), jobs.shared(beyond(variant))
        own = BEYOND_MESH if variant == "SA-MESH" else {}
        assert other == usual | BEYOND | own
        assert BEYOND.keys() <= usual.keys()
        assert row_of(base(variant)) is not None
        assert row_of(beyond(variant)) is None
    [found] = run_table1(tiny(Table1, tmp_path, variants=("SA-SH",), beyond=True), quiet())
    assert found.settings["model.head"]
    assert found.command.endswith("--beyond")
    # All that depends on sigma is taken out: the same sets give the same errors.
    first, *rest = [run.errors for run in found.runs]
    assert all(errors == pytest.approx(first, rel=1e-3) for errors in rest)


def test_wrong_settings(tmp_path: Path) -> None:
    for kind, run, changes, why in (
        (Table1, run_table1, {"n_seeds": 0}, "--n-seeds is 0, expected at least 1"),
        (Table1, run_table1, {"first_seed": -1}, "--first-seed is -1, expected at least 0"),
        (Table1, run_table1, {"steps": 0}, "--steps is 0, expected at least 1"),
        (Table1, run_table1, {"test_size": 0}, "--data.test-size is 0"),
        (Table1, run_table1, {"device": "tpu"}, "--device is 'tpu'"),
        (
            Table1,
            run_table1,
            {"beyond": True, "choice": tmp_path},
            "Got both --choice",
        ),
        (Table1, run_table1, {"choice": tmp_path}, "not all candidates of SA are measured"),
        (Table1Choice, run_choice, {"candidates": ("x",)}, "--candidates has 'x', expected some"),
    ):
        with pytest.raises(ValueError, match=why):
            run(tiny(kind, tmp_path, **changes), quiet())
    assert not (tmp_path / "out").exists()


def test_the_module_runs_the_command_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        __main__.main([])
    said = capsys.readouterr().err
    assert "Expected one of {table1, table1-choice" in said
    assert "run python -m paper --help" in said
    put(tmp_path / "out", "SA", "SA", (0.4, 0.5, 0.6))
    __main__.main(["table1", "--variants", "SA", "--out", str(tmp_path / "out"), "--device", "cpu"])
    assert "SA is measured" in capsys.readouterr().out
    with pytest.raises(SystemExit) as end:
        __main__.main(["table1", "--n-seeds", "0"])
    assert end.value.code == 1
    assert "python -m paper: --n-seeds is 0, expected at least 1." in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], *([name] for name in COMMANDS)])
def test_help_fits_80_columns(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as end:
        __main__.main([*words, "--help"])
    assert end.value.code == 0
    said = capsys.readouterr().out
    assert said.startswith(f"usage: {' '.join(['python -m paper', *words])} ")
    # The usage is one line, however many choices it lists.
    assert max(len(line) for line in said.splitlines() if "usage:" not in line) <= 80


def test_a_result_is_older_than_a_setting() -> None:
    old = {"seed": 1, "transport.lr": 2.0}
    assert difference(old, old | {"transport.grad": "straight_through"}) is None
    other = difference(old, old | {"transport.grad": "implicit"})
    assert other == ("transport.grad", "straight_through", "implicit")
    assert difference(old, {"seed": 1}) == ("transport.lr", 2.0, None)
    assert difference(old, {"seed": 1}, ignore=("transport.lr",)) is None
