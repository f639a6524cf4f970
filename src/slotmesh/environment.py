"""Describe the software and the machine behind a result."""

import importlib.util
import platform
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch

import slotmesh


def environment(device: torch.device | None = None) -> dict[str, Any]:
    """Versions of the packages, and the machine.

    Args:
        device: Where the result was computed, whose name is added. By default, the name of the
            default GPU is added, if there is one.

    Example:
        >>> import torch
        >>> from slotmesh.environment import environment
        >>> environment(torch.device("cpu"))["torch"] == torch.__version__
        True
    """
    import lightning
    import numpy as np

    found: dict[str, Any] = {} if device is None else {"device": device_name(device)}
    found |= {
        "slotmesh": slotmesh.__version__,
        "torch": torch.__version__,
        "lightning": lightning.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
    }
    if device is None and torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
    if "gpu" in found or (device is not None and device.type == "cuda"):
        found |= {"cuda": torch.version.cuda, "triton": _triton_version()}
    return found


_command: ContextVar[tuple[str, ...]] = ContextVar("command", default=())


@contextmanager
def running(words: Sequence[str]) -> Iterator[None]:
    """Record the words of the command that runs inside the ``with`` block."""
    token = _command.set(tuple(words))
    try:
        yield
    finally:
        _command.reset(token)


def command_line() -> dict[str, str]:
    """The ``command`` that runs, as it can be typed again; nothing where another program runs.

    Example:
        >>> from slotmesh.environment import command_line, running
        >>> with running(["slotmesh", "evaluate", "my run"]):
        ...     command_line()
        {'command': "slotmesh evaluate 'my run'"}
        >>> command_line()
        {}
    """
    words = _command.get()
    return {"command": shlex.join(words)} if words else {}


def device_name(device: torch.device) -> str:
    """Name of the GPU, or of the CPU as the system reports it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine()


def _triton_version() -> str | None:
    if importlib.util.find_spec("triton") is None:
        return None
    import triton

    return triton.__version__
