"""The device that a command computes on, and the error if its memory is too small."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from slotmesh.training.settings import Hardware

# Scenes are rendered, and metrics summed up, in float64.
NO_FLOAT64 = "an Apple GPU, which has no float64 for scenes and metrics"
# What torch says if it does not get the memory, or if the number of bytes overflows.
_SIGNS = ("allocate memory", "out of memory", "overflow")


def gpu_count() -> int:
    """Number of GPUs that torch can use here; an Apple GPU does not count."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def place_of(device: str) -> torch.device:
    """The device that ``--device`` stands for: auto, cpu, cuda, or cuda:1.

    Raises:
        ValueError: If it is none of these, or this machine does not have it.
    """
    if device in ("auto", "cpu"):
        return torch.device("cuda" if device == "auto" and gpu_count() else "cpu")
    kind, colon, number = device.partition(":")
    if kind == "mps":
        raise ValueError(f"--device is {device}, {NO_FLOAT64}. Pass cpu.")
    if kind != "cuda" or (colon and not number.isdecimal()):
        raise ValueError(f"--device is {device!r}, expected cpu, cuda or auto.")
    count = gpu_count()
    if count == 0:
        raise ValueError(f"--device is {device}, but torch finds no GPU here. Pass cpu.")
    if colon and int(number) >= count:
        raise ValueError(
            f"--device is {device}, but torch finds {count} GPU{'s' if count > 1 else ''} here. "
            f"Pass {'cuda:0' if count == 1 else f'one of cuda:0 to cuda:{count - 1}'}."
        )
    return torch.device(device)


def check_hardware(hardware: Hardware) -> None:
    """Raise a ValueError that names the flag if this machine does not fit the settings."""
    gpus = gpu_count()
    if hardware.accelerator == "gpu" and not gpus:
        here = torch.backends.mps.is_available()
        found = f"here that is {NO_FLOAT64}" if here else "torch finds no GPU here"
        raise ValueError(f"--hardware.accelerator is gpu, but {found}. Pass cpu.")
    if hardware.accelerator != "cpu" and gpus and hardware.devices > gpus:
        found = "1 GPU" if gpus == 1 else f"{gpus} GPUs"
        raise ValueError(
            f"--hardware.devices is {hardware.devices}, but torch finds {found} here. Pass {gpus} "
            "or less, or --hardware.accelerator cpu."
        )
    several = hardware.devices * hardware.nodes > 1
    if hardware.compile == "yes" and (several or not gpus or hardware.accelerator == "cpu"):
        found = "there are several processes" if several else "it runs on the CPU"
        raise ValueError(
            f"--hardware.compile is yes, which is for one NVIDIA GPU, but {found}. Leave it out."
        )
    if hardware.deterministic and hardware.compile == "yes":
        raise ValueError(
            "--hardware.deterministic is on, but --hardware.compile is yes, which measures which "
            "kernels are fastest. Leave one of them out."
        )
    # Set by torchrun and srun; without this check, each process would train on its own.
    started = os.environ.get("WORLD_SIZE", os.environ.get("SLURM_STEP_NUM_TASKS"))
    expected = hardware.devices * hardware.nodes
    if started is not None and int(started) != expected:
        raise ValueError(
            f"{started} processes were started, but --hardware.devices {hardware.devices} times "
            f"--hardware.nodes {hardware.nodes} is {expected}. Start {expected}, or pass the "
            "devices and nodes that were started."
        )


def check_fits(build: Callable[[], nn.Module]) -> None:
    """Raise a MemoryError if the weights of a model take more memory than this machine has.

    Linux may promise memory that it does not have, and kill the process that then uses it.
    """
    with torch.device("meta"):
        model = build()
    need = sum(t.numel() * t.element_size() for t in (*model.parameters(), *model.buffers()))
    if not hasattr(os, "sysconf"):
        return
    have = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if need > have > 0:
        raise MemoryError(f"the weights take {need >> 30:,} GiB, this machine has {have >> 30:,}")


@contextmanager
def memory_checked() -> Iterator[None]:
    """Raise a ValueError that says what to do if there is not enough memory."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        said = str(error).partition("\n")[0]
        known = isinstance(error, MemoryError | torch.OutOfMemoryError)
        if not known and not any(sign in said for sign in _SIGNS):
            raise
        raise ValueError(
            f"There is not enough memory ({said or 'MemoryError'}). Lower --data.batch-size, or "
            "the sizes of the data and the model."
        ) from error
