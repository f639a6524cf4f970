"""Which device a command computes on: an NVIDIA GPU or the CPU, and never an Apple GPU."""

import re
from pathlib import Path

import pytest
import torch

from slotmesh.cli import main
from slotmesh.training.loop import run_train
from slotmesh.training.places import check_hardware, place_of
from slotmesh.training.processes import make_fabric

from ._jobs import change, tiny


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with an Apple GPU, as torch and Lightning see it."""
    from lightning.fabric.accelerators.mps import MPSAccelerator

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(MPSAccelerator, "is_available", staticmethod(lambda: True))


def gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


@pytest.mark.parametrize(
    ("count", "asked", "found"),
    [
        (0, "auto", "cpu"),
        (0, "cpu", "cpu"),
        (2, "auto", "cuda"),
        (2, "cpu", "cpu"),
        (2, "cuda", "cuda"),
        (2, "cuda:1", "cuda:1"),
    ],
)
def test_the_device_of_a_command(
    monkeypatch: pytest.MonkeyPatch, count: int, asked: str, found: str
) -> None:
    gpus(monkeypatch, count)
    assert place_of(asked) == torch.device(found)


@pytest.mark.parametrize(
    ("count", "asked", "said"),
    [
        (0, "cuda", "--device is cuda, but torch finds no GPU here. Pass cpu."),
        (0, "cuda:0", "--device is cuda:0, but torch finds no GPU here. Pass cpu."),
        (2, "cuda:2", "--device is cuda:2, but torch finds 2 GPUs here. Pass one of cuda:0 to"),
        (2, "cuda:", "--device is 'cuda:', expected cpu, cuda or auto."),
        (2, "cuda:x", "--device is 'cuda:x', expected cpu, cuda or auto."),
        (2, "cuda:-1", "--device is 'cuda:-1', expected cpu, cuda or auto."),
        (2, "gpu", "--device is 'gpu', expected cpu, cuda or auto."),
        (0, "mps", "--device is mps, an Apple GPU, which has no float64"),
        (0, "mps:0", "--device is mps:0, an Apple GPU, which has no float64"),
    ],
)
def test_a_device_that_is_not_there(
    monkeypatch: pytest.MonkeyPatch, count: int, asked: str, said: str
) -> None:
    gpus(monkeypatch, count)
    with pytest.raises(ValueError, match="^" + re.escape(said)) as caught:
        place_of(asked)
    assert "\n" not in str(caught.value)


def test_auto_is_the_cpu_on_a_mac(mac: None, tmp_path: Path) -> None:
    """Lightning would take the Apple GPU, and the first scene would be the end."""
    assert place_of("auto") == torch.device("cpu")
    settings = tiny("random-objects", "SA-MESH", tmp_path / "run", steps=2)
    settings = change(settings, hardware__accelerator="auto")
    assert make_fabric(settings).device == torch.device("cpu")
    assert run_train(settings).checkpoint.is_file()


def test_a_gpu_by_name_is_refused_on_a_mac(mac: None) -> None:
    start = tiny("random-objects", "SA", Path("run"))
    with pytest.raises(ValueError, match="is gpu, but here that is an Apple GPU, which"):
        check_hardware(change(start, hardware__accelerator="gpu").hardware)
    check_hardware(change(start, hardware__accelerator="auto").hardware)


@pytest.mark.parametrize("device", ["mps", "cuda", "tpu"])
@pytest.mark.parametrize(
    "words",
    ["data preview clevr", "data stats clevr", "data bench clevr"],
)
def test_commands_say_so_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    words: str,
    device: str,
) -> None:
    gpus(monkeypatch, 0)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main([*words.split(), "--device", device])
    assert ended.value.code == 1
    said = capsys.readouterr().err
    assert said.startswith("slotmesh: --device is ")
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())
