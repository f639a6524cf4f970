"""Slot attention whose cross-attention is optimal transport, and the transport operations alone."""

from typing import TYPE_CHECKING, Any

from slotmesh import nn, ops
from slotmesh.nn import SlotAttention
from slotmesh.ops import emd, mesh, sinkhorn

if TYPE_CHECKING:
    from slotmesh.training.fit import fit

__version__ = "0.1.0"

__all__ = ["SlotAttention", "__version__", "emd", "fit", "mesh", "nn", "ops", "sinkhorn"]


def __getattr__(name: str) -> Any:
    # Training takes seconds to import, and most programs need none.
    if name == "fit":
        from slotmesh.training.fit import fit

        return fit
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
