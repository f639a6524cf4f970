"""The same bits: with any number of threads, or a line that says why not."""

import io
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from rich.console import Console

from slotmesh.ops import backends
from slotmesh.training.arithmetic import arithmetic, change, chosen
from slotmesh.training.checkpoint import load_checkpoint
from slotmesh.training.gradient import WORTH, compiles
from slotmesh.training.loop import Training, run_train
from slotmesh.training.places import check_hardware
from slotmesh.training.settings import Settings

from ._jobs import assert_same, flags, metrics, run_job, state, tiny
from ._jobs import change as changed

CPU = torch.device("cpu")


def train(settings: Settings) -> str:
    screen = io.StringIO()
    run_train(settings, Console(file=screen, width=500))
    return screen.getvalue()


@pytest.mark.parametrize("deterministic", [True, False])
def test_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deterministic: bool) -> None:
    """What is asked for is used in training, and no longer afterwards."""
    seen: set[int] = set()
    old = Training.learn

    def learn(self: Training, batch: Any) -> None:
        seen.add(torch.get_num_threads())
        old(self, batch)

    monkeypatch.setattr(Training, "learn", learn)
    before = torch.get_num_threads()
    wish = {"hardware__threads": 2, "hardware__deterministic": deterministic}
    train(tiny("random-objects", "SA", tmp_path / "run", steps=1, **wish))
    assert seen == {1 if deterministic else 2}
    assert torch.get_num_threads() == before


def test_the_precision_of_before_is_back_afterwards(tmp_path: Path) -> None:
    """In a process of its own: torch cannot undo all of the ways to set it."""
    code, said = run_job(tmp_path / "log", "choose_a_precision")
    assert code == 0, said
    assert said.count("kept") == 5, said


def test_one_and_two_threads_end_with_the_same_bits(tmp_path: Path) -> None:
    """Convolutions and sums as large as make torch share them among threads."""
    for threads in (1, 2):
        wish = {"hardware__threads": threads, "hardware__deterministic": True}
        size = {"data__batch_size": 8, "data__size": 64, "model__channels": 16}
        train(tiny("multi-dsprites", "SA-MESH", tmp_path / str(threads), steps=3, **wish, **size))
    assert_same(state(tmp_path / "1"), state(tmp_path / "2"))
    assert metrics(tmp_path / "1") == metrics(tmp_path / "2")


def stopped(tmp_path: Path, variant: str, env: dict[str, str] | None = None) -> Settings:
    settings = tiny("random-objects", variant, tmp_path / "run", steps=6)
    log = tmp_path / "log"
    code, said = run_job(log, "train", settings=settings, kill="a_step 4", env=env)
    assert code == -9, said
    return settings


def test_another_number_of_threads_is_said(tmp_path: Path) -> None:
    settings = stopped(tmp_path, "SA")
    two = changed(settings, hardware__threads=2)
    line = "The run resumes with 2 thread(s) (1 before): results agree up to rounding only. "
    assert line + "For the same bits, pass --hardware.threads 1." in train(two)
    assert "The run resumes" not in train(two), "it has ended"


def test_one_thread_again_is_not(tmp_path: Path) -> None:
    settings = stopped(tmp_path, "SA")
    assert "The run resumes" not in train(changed(settings, hardware__deterministic=True))


@pytest.mark.skipif(backends().auto["cpu"] != "cpu", reason="no C here")
def test_another_backend(tmp_path: Path) -> None:
    """As after a signal that killed the compiler, or on a machine without one."""
    settings = stopped(tmp_path, "SA-MESH", {"SLOTMESH_NATIVE": "0"})
    kept = load_checkpoint(tmp_path / "run/checkpoints/last.ckpt")["arithmetic"]
    assert kept["transport"] == "torch"
    sure = changed(settings, hardware__deterministic=True)
    code, said = run_job(tmp_path / "log", "main", words=flags(sure))
    assert code == 1, said
    [line] = [line for line in said.splitlines() if line.startswith("slotmesh: ")]
    assert "would resume with the transport computed in C (torch before)" in line
    assert "set SLOTMESH_NATIVE=0" in line
    assert load_checkpoint(tmp_path / "run/checkpoints/last.ckpt")["global_step"] == 3
    # Otherwise it goes on, and says so.
    said = train(settings)
    assert "The run resumes with the transport computed in C (torch before)" in said
    assert load_checkpoint(tmp_path / "run/checkpoints/last.ckpt")["arithmetic"]["transport"] == "C"


def test_softmax_has_no_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SA is the same with and without C."""
    settings = tiny("random-objects", "SA", tmp_path)
    now = arithmetic(settings, CPU, 1)
    without = SimpleNamespace(auto={"cpu": "torch"})
    monkeypatch.setattr("slotmesh.training.arithmetic.backends", lambda: without)
    assert arithmetic(settings, CPU, 1) == now
    sinkhorn = arithmetic(tiny("random-objects", "SA-SH", tmp_path), CPU, 1)
    assert sinkhorn["transport"] == "torch"


def test_changes_in_words(tmp_path: Path) -> None:
    now = arithmetic(tiny("random-objects", "SA-MESH", tmp_path), CPU, 1)
    assert change(now, now) == ("", "")
    assert change(now, None) == ("", ""), "checkpoints that do not say"
    assert change(now, {"new": "x"}) == ("", "")
    said, fix = change(now, now | {"processes": "2", "torch": "2.11"})
    assert "in 1 process(es) (2 before), with torch" in said
    assert "start 2 with --hardware.devices and --hardware.nodes and install torch 2.11" in fix
    # On another device everything is another.
    said, fix = change(now, {"device": "NVIDIA H200", "transport": "triton", "processes": "8"})
    assert (said, fix) == ("on cpu (NVIDIA H200 before)", "train on NVIDIA H200")
    said, fix = change(now | {"transport": "torch"}, now | {"transport": "C"})
    assert "make a C compiler available" in fix
    said, fix = change(now | {"native": "baseline"}, now | {"native": "avx2"})
    assert said == "with baseline instructions in C (avx2 before)"
    assert "SLOTMESH_NATIVE=avx2" in fix


def test_a_deterministic_step_is_not_compiled(tmp_path: Path) -> None:
    long = tiny("multi-dsprites", "SA", tmp_path, steps=WORTH)
    cuda = torch.device("cuda")
    assert compiles(long, cuda, 1)
    assert not compiles(changed(long, hardware__deterministic=True), cuda, 1)


def test_what_contradicts_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    both = tiny("multi-dsprites", "SA", tmp_path, hardware__compile="yes")
    both = changed(both, hardware__accelerator="gpu", hardware__deterministic=True)
    with pytest.raises(ValueError, match=r"--hardware\.deterministic .*--hardware\.compile"):
        check_hardware(both.hardware)


def test_an_operation_that_cannot_be_had_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU; torch has words for it, with a page of advice behind them."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    settings = tiny("multi-dsprites", "SA", tmp_path, hardware__accelerator="gpu")
    settings = changed(settings, hardware__deterministic=True)

    def fail(words: str) -> None:
        with chosen(settings):
            assert torch.are_deterministic_algorithms_enabled()
            assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
            raise RuntimeError(words)

    words = "put_cuda does not have a deterministic implementation, but you set 'x'. You can turn"
    with pytest.raises(ValueError, match=r"^--hardware\.deterministic: put_cuda .* out here\.$"):
        fail(words)
    with pytest.raises(RuntimeError, match="another"):
        fail("another")
    assert not torch.are_deterministic_algorithms_enabled()
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
@pytest.mark.parametrize(
    ("task", "variant"),
    [
        ("random-objects", "SA-MESH"),
        ("random-objects", "SA-EMD"),
        ("clevr-properties", "SA-MESH"),
        ("multi-dsprites", "SA-MESH"),
        ("multi-dsprites", "SA"),
        ("clevrtex", "SA-SH"),
        ("clevrer-s", "SA-MESH"),
    ],
)
def test_on_a_gpu(tmp_path: Path, task: str, variant: str) -> None:
    """Twice, and once killed in between: the same bits."""
    wish = {"hardware__accelerator": "gpu", "hardware__deterministic": True}
    for name in ("one", "two"):
        train(tiny(task, variant, tmp_path / name, **wish))
    assert_same(state(tmp_path / "one"), state(tmp_path / "two"))
    settings = tiny(task, variant, tmp_path / "killed", **wish)
    assert run_job(tmp_path / "log", "train", settings=settings, kill="a_step 8")[0] == -9
    assert run_job(tmp_path / "log", "train", settings=settings)[0] == 0
    assert_same(state(tmp_path / "one"), state(tmp_path / "killed"))
