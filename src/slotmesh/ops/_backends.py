"""Which backends of sinkhorn and mesh there are, and what "auto" takes."""

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch

from slotmesh.ops._native.library import load


@dataclass(frozen=True)
class BackendStatus:
    """One way to compute sinkhorn and mesh on this machine."""

    name: str
    """As the argument ``backend`` takes it."""
    available: bool
    """Whether it can be used."""
    reason: str | None = None
    """Why it cannot be used; or why its library is from no better place."""
    library: str | None = None
    """Where the C of ``"cpu"`` is from: ``"shipped"`` with the package, ``"cached"``, compiled on
    this machine, or ``"temporary"``, compiled for this process; None where there is none."""
    instructions: str | None = None
    """Which it uses: ``"avx512"``, ``"avx2"``, or ``"baseline"``, those that all processors of this
    kind have."""

    def __str__(self) -> str:
        parts = (self.library and f"{self.library}, {self.instructions}", self.reason)
        about = "; ".join(part for part in parts if part)
        return f"{self.name:<7} {'yes' if self.available else 'no':<4} {about}".rstrip()


@dataclass(frozen=True, repr=False)
class Backends:
    """What :func:`backends` found; it prints as a table."""

    torch: BackendStatus
    triton: BackendStatus
    cpu: BackendStatus
    auto: Mapping[str, str]
    """What ``backend="auto"`` takes for float32 on each type of device, where the options of the
    call allow it: ``auto["cpu"]`` is ``"cpu"`` or ``"torch"``, ``auto["cuda"]`` is ``"triton"`` or
    ``"torch"``."""

    def __repr__(self) -> str:
        chosen = ", ".join(f"{name} for tensors on {device}" for device, name in self.auto.items())
        lines = (self.torch, self.triton, self.cpu, f"auto    takes {chosen}")
        return "\n".join(map(str, lines))


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
    plain, triton, cpu = BackendStatus("torch", True), _triton(), _cpu()
    # Whether or not there is a CUDA device now.
    fused = importlib.util.find_spec("triton") is not None
    auto = {"cpu": "cpu" if cpu.available else "torch", "cuda": "triton" if fused else "torch"}
    return Backends(plain, triton, cpu, MappingProxyType(auto))


def _triton() -> BackendStatus:
    """Without importing it."""
    if importlib.util.find_spec("triton") is None:
        return BackendStatus("triton", False, "triton is not installed (pip install triton)")
    if not torch.cuda.is_available():
        return BackendStatus("triton", False, "torch finds no CUDA device")
    return BackendStatus("triton", True)


def _cpu() -> BackendStatus:
    found = load()
    if isinstance(found, str):
        return BackendStatus("cpu", False, found)
    return BackendStatus("cpu", True, found.note, found.origin, found.level)
