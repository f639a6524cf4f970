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

from slotmesh.training.loop import Training
from slotmesh.training.train import run_train

from ._jobs import assert_same, flags, metrics, run_job, state, tiny, two_processes

pytestmark = pytest.mark.slow
CODES = {signal.SIGTERM: 143, signal.SIGINT: 130}


def whole(folder: Path) -> Path:
    settings = tiny("random-objects", "SA-MESH", folder / "whole")
    assert run_job(folder / "log", "train", settings=settings)[0] == 0
    return folder / "whole"


# Step 7 has no checkpoint of its own; after step 5 comes a validation, and step 12 is the last.
@pytest.mark.parametrize(
    ("signum", "at", "saved"), [("SIGTERM", 6, 7), ("SIGINT", 0, 1), ("SIGTERM", 4, 5)]
)
def test_saved_and_gone_on_with(tmp_path: Path, signum: str, at: int, saved: int) -> None:
    number = signal.Signals[signum]
    words = flags(tiny("random-objects", "SA-MESH", tmp_path / "run"))
    code, said = run_job(tmp_path / "log", "main", words=words, stop=f"{number:d} {at}")
    assert code == CODES[number]
    assert f"Stopped at step {saved}, and saved. The same command resumes from there." in said
    assert "Traceback" not in said
    assert state(tmp_path / "run")["global_step"] == saved
    code, said = run_job(tmp_path / "log", "main", words=words)
    assert code == 0, said
    assert "Resuming" in said
    expected = whole(tmp_path)
    for name in ("last", "best"):
        assert_same(state(tmp_path / "run", name), state(expected, name), name)
    assert metrics(tmp_path / "run") == metrics(expected)


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


@pytest.mark.parametrize("kind", ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def test_the_whole_group_of_processes_is_told(tmp_path: Path, kind: str) -> None:
    """As `timeout` does it; on a GPU, where the step is compiled by processes of their own."""
    hardware: dict[str, Any] = {"hardware__accelerator": kind}
    if kind == "gpu":
        if not torch.cuda.is_available():
            pytest.skip("no CUDA device on this machine")
        hardware["hardware__compile"] = "yes"
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
