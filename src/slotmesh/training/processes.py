"""The processes of a run: how they start, agree, hear that they should stop, and part."""

import atexit
import logging
import signal
import threading
import warnings
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from slotmesh.training.places import gpu_count
from slotmesh.training.settings import Settings

if TYPE_CHECKING:
    from lightning.fabric import Fabric

T = TypeVar("T")


def start_processes(settings: Settings) -> "Fabric":
    """Fabric on the hardware of the settings, with all processes started.

    Raises:
        ValueError: If the hardware is not as the settings say, or others started other processes.
    """
    fabric = make_fabric(settings)
    try:
        fabric.launch()
    except ValueError as error:
        raise ValueError(f"--hardware.devices, --hardware.nodes: {error}") from error
    return fabric


def make_fabric(settings: Settings) -> "Fabric":
    """Fabric on the hardware of the settings; nothing is started yet."""
    warnings.filterwarnings("ignore", ".*treespec, LeafSpec.*")  # lightning on torch 2.13
    from lightning.fabric import Fabric
    from lightning.fabric.utilities.exceptions import MisconfigurationException

    # They would print who takes part, in every process, and hints about precision.
    for name in ("lightning.fabric", "lightning.pytorch"):
        logging.getLogger(name).setLevel(logging.WARNING)

    hardware = settings.hardware
    several = hardware.devices * hardware.nodes > 1
    if several:
        atexit.register(_part)
    try:
        return Fabric(
            # Lightning's own choice can be a device without float64, such as an Apple GPU.
            accelerator="cuda" if hardware.accelerator != "cpu" and gpu_count() else "cpu",
            devices=hardware.devices,
            num_nodes=hardware.nodes,
            strategy="ddp" if several else "auto",
            precision="bf16-mixed" if hardware.precision == "bf16" else "32-true",
        )
    except (MisconfigurationException, RuntimeError) as error:
        raise ValueError(f"--hardware: {error}") from error


def _part() -> None:
    """End the group of processes, if there is one.

    Threads of gloo that outlive the interpreter can abort it, and a finished run counts as failed.
    Lightning does this for NCCL alone.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def agree(fabric: "Fabric", prepare: Callable[[], T]) -> T:
    """What the first process prepared, in all processes; the others wait for it.

    Raises:
        ValueError: In all processes, if the first could not.
    """
    found: Any = None
    problem = ""
    if fabric.is_global_zero:
        try:
            found = prepare()
        except ValueError as error:
            if fabric.world_size == 1:
                raise
            problem = str(error)
    found, problem = fabric.broadcast((found, problem))
    if problem:
        raise ValueError(problem)
    return found


class StopSignals:
    """Notes SIGTERM and Ctrl-C, so that training can stop after the step at hand.

    A second Ctrl-C ends it at once. Handlers of before are back after the ``with`` block.
    """

    def __init__(self) -> None:
        self._received = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        # Python lets only the main thread listen.
        if threading.current_thread() is threading.main_thread():
            kinds = (signal.SIGTERM, signal.SIGINT)
            # None is a handler that is not Python's.
            self._before = {s: signal.getsignal(s) or signal.SIG_DFL for s in kinds}
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def listen(self) -> None:
        """Put the handlers in place, again at every step: a compiler may have put others there."""
        for signum in self._before:
            signal.signal(signum, self._note)

    def received(self, fabric: "Fabric") -> int:
        """The signal that this process or another received; 0 for none."""
        if fabric.world_size == 1:
            return self._received
        shared = torch.tensor(self._received, device=fabric.device)
        torch.distributed.all_reduce(shared, torch.distributed.ReduceOp.MAX)
        return int(shared)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if self._received and signum == signal.SIGINT:
            raise KeyboardInterrupt
        self._received = signum
