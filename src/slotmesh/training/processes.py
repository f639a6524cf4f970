"""The processes of a run: how they start, communicate, stop and end, and lock the folder."""

import atexit
import contextlib
import json
import logging
import os
import shlex
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from slotmesh.training.places import gpu_count
from slotmesh.training.settings import Settings

if TYPE_CHECKING:
    from lightning.fabric import Fabric

try:
    import fcntl
except ImportError:  # Windows has none
    fcntl = None

T = TypeVar("T")

LOCK_NAME = ".lock"
# A process that has just been killed may still be releasing its memory.
_PATIENCE_S = 2.0

_held: set[int] = set()


def start_processes(settings: Settings) -> "Fabric":
    """Create Fabric for the hardware of the settings, and start all processes.

    Raises:
        ValueError: If the hardware or the number of processes does not match the settings.
    """
    with _lightning_silent():
        fabric = make_fabric(settings)
        try:
            fabric.launch()
        except ValueError as error:
            raise ValueError(f"--hardware.devices, --hardware.nodes: {error}") from error
    return fabric


def make_fabric(settings: Settings) -> "Fabric":
    """Create Fabric for the hardware of the settings, without starting anything."""
    from lightning.fabric import Fabric
    from lightning.fabric.utilities.exceptions import MisconfigurationException

    hardware = settings.hardware
    several = hardware.devices * hardware.nodes > 1
    if several:
        _part_at_exit()
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


@contextlib.contextmanager
def _lightning_silent() -> Iterator[None]:
    """Keep Lightning from printing a line per process, and hints about precision."""
    # It sets the levels of its loggers when it is imported.
    import lightning.fabric  # noqa: F401

    loggers = [logging.getLogger(name) for name in ("lightning.fabric", "lightning.pytorch")]
    before = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.WARNING)
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


@cache
def _part_at_exit() -> None:
    """Register :func:`_part`, once in a process."""
    atexit.register(_part)


def _part() -> None:
    """End the group of processes, if there is one.

    Threads of gloo that outlive the interpreter can abort it, so that a finished run counts as
    failed. Lightning ends the group for NCCL only.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def agree(fabric: "Fabric", prepare: Callable[[], T]) -> T:
    """Return in all processes what the first one prepared; the others wait for it.

    Raises:
        ValueError: In all processes, if it was raised in the first.
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
    """Records SIGTERM and Ctrl-C, so that training can stop after the current step.

    A second Ctrl-C ends training at once. The previous handlers are restored after the ``with``
    block.
    """

    def __init__(self) -> None:
        self._received = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        # Only the main thread can handle signals.
        if threading.current_thread() is threading.main_thread():
            kinds = (signal.SIGTERM, signal.SIGINT)
            # None means a handler that was not set in Python.
            self._before = {s: signal.getsignal(s) or signal.SIG_DFL for s in kinds}
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def listen(self) -> None:
        """Install the handlers, at every step: a compiler may have installed others."""
        for signum in self._before:
            signal.signal(signum, self._note)

    def received(self, fabric: "Fabric") -> int:
        """The signal that any process received; 0 for none."""
        if fabric.world_size == 1:
            return self._received
        shared = torch.tensor(self._received, device=fabric.device)
        torch.distributed.all_reduce(shared, torch.distributed.ReduceOp.MAX)
        return int(shared)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if self._received and signum == signal.SIGINT:
            raise KeyboardInterrupt
        self._received = signum


# ---- one run at a time trains in a folder ----


class Lock:
    """A lock on a folder, created if necessary: no other process trains there until it is released.

    The operating system holds the lock (``flock``), also against other machines that share the file
    system, and releases it however the process ends. The text of the file only names the process.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._path = folder / LOCK_NAME
        self._file: int | None = None

    def acquire(self) -> None:
        """Take the lock.

        Raises:
            ValueError: If another process has it; the message names that process.
            OSError: If the folder cannot be written.
        """
        end = time.monotonic() + _PATIENCE_S
        while self._file is None:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                self._try()
            except BlockingIOError as error:
                if time.monotonic() > end:
                    raise ValueError(
                        f"{self.folder} is in use by another process: {self._holder()}. Wait for "
                        "it or stop it, or choose another folder."
                    ) from error
                time.sleep(0.1)

    def check(self) -> None:
        """Raise an OSError if the folder has been removed or replaced since."""
        if self._file is not None and not self._is_mine(self._file):
            raise OSError(
                f"{self.folder} was removed or replaced during training, so nothing more can be "
                "saved. Repeat the command to train from the beginning."
            )

    def release(self) -> None:
        """Release the lock, if this process has it."""
        if self._file is None:
            return
        file, self._file = self._file, None
        _held.discard(file)
        # Before the file is closed: afterwards, another process could have locked it.
        if self._is_mine(file):
            with contextlib.suppress(OSError):
                self._path.unlink()
        os.close(file)

    def _try(self) -> None:
        mode = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        file = os.open(self._path, mode, 0o666)
        try:
            self._lock(file)
            if not self._is_mine(file):
                # The process that held the lock removed the file in between.
                os.close(file)
                return
        except BaseException:
            os.close(file)
            raise
        self._file = file
        _held.add(file)
        with contextlib.suppress(OSError):  # locked, even if the disk is full
            os.truncate(file, 0)
            os.write(file, _about_me().encode())

    def _lock(self, file: int) -> None:
        reason = "this system has no flock"
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                raise
            except OSError as error:
                reason = str(error.strerror)
        warnings.warn(
            f"{self.folder} cannot be locked ({reason}): make sure that no other command trains "
            "in it at the same time.",
            stacklevel=5,
        )

    def _is_mine(self, file: int) -> bool:
        try:
            return os.path.samestat(os.fstat(file), self._path.stat())
        except OSError:
            return False

    def _holder(self) -> str:
        try:
            said = json.loads(self._path.read_text(encoding="utf-8"))
            return f"pid {said['pid']} on {said['host']}, {said['command']!r:.500}"
        except (OSError, ValueError, TypeError, KeyError):
            return f"it has not written its name to {self._path}"


def _about_me() -> str:
    command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    me = {"pid": os.getpid(), "host": socket.gethostname(), "command": command}
    return json.dumps(me, indent=2) + "\n"


def _leave() -> None:
    """Close the copies in a forked child, which would make the lock outlive this process."""
    for file in _held:
        with contextlib.suppress(OSError):
            os.close(file)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave)
