"""What the processes of a run agree on before they train, and how they part."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.pytorch import Trainer


def agree(trainer: Trainer, prepare: Callable[[], Path | None], last: Path) -> Path | None:
    """Let the first process prepare the run's folder; what came of it, in all processes.

    Args:
        trainer: Not started yet.
        prepare: Makes the folder, and says which checkpoint to go on from.
        last: That checkpoint, if there is one.

    Raises:
        ValueError: In all processes, if the first could not, or if others were started than the
            settings say.
    """
    strategy: Any = trainer.strategy
    environment = getattr(strategy, "cluster_environment", None)
    if environment is None or isinstance(environment, LightningEnvironment):
        # Lightning starts the other processes later than this.
        return prepare() if trainer.is_global_zero else (last if last.is_file() else None)
    try:
        environment.validate_settings(strategy.num_processes, strategy.num_nodes)
    except ValueError as error:
        raise ValueError(f"--hardware.devices, --hardware.nodes: {error}") from error
    # torchrun and SLURM started all at once: no other may look before the first is done.
    strategy.setup_environment()
    found: Path | None = None
    problem = ""
    if trainer.is_global_zero:
        try:
            found = prepare()
        except ValueError as error:
            problem = str(error)
    found, problem = strategy.broadcast((found, problem))
    if problem:
        raise ValueError(problem)
    return found


def part() -> None:
    """End the group of processes, if there is one.

    Threads of gloo that outlive the interpreter can abort it, and a finished run counts as failed.
    Lightning does this for NCCL alone.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
