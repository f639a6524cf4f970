"""What determines the last bits of a run, besides its settings."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import torch

from slotmesh.ops import backends
from slotmesh.training.gradient import compiles
from slotmesh.training.settings import Settings
from slotmesh.training.variants import SoftmaxSettings

# Each property in words, and how to restore its former value.
_WORDS = {
    "device": ("on {}", "train on {}"),
    "processes": ("in {} process(es)", "start {} with --hardware.devices and --hardware.nodes"),
    "torch": ("with torch {}", "install torch {}"),
    "transport": ("with the transport computed in {}", "{}"),
    "kernels": ("with {} kernels", "see --hardware.deterministic and --hardware.compile"),
    "threads": ("with {} thread(s)", "pass --hardware.threads {}"),
    "instructions": ("with {} instructions", "train on a processor with {}"),
    "native": ("with {} instructions in C", "set SLOTMESH_NATIVE={} or leave it unset"),
}
_TO_HAVE = {
    "C": "make a C compiler available and leave SLOTMESH_NATIVE unset",
    "triton": "install triton",
    "torch": "set SLOTMESH_NATIVE=0",
}


def arithmetic(settings: Settings, device: torch.device, n_processes: int) -> dict[str, str]:
    """Properties that can differ between two starts of a run and change how sums are rounded."""
    cuda = device.type == "cuda"
    found = {
        "device": torch.cuda.get_device_name(device) if cuda else device.type,
        "processes": str(n_processes),
        "torch": str(torch.__version__),
        "transport": _backend(settings, device),
    }
    if cuda:
        compiled = "compiled" if compiles(settings, device, n_processes) else "the usual"
        found["kernels"] = "deterministic" if settings.hardware.deterministic else compiled
    if device.type == "cpu":
        found["threads"] = str(torch.get_num_threads())
        found["instructions"] = torch.backends.cpu.get_cpu_capability()
        if found["transport"] == "C":
            found["native"] = str(backends().cpu.instructions)
    return found


def _backend(settings: Settings, device: torch.device) -> str:
    """The backend of the transport: C, triton or torch."""
    if isinstance(settings.transport, SoftmaxSettings):
        return "torch"
    chosen = backends().auto[device.type]
    return "C" if chosen == "cpu" else chosen


def change(now: dict[str, str], before: Any) -> tuple[str, str]:
    """Compare how a run is computed now with how it was before, and say how to restore that.

    Args:
        now: From :func:`arithmetic`.
        before: The same from a checkpoint; None if the checkpoint does not have it.

    Returns:
        Two parts of a sentence; empty if nothing differs.
    """
    old = {name: str(value) for name, value in before.items()} if isinstance(before, dict) else now
    differ = [name for name in _WORDS if name in now and old.get(name, now[name]) != now[name]]
    # On another device everything else differs too.
    differ = differ[:1] if differ[:1] == ["device"] else differ
    said = [f"{_WORDS[name][0].format(now[name])} ({old[name]} before)" for name in differ]
    todo = [_WORDS[name][1].format(_TO_HAVE.get(old[name], old[name])) for name in differ]
    return ", ".join(said), " and ".join(todo)


@contextmanager
def chosen(settings: Settings) -> Iterator[None]:
    """Compute with the threads, precision and determinism of ``settings.hardware``."""
    hardware = settings.hardware
    gpu = hardware.accelerator != "cpu" and torch.cuda.is_available()
    threads = torch.get_num_threads()
    try:
        if hardware.deterministic and not gpu:
            # Sums are split among threads: only a single thread always gives the same bits.
            torch.set_num_threads(1)
        elif hardware.threads is not None:
            torch.set_num_threads(hardware.threads)
        # On a CPU, TF32 would select other kernels that are no faster.
        with (
            _tf32(hardware.precision == "tf32" and gpu),
            _deterministic() if hardware.deterministic and gpu else nullcontext(),
        ):
            yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    """Allow or forbid TF32 in products and convolutions of float32 numbers."""
    kernels: Any = torch.backends
    rooms = (
        kernels.cuda.matmul,
        kernels.mkldnn.matmul,
        kernels.cudnn.conv,
        kernels.cudnn.rnn,
    )
    before = [room.fp32_precision for room in rooms]
    matmul = cudnn = None
    # torch refuses to read these if the more specific ones above have been set.
    with suppress(RuntimeError):
        matmul = torch.get_float32_matmul_precision()
    with suppress(RuntimeError):
        cudnn = torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    torch.backends.cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        if matmul is not None:
            torch.set_float32_matmul_precision(matmul)
        if cudnn is not None:
            torch.backends.cudnn.allow_tf32 = cudnn
        for room, precision in zip(rooms, before, strict=True):
            if room.fp32_precision != precision:
                room.fp32_precision = precision


@contextmanager
def _deterministic() -> Iterator[None]:
    """Deterministic algorithms, on a GPU."""
    # cuBLAS reads it when it is first used; torch refuses to run without it.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    before = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    try:
        yield
    except RuntimeError as error:
        if "deterministic" not in str(error):
            raise
        said = str(error).partition(". ")[0]
        raise ValueError(f"--hardware.deterministic: {said}. Leave it out here.") from error
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.backends.cudnn.benchmark = before[1]
