"""Which backends of sinkhorn and mesh there are, and what "auto" takes."""

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch

from slotmesh.ops._native import unavailable


@dataclass(frozen=True)
class BackendStatus:
    """One way to compute sinkhorn and mesh on this machine."""

    name: str
    """As the argument ``backend`` takes it."""
    available: bool
    """Whether it can be used."""
    detail: str
    """Why it cannot be used and how to change that; or what it is."""

    def __str__(self) -> str:
        return f"{self.name:<7} {'yes' if self.available else 'no':<4} {self.detail}"


@dataclass(frozen=True)
class Backends:
    """What :func:`backends` found."""

    torch: BackendStatus
    triton: BackendStatus
    cpu: BackendStatus
    auto: Mapping[str, str]
    """What ``backend="auto"`` takes for float32 on each type of device, where the options of the
    call allow it: ``auto["cpu"]`` is ``"cpu"`` or ``"torch"``, ``auto["cuda"]`` is ``"triton"`` or
    ``"torch"``."""

    def __str__(self) -> str:
        chosen = ", ".join(f"{name} on {device}" for device, name in self.auto.items())
        return "\n".join((*map(str, (self.torch, self.triton, self.cpu)), f"auto    {chosen}"))


def backends() -> Backends:
    """Which backends of :func:`slotmesh.sinkhorn` and :func:`slotmesh.mesh` work here, and why not.

    The first call in a process looks for the C library, and builds it where it has to be built, as
    the first :func:`~slotmesh.mesh` on a CPU would.

    Example:
        >>> from slotmesh.ops import backends
        >>> backends().torch.available
        True
        >>> backends().auto["cpu"] in ("cpu", "torch")
        True
    """
    plain = BackendStatus("torch", True, "plain torch: every device, dtype and option")
    triton = _triton()
    reason = unavailable()
    cpu = BackendStatus("cpu", reason is None, reason or "C")
    has_triton = importlib.util.find_spec("triton") is not None
    auto = {
        "cpu": "cpu" if cpu.available else "torch",
        "cuda": "triton" if has_triton else "torch",
    }
    return Backends(plain, triton, cpu, MappingProxyType(auto))


def _triton() -> BackendStatus:
    """Without importing it."""
    if importlib.util.find_spec("triton") is None:
        return BackendStatus("triton", False, "triton is not installed (pip install triton)")
    if not torch.cuda.is_available():
        return BackendStatus("triton", False, "torch sees no CUDA device")
    return BackendStatus("triton", True, "fused kernels on CUDA devices")
