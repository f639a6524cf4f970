"""Whole networks: what the paper trains, from images or sets to slots and what is made of them."""

from slotmesh.models.images import to_unit
from slotmesh.models.object_discovery import DiscoveryOutput, ObjectDiscovery
from slotmesh.models.property_predictor import PropertyOutput, PropertyPredictor
from slotmesh.models.set_copier import SetCopier
from slotmesh.models.video_object_discovery import VideoObjectDiscovery, VideoOutput

__all__ = [
    "DiscoveryOutput",
    "ObjectDiscovery",
    "PropertyOutput",
    "PropertyPredictor",
    "SetCopier",
    "VideoObjectDiscovery",
    "VideoOutput",
    "to_unit",
]
