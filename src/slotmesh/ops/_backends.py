"""Which backends of sinkhorn and mesh are available, and which one "auto" uses."""

import importlib.util
from dataclasses import dataclass

import torch

from slotmesh.ops._native.library import load


@dataclass(frozen=True)
class BackendStatus:
    """One way to compute sinkhorn and mesh on this machine."""

    name: str
    """The value of the argument ``backend``."""
    available: bool
    """Whether it can be used."""
    reason: str | None = None
    """Why it cannot be used, or why its library had to be compiled."""
    library: str | None = None
    """Where the C library of ``"cpu"`` is from: ``"shipped"`` with the package, ``"cached"``,
    compiled on this machine, or ``"temporary"``, compiled for this process; None if there is none.
    """
    instructions: str | None = None
    """Its instruction set: ``"avx512"``, ``"avx2"``, or ``"baseline"``, which every processor of
    this kind has."""

    def __str__(self) -> str:
        parts = (self.library and f"{self.library}, {self.instructions}", self.reason)
        about = "; ".join(part for part in parts if part)
        return f"{self.name:<7} {'yes' if self.available else 'no':<4} {about}".rstrip()


@dataclass(frozen=True, repr=False)
class Backends:
    """The result of :func:`backends`; it prints as a table."""

    torch: BackendStatus
    triton: BackendStatus
    cpu: BackendStatus
    auto: dict[str, str]
    """What ``backend="auto"`` uses for float32 on each type of device, if the options of the call
    allow it: ``auto["cpu"]`` is ``"cpu"`` or ``"torch"``, ``auto["cuda"]`` is ``"triton"`` or
    ``"torch"``."""

    def __repr__(self) -> str:
        chosen = ", ".join(f"{name} for tensors on {device}" for device, name in self.auto.items())
        lines = (self.torch, self.triton, self.cpu, f"auto    uses {chosen}")
        return "\n".join(map(str, lines))


def backends() -> Backends:
    """Which backends of :func:`slotmesh.sinkhorn` and :func:`slotmesh.mesh` work here, or why not.

    The first call in a process looks for the C library and compiles it if necessary, as the first
    :func:`~slotmesh.mesh` on a CPU would.

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
    return Backends(plain, triton, cpu, auto)


def _triton() -> BackendStatus:
    """Whether Triton works, without importing it."""
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
