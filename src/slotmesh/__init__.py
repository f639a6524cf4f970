"""Slot attention with optimal transport, and the transport operations on their own."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slotmesh import nn, ops
    from slotmesh.nn import SlotAttention
    from slotmesh.ops import emd, mesh, sinkhorn
    from slotmesh.training.fit import fit

__version__ = "0.2.0"

__all__ = ["SlotAttention", "__version__", "emd", "fit", "mesh", "nn", "ops", "sinkhorn"]

# Imported when first used: torch takes seconds, and `slotmesh --help` does not need it.
_HOMES = {
    "SlotAttention": "slotmesh.nn",
    "emd": "slotmesh.ops",
    "fit": "slotmesh.training.fit",
    "mesh": "slotmesh.ops",
    "sinkhorn": "slotmesh.ops",
}


def __getattr__(name: str) -> Any:
    if name in ("nn", "ops"):
        return import_module(f"slotmesh.{name}")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'slotmesh' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
