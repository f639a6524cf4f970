"""Slot attention whose cross-attention is optimal transport, and the transport operations alone."""

from slotmesh import nn, ops
from slotmesh.nn import SlotAttention
from slotmesh.ops import emd, mesh, sinkhorn

__version__ = "0.1.0"

__all__ = ["SlotAttention", "__version__", "emd", "mesh", "nn", "ops", "sinkhorn"]
