"""Modules built on the operations: slot attention and its parts."""

from slotmesh.nn.convolutional import (
    ConvEncoder,
    Decoded,
    PositionEmbedding,
    SpatialBroadcastDecoder,
    compose,
)
from slotmesh.nn.noise import (
    FixedGaussian,
    LearnedGaussian,
    LearnedSlots,
    SharedSlot,
    SlotInitializer,
)
from slotmesh.nn.objectives import LearnedObjective, MeshObjective, SlotSimilarity
from slotmesh.nn.slot_attention import SlotAttention, SlotAttentionOutput
from slotmesh.nn.transition import FixedNoise, LearnedNoise, Transition, TransitionOutput
from slotmesh.nn.transports import (
    EMD,
    MarginalHead,
    Mesh,
    OptimalTransport,
    Sinkhorn,
    SlotTransport,
    Softmax,
    TransportContext,
)

__all__ = [
    "EMD",
    "ConvEncoder",
    "Decoded",
    "FixedGaussian",
    "FixedNoise",
    "LearnedGaussian",
    "LearnedNoise",
    "LearnedObjective",
    "LearnedSlots",
    "MarginalHead",
    "Mesh",
    "MeshObjective",
    "OptimalTransport",
    "PositionEmbedding",
    "SharedSlot",
    "Sinkhorn",
    "SlotAttention",
    "SlotAttentionOutput",
    "SlotInitializer",
    "SlotSimilarity",
    "SlotTransport",
    "Softmax",
    "SpatialBroadcastDecoder",
    "Transition",
    "TransitionOutput",
    "TransportContext",
    "compose",
]
