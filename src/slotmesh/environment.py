"""What a measurement was made with: the device and the versions of the software."""

import importlib.metadata
import platform
import re
from pathlib import Path

import torch

import slotmesh


def environment(device: torch.device | str = "cpu") -> dict[str, str | None]:
    """Describe the device and the versions that a measurement depends on.

    Args:
        device: The device that computes.

    Returns:
        The name of the ``device``, the versions of ``slotmesh``, ``torch`` and ``python`` and, on
        a CUDA device, of ``cuda`` and ``triton`` (None elsewhere).

    Example:
        >>> import torch
        >>> from slotmesh.environment import environment
        >>> found = environment("cpu")
        >>> list(found)
        ['device', 'slotmesh', 'torch', 'python', 'cuda', 'triton']
        >>> found["torch"] == torch.__version__, found["cuda"]
        (True, None)
    """
    cuda = torch.device(device).type == "cuda"
    return {
        "device": device_name(device),
        "slotmesh": slotmesh.__version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "cuda": torch.version.cuda if cuda else None,
        "triton": _version("triton") if cuda else None,
    }


def device_name(device: torch.device | str = "cpu") -> str:
    """Return the name of a GPU, or that of the CPU as the operating system reports it.

    Example:
        >>> from slotmesh.environment import device_name
        >>> len(device_name("cpu")) > 0
        True
    """
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine()


def slug(name: str) -> str:
    """Turn the name of a device into a part of a file name.

    Example:
        >>> from slotmesh.environment import slug
        >>> slug("Intel(R) Xeon(R) Processor")
        'intel-r-xeon-r-processor'
    """
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
