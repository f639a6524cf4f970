"""Modules built on the operations: slot attention and its parts."""

from slotmesh.nn.backbones import BackboneError
from slotmesh.nn.convolutional import (
    ConvEncoder,
    Decoded,
    PositionEmbedding,
    SpatialBroadcastDecoder,
    compose,
)
from slotmesh.nn.feature_decoder import DecodedFeatures, FeatureDecoder
from slotmesh.nn.features import FrozenFeatures
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
    "BackboneError",
    "ConvEncoder",
    "Decoded",
    "DecodedFeatures",
    "FeatureDecoder",
    "FixedGaussian",
    "FixedNoise",
    "FrozenFeatures",
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
