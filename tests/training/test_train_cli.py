"""``slotmesh train`` as a person meets it."""

import json
import re
import shlex
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from slotmesh.cli import main
from slotmesh.training import variants
from slotmesh.training.loop import run_train
from slotmesh.training.settings import Settings
from slotmesh.training.tasks import TASKS, preset

from ._commands import run
from ._jobs import flags, metrics, tiny

VARIANTS = [(task, variant) for task, kind in TASKS.items() for variant in kind.variants()]


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """What would have been run."""
    found: list[Settings] = []
    monkeypatch.setattr("slotmesh.training.loop.run_train", found.append)
    return found


def plain_text(text: str) -> str:
    """Without boxes and line breaks."""
    return re.sub(r"[\s│╭╮╰╯─]+", " ", text)


@pytest.mark.parametrize(("task", "variant"), VARIANTS)
def test_a_variant_and_a_preset_are_where_settings_start(
    parsed: list[Settings], task: str, variant: str
) -> None:
    assert run("train", task, "--variant", variant) == 0
    assert run("train", task, "--preset=paper", f"--variant={variant}", "--seed", "3") == 0
    quick, paper = parsed
    assert quick == preset(task, variant)
    assert paper == replace(preset(task, variant, "paper"), seed=3)


@pytest.mark.parametrize("task", TASKS)
def test_a_task_needs_no_flag(parsed: list[Settings], task: str) -> None:
    assert run("train", task) == 0
    assert parsed == [preset(task)]


def test_a_step_of_mesh_takes_the_place_of_lr(
    parsed: list[Settings], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("train", "multi-dsprites", "--transport.step", "1") == 0
    assert run("train", "multi-dsprites", "--transport.step=None") == 0
    assert (parsed[0].transport.lr, parsed[0].transport.step) == (None, 1.0)
    assert parsed[1] == preset("multi-dsprites")
    assert run("train", "multi-dsprites", "--transport.step", "1", "--transport.lr", "2") == 0
    with pytest.raises(ValueError, match=r"^--transport: got both --transport.lr 2.0 and --trans"):
        parsed[2].check()


@pytest.mark.parametrize("task", TASKS)
def test_help_describes_and_does_not_speak_of_tools(
    task: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("train", task, "--help") == 0
    assert "pyright" not in capsys.readouterr().out


@pytest.mark.parametrize("task", TASKS)
def test_help_flows(
    task: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run("train", task, "--help") == 0
    # Without the frame, which not every output gets.
    lines = [line.strip("│|").rstrip() for line in capsys.readouterr().out.splitlines()]
    start, compared = 7 * " ", 0
    for line, following in pairwise(lines):
        if line.startswith(start) and following.startswith(start):
            # No line ends before its next word would not fit.
            assert len(f"│{line} {following.split()[0]} │") > 80, line
            compared += 1
    assert compared > 10


@pytest.mark.parametrize("task", TASKS)
def test_help_is_complete(
    task: str, parsed: list[Settings], capsys: pytest.CaptureFixture[str]
) -> None:
    variant = TASKS[task].variants()[0]
    start = preset(task, variant, "paper")
    assert run("train", task, "--variant", variant, "--preset", "paper", "--help") == 0
    text = plain_text(capsys.readouterr().out)
    assert f"--steps INT Number of training steps. (default: {start.steps})" in text
    assert f"(default: {variant})" in text
    for group in ("data", "model", "transport", "optim", "hardware"):
        for name in vars(getattr(start, group)):
            flag = f"--{group}.{name}".replace("_", "-")
            # Every flag has a sentence and a default.
            described = re.search(rf"{flag}[ ,].*?[a-z].*?\(default: .*?\)", text)
            assert described, flag
    mesh = [
        name
        for name in vars(variants.VARIANTS["SA-MESH"].transport())
        if name not in vars(start.transport)
    ]
    assert not [name for name in mesh if f"--transport.{name}".replace("_", "-") + " " in text]
    assert not parsed


def test_help_names_every_task(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train", "--help") == 0
    text = capsys.readouterr().out
    assert all(task in text for task in TASKS)
    assert run("--help") == 0
    text = capsys.readouterr().out
    assert all(command in text for command in ("train", "evaluate", "report", "export", "data"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("random-objects", "--data.root", "data"), "--data.root"),
        (("random-objects", "--steps", "many"), "--steps"),
        (("random-objects", "--model.init", "zeros"), "--model.init"),
        (("clevr",), "Did you mean clevrtex?"),
        (("clevr-property",), "Did you mean clevr-properties?"),
        (("sorting",), "Expected one of random-objects, "),
    ],
)
def test_flags_of_others_are_refused(
    words: tuple[str, ...], said: str, parsed: list[Settings], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("train", *words) == 2
    assert not parsed
    assert said in capsys.readouterr().err


def test_the_command_is_kept_where_it_was_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was typed, whatever program this is."""
    monkeypatch.setattr(sys, "argv", ["/usr/lib/ipykernel_launcher.py", "-f", "kernel.json"])
    words = flags(tiny("random-objects", "SA", tmp_path / "a run", steps=1))
    main(words)
    main(["evaluate", str(tmp_path / "a run"), "--n", "2", "--device", "cpu"])
    trained = json.loads((tmp_path / "a run/environment.json").read_text())
    assert trained["command"] == shlex.join(["slotmesh", *words])
    tested = json.loads((tmp_path / "a run/evaluation.json").read_text())["environment"]
    assert tested["command"] == f"slotmesh evaluate '{tmp_path}/a run' --n 2 --device cpu"
    run_train(tiny("random-objects", "SA", tmp_path / "other", steps=1))
    assert "command" not in json.loads((tmp_path / "other/environment.json").read_text())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("clevrtex", "--variant", "SB"), "--variant is 'SB', expected one of SA, SA-SH, SA-EMD"),
        (("clevrtex", "--variant", "MESH"), "--variant is 'MESH', expected one of"),
        (("clevrtex", "--preset", "slow"), "--preset is 'slow', expected quick or paper"),
        (("clevrtex", "--data.root", "[/gone]"), "--data.root is [/gone], which does not exist"),
        (("random-objects", "--transport.n-iters", "0"), "--transport.n-iters is 0"),
        (("random-objects", "--variant", "SA", "--transport.lr", "3"), "SA has no lr. SA-MESH has"),
        (("clevrtex", "--variant", "SA-SH", "--transport.n-steps=3"), "SA-SH has no n-steps"),
        (("random-objects", "--transport.eps", "0.1"), "SA-MESH has no eps. SA"),
        (("clevrer-s", "--transition.std", "0.1"), "SA-MESH has no std. SA-fixed-noise has it"),
        (
            ("clevrer-s", "--variant", "SA-fixed-noise", "--transition.kl-weight", "1"),
            "SA-fixed-noise has no kl-weight. SA-learned-noise has it",
        ),
    ],
)
def test_a_wrong_setting_is_one_line(
    words: tuple[str, ...],
    said: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run("train", *words) == 1
    error = capsys.readouterr().err.strip()
    assert error.startswith("slotmesh: ")
    assert said in error
    assert len(error.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_the_last_of_two_counts(parsed: list[Settings]) -> None:
    words = ("--variant", "SA", "--variant=SA-SH", "--preset", "paper", "--preset", "quick")
    assert run("train", "clevrtex", *words) == 0
    assert parsed == [preset("clevrtex", "SA-SH")]


@pytest.mark.parametrize("task", TASKS)
def test_all_settings_can_be_given(parsed: list[Settings], task: str, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"optim__clip": 0.5, "optim__cosine": False, "model__n_iters": 2}
    settings = tiny(task, "SA-MESH", tmp_path / "run", seed=4, transport__lr=2.5, **changes)
    assert run(*flags(settings)) == 0
    assert parsed == [settings]


def test_from_training_to_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One task, all of its commands; the folder has brackets, which are no markup."""
    folder = tmp_path / "a [/b] c"
    words = flags(tiny("random-objects", "SA-MESH", folder, steps=4, val_every=2))
    assert run(*words) == 0
    said = capsys.readouterr().out
    assert f"Trained: {folder}. Next: slotmesh evaluate {shlex.quote(str(folder))}" in said
    assert "step 2/4  loss" in said
    assert "step 4/4  loss" in said
    assert len(metrics(folder)) == 4
    assert run("evaluate", str(folder), "--device", "cpu") == 0
    said = capsys.readouterr().out
    value = json.loads((folder / "evaluation.json").read_text())["metrics"]["nrmse"]
    assert f"{value:.4g}" in said
    assert str(folder / "evaluation.json") in said
    assert run("export", str(folder), "--out", str(tmp_path / "out")) == 0
    assert f'SetCopier.from_pretrained("{tmp_path / "out"}")' in capsys.readouterr().out
    assert run("evaluate", str(tmp_path / "out"), "--device", "cpu") == 0


def test_the_next_command_can_be_typed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "it's [my] rün"
    assert run(*flags(tiny("random-objects", "SA", folder, steps=1, val_every=1))) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert shlex.split(line.partition("Next: ")[2]) == ["slotmesh", "evaluate", str(folder)]
