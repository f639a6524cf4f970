"""The folder of a run: opened again, refused where it is damaged, never run as code."""

import json
import os
import pickle
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from slotmesh.cli import main
from slotmesh.environment import environment
from slotmesh.training.loop import run_train
from slotmesh.training.runs import load_checkpoint, open_run, prepare
from slotmesh.training.settings import Settings, plain

from ._jobs import change, flags, tiny


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Settings, dict[str, bytes]]:
    """Settings of a finished run, and its files."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    start = tiny("random-objects", "SA-MESH", folder, steps=4, val_every=2)
    run_train(start, Console(file=StringIO()))
    files = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
    return start, files


@pytest.fixture
def run(made: tuple[Settings, dict[str, bytes]], tmp_path: Path) -> Settings:
    """The settings of a copy of the run, to be damaged."""
    start, files = made
    for name, content in files.items():
        path = tmp_path / "run" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return replace(start, out=tmp_path / "run")


def again(settings: Settings) -> str:
    """Train, and what is said."""
    out = StringIO()
    run_train(settings, Console(file=out, width=500))
    return out.getvalue()


# ---- a run that is whole ----


def test_a_run_s_folder(run: Settings) -> None:
    folder = run.folder
    assert {p.name for p in folder.iterdir()} == {
        "settings.json",
        "environment.json",
        "metrics.csv",
        "tensorboard",
        "checkpoints",
        "pictures",
    }
    assert {p.name for p in (folder / "checkpoints").iterdir()} == {
        "last.ckpt",
        "previous.ckpt",
        "best.ckpt",
    }
    assert {p.name for p in (folder / "pictures").iterdir()} == {
        "step-000002.png",
        "step-000004.png",
    }
    kept = json.loads((folder / "settings.json").read_text())
    assert kept == plain(replace(run, out=None))
    found = json.loads((folder / "environment.json").read_text())
    assert {*found} == {*environment()}, "no command line ran it"
    assert found["torch"] == torch.__version__


def test_it_opens_by_folder_and_by_checkpoint(run: Settings) -> None:
    by_folder = open_run(run.folder)
    assert by_folder.checkpoint.name == "best.ckpt"
    assert by_folder.name == "random-objects SA-MESH seed 0"
    assert by_folder.settings == replace(run, out=None)
    for name in ("last", "best"):
        path = run.folder / "checkpoints" / f"{name}.ckpt"
        one = open_run(path)
        assert (one.folder, one.checkpoint) == (run.folder, path)
        weights = load_checkpoint(path)["state_dict"]
        for key, value in one.load_model().state_dict().items():
            assert torch.equal(value, weights[f"model.{key}"])
    assert not by_folder.load_model().training
    moved = run.folder.parent / "moved.ckpt"
    (run.folder / "checkpoints" / "last.ckpt").rename(moved)
    assert open_run(moved).folder == moved.parent


def test_a_run_whose_dataset_is_elsewhere_opens(run: Settings, tmp_path: Path) -> None:
    start = tiny("clevrtex", "SA", tmp_path / "other", data__root=Path("not/here"))
    (tmp_path / "other" / "checkpoints").mkdir(parents=True)
    values = plain(start) | {"out": None}
    (tmp_path / "other" / "settings.json").write_text(json.dumps(values))
    (tmp_path / "other" / "checkpoints" / "last.ckpt").write_bytes(b"")
    opened = open_run(tmp_path / "other")
    assert opened.settings.data.root == Path("not/here")
    with pytest.raises(ValueError, match=r"--data.root is not/here, which does not exist"):
        opened.experiment.source("test", torch.device("cpu"))


def test_a_finished_run_started_again_does_nothing(run: Settings) -> None:
    before = {p: p.read_bytes() for p in run.folder.rglob("*") if p.is_file()}
    said = again(run)
    assert "Trained" in said
    after = {p: p.read_bytes() for p in run.folder.rglob("*") if p.is_file()}
    environment = run.folder / "environment.json"
    assert {k: v for k, v in after.items() if k != environment} == {
        k: v for k, v in before.items() if k != environment
    }


@pytest.mark.parametrize(
    ("name", "value", "flag"),
    [
        ("steps", 5, "--steps 4, but got 5"),
        ("seed", 1, "--seed 0, but got 1"),
        ("val_every", 3, "--val-every 2, but got 3"),
        ("data__batch_size", 2, "--data.batch-size 4, but got 2"),
        ("data__train_size", None, "--data.train-size 18, but got None"),
        ("model__mlp_dim", 9, "--model.mlp-dim 8, but got 9"),
        ("optim__clip", 1.0, "--optim.clip None, but got 1.0"),
        ("transport__lr", 2.0, "--transport.lr 1.0, but got 2.0"),
        ("hardware__precision", "bf16", "--hardware.precision 32, but got bf16"),
    ],
)
def test_other_settings_are_refused(run: Settings, name: str, value: Any, flag: str) -> None:
    before = (run.folder / "settings.json").read_bytes()
    with pytest.raises(ValueError, match=rf"holds a run with {flag}.*--out.*--overwrite"):
        again(change(run, **{name: value}))
    assert (run.folder / "settings.json").read_bytes() == before


def test_another_variant_is_refused(run: Settings) -> None:
    with pytest.raises(ValueError, match="holds a run with --variant SA-MESH, but got SA"):
        again(tiny("random-objects", "SA", run.folder, steps=4, val_every=2))


@pytest.mark.parametrize(
    ("name", "value"), [("save_every", 1), ("log_every", 1), ("hardware__threads", None)]
)
def test_what_may_change(run: Settings, name: str, value: Any) -> None:
    assert "Trained" in again(change(run, **{name: value}))


def test_workers_may_change(tmp_path: Path) -> None:
    start = tiny("clevrtex", "SA", tmp_path / "run")
    prepare(start)
    (tmp_path / "run/checkpoints/last.ckpt").write_bytes(b"")
    prepare(change(start, data__workers=5))
    with pytest.raises(ValueError, match=r"--data.size 32, but got 40"):
        prepare(change(start, data__size=40))


def test_before_the_first_checkpoint_settings_may_change(tmp_path: Path) -> None:
    """Nothing is lost by it: a mistake seen at the start can be mended."""
    start = tiny("random-objects", "SA", tmp_path / "run")
    prepare(start)
    prepare(change(start, steps=7))
    assert json.loads((tmp_path / "run/settings.json").read_text())["steps"] == 7


def test_overwrite_starts_anew(run: Settings) -> None:
    (run.folder / "mine.txt").write_text("kept")
    (run.folder / "evaluation.json").write_text("{}")
    (run.folder / "failure").mkdir()
    said = again(change(run, seed=1, overwrite=True))
    assert "Resuming" not in said
    assert load_checkpoint(run.folder / "checkpoints/last.ckpt")["global_step"] == 4
    kept = json.loads((run.folder / "settings.json").read_text())
    assert (kept["seed"], kept["overwrite"]) == (1, False)
    assert (run.folder / "mine.txt").read_text() == "kept"
    assert not (run.folder / "evaluation.json").exists()
    assert not (run.folder / "failure").exists()
    # The same words again would start anew again; without the flag it is a finished run.
    assert "Trained" in again(change(run, seed=1))


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    """Also with --overwrite, and also where they have the names of a run's."""
    mine = tmp_path / "run" / "pictures" / "cat.png"
    mine.parent.mkdir(parents=True)
    mine.write_text("a cat")
    start = tiny("random-objects", "SA", tmp_path / "run")
    with pytest.raises(ValueError, match=r"holds other files, expected an empty folder.*--out"):
        prepare(start)
    prepare(change(start, overwrite=True))
    assert mine.read_text() == "a cat"


def test_what_a_start_leaves_that_failed(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".settings.json.part").write_text("{")
    prepare(tiny("random-objects", "SA", tmp_path / "run"))


def test_an_export_is_no_place_for_a_run(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    for overwrite in (False, True):
        with pytest.raises(ValueError, match="holds an export"):
            prepare(tiny("random-objects", "SA", tmp_path, overwrite=overwrite))


# ---- a run that is damaged ----


class Hostile:
    """Runs a command when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.mark}",)


@pytest.mark.parametrize("container", ["torch", "pickle 2", "pickle 5", "inside"])
def test_a_hostile_checkpoint_is_refused_and_not_run(
    run: Settings, tmp_path: Path, container: str, capsys: pytest.CaptureFixture[str]
) -> None:
    mark, last = tmp_path / "ran", run.folder / "checkpoints" / "last.ckpt"
    good = torch.load(last, weights_only=True)
    if container.startswith("pickle"):
        last.write_bytes(pickle.dumps(Hostile(mark), protocol=int(container[-1])))
    elif container == "torch":
        torch.save(Hostile(mark), last)
    else:
        torch.save(good | {"global_step": 2, "more": Hostile(mark)}, last)
    (run.folder / "checkpoints" / "best.ckpt").write_bytes(last.read_bytes())
    with pytest.raises(ValueError, match=r"is refused.*could run code"):
        open_run(last)
    with pytest.raises(ValueError, match=r"is refused.*could run code"):
        open_run(run.folder).load_model()
    # To go on from it, and every other command.
    for words in (flags(run), ["evaluate", str(run.folder)], ["evaluate", str(last)]):
        with pytest.raises(SystemExit) as end:
            main(words)
        assert end.value.code == 1
        error = capsys.readouterr().err
        assert "is refused" in error
        assert len(error.strip().splitlines()) == 1
    assert not mark.exists()
    # The check can fail: this is what a plain load would have done.
    if container.startswith("pickle"):
        pickle.loads(last.read_bytes())
    else:
        torch.load(last, weights_only=False)
    assert mark.exists()


@pytest.mark.parametrize("size", [0, 1, 100, 0.5, -1])
def test_checkpoints_that_were_cut_short(run: Settings, size: float) -> None:
    for name in ("last", "previous", "best"):
        path = run.folder / "checkpoints" / f"{name}.ckpt"
        whole = path.read_bytes()
        path.write_bytes(whole[: int(size * len(whole)) if isinstance(size, float) else size])
    path = run.folder / "checkpoints" / "last.ckpt"
    for use in (
        lambda: open_run(path),
        lambda: open_run(run.folder).load_model(),
        lambda: again(run),
    ):
        with pytest.raises(ValueError, match=rf"{run.folder}.*(refused|cannot be read)"):
            use()


def test_checkpoints_that_are_not_ours(run: Settings, tmp_path: Path) -> None:
    path = tmp_path / "x.ckpt"
    torch.save({"state_dict": {}}, path)
    with pytest.raises(ValueError, match="is not a checkpoint of slotmesh: it holds no settings"):
        open_run(path)
    for content in ({"weights": {}}, {"state_dict": 3}, [1]):
        torch.save(content, path)
        with pytest.raises(ValueError, match="is not a checkpoint: it holds no state_dict"):
            open_run(path)
    torch.save({"state_dict": {}, "settings": "{"}, path)
    with pytest.raises(ValueError, match=r"x.ckpt cannot be read as JSON"):
        open_run(path)
    torch.save({"state_dict": {}, "settings": "[]"}, path)
    with pytest.raises(ValueError, match=r"x.ckpt holds list, expected values by name"):
        open_run(path)
    last = run.folder / "checkpoints" / "last.ckpt"
    good = torch.load(last, weights_only=True)
    torch.save(good | {"state_dict": {}}, last)
    with pytest.raises(ValueError, match=r"last.ckpt does not fit its settings"):
        open_run(last).load_model()
    torch.save({"state_dict": good["state_dict"]}, last)
    with pytest.raises(ValueError, match=r"last.ckpt cannot be resumed from"):
        again(run)


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"{}", b"\xff\xfe", b"null", b'{"task": "clevr"}']
)
def test_damaged_settings(run: Settings, content: bytes) -> None:
    (run.folder / "settings.json").write_bytes(content)
    for use in (lambda: open_run(run.folder), lambda: again(run)):
        with pytest.raises(ValueError, match=r"settings.json|There is no task 'clevr'"):
            use()


def test_what_is_no_run(run: Settings, tmp_path: Path) -> None:
    for path in (tmp_path / "nothing", tmp_path, run.folder / "metrics.csv"):
        with pytest.raises(ValueError, match="is not a run: expected the folder"):
            open_run(path)
    for name in ("last", "previous", "best"):
        (run.folder / "checkpoints" / f"{name}.ckpt").unlink()
    with pytest.raises(ValueError, match="has no checkpoint yet"):
        open_run(run.folder)


@pytest.mark.parametrize("inside", ["", "/in/side"])
def test_a_file_in_place_of_the_folder_is_said(tmp_path: Path, inside: str) -> None:
    (tmp_path / "mk.py").write_text("")
    settings = tiny("random-objects", "SA", Path(f"{tmp_path / 'mk.py'}{inside}"))
    with pytest.raises(ValueError, match=r"mk\.py is a file; expected a folder"):
        run_train(settings)
