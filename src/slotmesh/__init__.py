"""Slot attention whose cross-attention is optimal transport, and the transport operations alone."""

from importlib.metadata import version

from slotmesh import nn, ops
from slotmesh.nn import SlotAttention
from slotmesh.ops import emd, mesh, sinkhorn

__version__ = version("slotmesh")

__all__ = ["SlotAttention", "__version__", "emd", "mesh", "nn", "ops", "sinkhorn"]
