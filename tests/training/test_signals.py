"""Asked to stop, a run saves, says so, and leaves with the code of its signal."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from slotmesh.training.loop import Training, run_train

from ._jobs import assert_same, flags, metrics, run_job, state, tiny, two_processes

pytestmark = pytest.mark.slow
CODES = {signal.SIGTERM: 143, signal.SIGINT: 130}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody stopped."""
    folder = tmp_path_factory.mktemp("whole")
    settings = tiny("random-objects", "SA-MESH", folder / "run")
    assert run_job(folder / "log", "train", settings=settings)[0] == 0
    return folder / "run"


# Step 7 has no checkpoint of its own; after step 5 comes a validation, and step 12 is the last.
@pytest.mark.parametrize(
    ("signum", "at", "saved"), [("SIGTERM", 6, 7), ("SIGINT", 0, 1), ("SIGTERM", 4, 5)]
)
def test_saved_and_resumed(tmp_path: Path, whole: Path, signum: str, at: int, saved: int) -> None:
    number = signal.Signals[signum]
    words = flags(tiny("random-objects", "SA-MESH", tmp_path / "run"))
    code, said = run_job(tmp_path / "log", "main", words=words, stop=f"{number:d} {at}")
    assert code == CODES[number]
    assert f"Stopped at step {saved} and saved. Repeat the command to resume." in said
    assert "Traceback" not in said
    assert state(tmp_path / "run")["global_step"] == saved
    code, said = run_job(tmp_path / "log", "main", words=words)
    assert code == 0, said
    assert "Resuming" in said
    for name in ("last", "best"):
        assert_same(state(tmp_path / "run", name), state(whole, name), name)
    assert metrics(tmp_path / "run") == metrics(whole)


def test_a_run_that_started_over_resumes_without_that_flag(tmp_path: Path) -> None:
    words = [*flags(tiny("random-objects", "SA", tmp_path / "run")), "--overwrite"]
    code, said = run_job(tmp_path / "log", "main", words=words, stop=f"{signal.SIGINT:d} 0")
    assert code == 130
    assert "Repeat the command without --overwrite to resume" in said


def test_two_processes_stop_together(tmp_path: Path) -> None:
    """Only the first is told; both stop at the same step, and the run can go on."""
    settings = tiny("random-objects", "SA", tmp_path / "run", hardware__devices=2, val_every=8)
    words = flags(settings)
    ends = two_processes(tmp_path / "log", "main", words=words, stop=f"{signal.SIGTERM:d} 8 0")
    assert [code for code, _ in ends] == [143, 143], ends
    assert [said.count("Stopped at step 10") for _, said in ends] == [1, 0]
    assert state(tmp_path / "run")["global_step"] == 10
    ends = two_processes(tmp_path / "log", "main", words=words)
    assert [code for code, _ in ends] == [0, 0], ends
    assert state(tmp_path / "run")["global_step"] == 12


def test_a_second_ctrl_c_ends_it_at_once(tmp_path: Path) -> None:
    words = flags(tiny("random-objects", "SA", tmp_path / "run"))
    stop = f"{signal.SIGINT:d} 4 0 2"
    code, _ = run_job(tmp_path / "log", "main", words=words, stop=stop)
    assert code == 130
    assert state(tmp_path / "run")["global_step"] == 3


def test_ctrl_c_before_the_first_step(tmp_path: Path) -> None:
    words = flags(tiny("random-objects", "SA", tmp_path / "run"))
    code, said = run_job(tmp_path / "log", "main", words=words, stop=f"{signal.SIGINT:d} -1")
    assert code == 130, said
    assert "slotmesh: interrupted" in said


@pytest.mark.parametrize("at", [2, 20])
def test_afterwards_signals_do_what_they_did_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """In a notebook, say; whether training was stopped or came to its end."""
    old = Training.learn

    def learn(self: Training, batch: Any) -> None:
        if self.step == at:
            os.kill(os.getpid(), signal.SIGTERM)
        old(self, batch)

    monkeypatch.setattr(Training, "learn", learn)
    before = {s: signal.getsignal(s) for s in CODES}
    settings = tiny("random-objects", "SA", tmp_path / "run")
    with Path(tmp_path / "out").open("w") as out:
        if at == 2:
            with pytest.raises(SystemExit) as end:
                run_train(settings, Console(file=out))
            assert end.value.code == 143
        else:
            run_train(settings, Console(file=out))
    assert {s: signal.getsignal(s) for s in CODES} == before


def test_handlers_that_others_put_in_their_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = Training.learn

    def learn(self: Training, batch: Any) -> None:
        if self.step == 1:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if self.step == 4:
            os.kill(os.getpid(), signal.SIGTERM)
        old(self, batch)

    monkeypatch.setattr(Training, "learn", learn)
    settings = tiny("random-objects", "SA", tmp_path / "run")
    with Path(tmp_path / "out").open("w") as out, pytest.raises(SystemExit) as end:
        run_train(settings, Console(file=out))
    assert end.value.code == 143
    assert state(tmp_path / "run")["global_step"] == 5


def test_the_whole_group_of_processes_is_told(tmp_path: Path) -> None:
    """As `timeout` does it."""
    words = flags(tiny("multi-dsprites", "SA-MESH", tmp_path / "run"))
    stop = f"{signal.SIGTERM:d} 3 0 all"
    code, said = run_job(tmp_path / "log", "main", words=words, stop=stop)
    assert code == 143, said
    assert "and saved" in said
    assert state(tmp_path / "run")["global_step"] == 4


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_the_whole_group_with_its_compilers_is_told(tmp_path: Path) -> None:
    """The step is compiled by processes of their own."""
    hardware = {"hardware__accelerator": "gpu", "hardware__compile": "yes"}
    rare = dict.fromkeys(("steps", "val_every", "save_every"), 1_000_000)
    words = flags(tiny("multi-dsprites", "SA-MESH", tmp_path / "run", **rare, **hardware))
    command = [
        sys.executable,
        "-c",
        "import sys; from slotmesh.cli import main; main(sys.argv[1:])",
    ]
    log = tmp_path / "log"
    with log.open("w") as file:
        job = subprocess.Popen([*command, *words], stdout=file, stderr=file, start_new_session=True)
    try:
        journal, end = tmp_path / "run" / "metrics.csv", time.monotonic() + 600
        while not journal.is_file() or len(journal.read_text().splitlines()) < 3:
            assert job.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.2)
        os.killpg(job.pid, signal.SIGTERM)
        assert job.wait(600) == 143, log.read_text()
    finally:
        job.kill()
    assert "and saved" in log.read_text()
    assert state(tmp_path / "run")["global_step"] >= 4
