"""``slotmesh train``: one experiment, from its first weights or from where it stopped."""

import os

import torch
from rich.console import Console
from rich.markup import escape

from slotmesh.training.places import NO_FLOAT64, gpu_count
from slotmesh.training.runs import Run, open_run
from slotmesh.training.settings import Hardware, Settings
from slotmesh.training.tasks import experiment


def run_train(settings: Settings, console: Console | None = None) -> Run:
    """Train, or resume a run that stopped; the finished run.

    Raises:
        ValueError: If a setting is wrong, before any data is touched.
    """
    console = Console() if console is None else console
    made = experiment(settings)
    check_hardware(settings.hardware)
    # Lightning takes seconds to load.
    from slotmesh.training.log import check_logger
    from slotmesh.training.loop import fit

    check_logger(settings)
    if fit(made, console):
        folder = escape(str(settings.folder))
        console.print(
            f"Trained: [bold]{folder}[/bold]. Next: slotmesh evaluate {folder}",
            soft_wrap=True,
            highlight=False,
        )
    return open_run(settings.folder)


def check_hardware(hardware: Hardware) -> None:
    """Raise a ValueError that names the flag if this machine does not fit the settings."""
    gpus = gpu_count()
    if hardware.accelerator == "gpu" and not gpus:
        here = torch.backends.mps.is_available()
        found = f"here that is {NO_FLOAT64}" if here else "torch finds no GPU here"
        raise ValueError(f"--hardware.accelerator is gpu, but {found}. Pass cpu.")
    if hardware.accelerator != "cpu" and gpus and hardware.devices > gpus:
        raise ValueError(f"--hardware.devices is {hardware.devices}, but there are {gpus} GPUs.")
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
    # What torchrun and srun say; without this check, each process would train on its own.
    started = os.environ.get("WORLD_SIZE", os.environ.get("SLURM_STEP_NUM_TASKS"))
    expected = hardware.devices * hardware.nodes
    if started is not None and int(started) != expected:
        raise ValueError(
            f"{started} processes were started, but --hardware.devices {hardware.devices} times "
            f"--hardware.nodes {hardware.nodes} is {expected}."
        )
