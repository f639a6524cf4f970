"""One process at a time trains in a folder; a lock whose process is gone does not block."""

import errno
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from paper.replicas import train_replicas
from slotmesh.cli import main
from slotmesh.training import processes as module
from slotmesh.training.loop import Training, run_train
from slotmesh.training.processes import LOCK_NAME, Lock
from slotmesh.training.runs import open_run
from slotmesh.training.tasks import experiment

from ._jobs import Job, fake_run, flags, run_job, tiny


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits, in this process."""
    monkeypatch.setattr(module, "_PATIENCE_S", 0.0)


def test_one_line_names_the_other_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = tiny("random-objects", "SA", tmp_path / "run")
    other = Lock(tmp_path / "run")
    other.acquire()
    with pytest.raises(SystemExit) as end:
        main(flags(settings))
    assert end.value.code == 1
    [line] = capsys.readouterr().err.splitlines()
    assert f"{tmp_path / 'run'} is in use by another process: pid {os.getpid()} on " in line
    assert "or choose another folder" in line
    assert [p.name for p in (tmp_path / "run").iterdir()] == [LOCK_NAME], "it has written nothing"
    other.release()
    run_train(settings, Console(file=io.StringIO()))
    assert not (tmp_path / "run" / LOCK_NAME).exists()


def test_of_two_at_once_one_trains(tmp_path: Path) -> None:
    """With two seeds, one run would be lost; which of them starts first does not matter."""
    jobs = [
        Job(
            tmp_path / f"log{seed}",
            "main",
            words=flags(tiny("random-objects", "SA", tmp_path / "run", seed=seed)),
        )
        for seed in (0, 1)
    ]
    codes = [job.wait() for job in jobs]
    assert sorted(codes) == [0, 1], [job.output for job in jobs]
    loser = jobs[codes.index(1)].output
    assert "is in use by another process: pid" in loser or "holds a run with --seed" in loser
    assert open_run(tmp_path / "run").settings.seed == codes.index(0)


def test_a_killed_process_does_not_block(tmp_path: Path) -> None:
    settings = tiny("random-objects", "SA", tmp_path / "run", steps=2)
    assert run_job(tmp_path / "log", "train", settings=settings, kill="a_step 1")[0] == -9
    kept = json.loads((tmp_path / "run" / LOCK_NAME).read_text())
    assert {*kept} == {"pid", "host", "command"}
    run_train(settings, Console(file=io.StringIO()))
    assert not (tmp_path / "run" / LOCK_NAME).exists()


# A process that takes the lock and starts another, which outlives it.
PARENT = """
import os, runpy, sys, time
runpy.run_path(sys.argv[1])["Lock"](__import__("pathlib").Path(sys.argv[2])).acquire()
child = os.fork()
if child:
    print(child, flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_does_not_keep_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As processes that read data: they may live for a while when the first is killed."""
    command = [sys.executable, "-c", PARENT, module.__file__, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        try:
            with pytest.raises(ValueError, match=f"pid {parent.pid} on"):
                Lock(tmp_path).acquire()
            parent.kill()
            parent.wait()
            os.kill(child, 0)  # it is alive, and lets go of its copy as soon as it runs
            monkeypatch.setattr(module, "_PATIENCE_S", 60.0)
            mine = Lock(tmp_path)
            mine.acquire()
            mine.release()
        finally:
            os.kill(child, signal.SIGKILL)
            parent.kill()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}', "\udcff"])
def test_what_the_file_says_decides_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / LOCK_NAME).write_text(text, errors="surrogateescape")
    first = Lock(tmp_path)
    first.acquire()
    (tmp_path / LOCK_NAME).write_text(text, errors="surrogateescape")
    with pytest.raises(ValueError, match=r"it has not written its name to .*\.lock"):
        Lock(tmp_path).acquire()
    first.release()


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("kept")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / LOCK_NAME).symlink_to(tmp_path / "mine")
    with pytest.raises(OSError, match="symbolic links"):
        Lock(tmp_path / "run").acquire()
    assert (tmp_path / "mine").read_text() == "kept"


@pytest.mark.parametrize("kind", ["no flock", "not on this file system"])
def test_where_nothing_can_be_locked_it_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    if kind == "no flock":
        monkeypatch.setattr(module, "fcntl", None)
    else:
        monkeypatch.setattr(module.fcntl, "flock", refuse)
    one = Lock(tmp_path)
    with pytest.warns(UserWarning, match=r"cannot be locked \(.*no other command trains"):
        one.acquire()
    one.check()
    one.release()


def test_reading_needs_no_lock(tmp_path: Path) -> None:
    settings = tiny("random-objects", "SA", tmp_path / "run")
    fake_run(settings)
    other = Lock(tmp_path / "run")
    other.acquire()
    main(["evaluate", str(tmp_path / "run"), "--device", "cpu"])
    main(["export", str(tmp_path / "run"), "--out", str(tmp_path / "export")])
    other.release()


def test_replicas_too(tmp_path: Path) -> None:
    made = experiment(tiny("random-objects", "SA", tmp_path, steps=1, data__train_size=None))
    other = Lock(tmp_path)
    other.acquire()
    with pytest.raises(ValueError, match="is in use by another process"):
        train_replicas([made], folder=tmp_path)
    other.release()
    train_replicas([made], folder=tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["replicas.ckpt"]


@pytest.mark.parametrize("again", [False, True])
def test_a_folder_that_is_removed_while_it_trains(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    again: bool,
) -> None:
    """Nothing is written into the folder of another run that was begun in its place."""
    settings = tiny("random-objects", "SA", tmp_path / "run", log_every=1)
    new = Lock(tmp_path / "run")
    old = Training.learn

    def learn(self: Training, batch: Any) -> None:
        if self.step == 7:
            shutil.rmtree(tmp_path / "run")
            if again:
                new.acquire()
        old(self, batch)

    monkeypatch.setattr(Training, "learn", learn)
    with pytest.raises(SystemExit) as end:
        main(flags(settings))
    assert end.value.code == 1
    [line] = capsys.readouterr().err.splitlines()
    assert f"{tmp_path / 'run'} was removed or replaced during training" in line
    assert "Repeat the command" in line
    if again:
        new.check()
        new.release()
        assert not list((tmp_path / "run").iterdir())
    else:
        assert not (tmp_path / "run").exists()
