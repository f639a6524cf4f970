"""The four transports of the paper: SA, SA-SH, SA-EMD and SA-MESH."""

from slotmesh.nn.transports.base import (
    MarginalHead,
    OptimalTransport,
    SlotTransport,
    TransportContext,
)
from slotmesh.nn.transports.emd import EMD
from slotmesh.nn.transports.mesh import Mesh
from slotmesh.nn.transports.sinkhorn import Sinkhorn
from slotmesh.nn.transports.softmax import Softmax

__all__ = [
    "EMD",
    "MarginalHead",
    "Mesh",
    "OptimalTransport",
    "Sinkhorn",
    "SlotTransport",
    "Softmax",
    "TransportContext",
]
