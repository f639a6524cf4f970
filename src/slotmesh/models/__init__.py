"""Whole networks: those of the paper, and slots on frozen features."""

from slotmesh.models.feature_discovery import FeatureDiscovery, FeatureOutput
from slotmesh.models.merging import same_picture
from slotmesh.models.model import to_unit
from slotmesh.models.object_discovery import DiscoveryOutput, ObjectDiscovery
from slotmesh.models.property_predictor import PropertyOutput, PropertyPredictor
from slotmesh.models.segmentation import Segmentation
from slotmesh.models.set_copier import SetCopier
from slotmesh.models.video_object_discovery import VideoObjectDiscovery, VideoOutput

__all__ = [
    "DiscoveryOutput",
    "FeatureDiscovery",
    "FeatureOutput",
    "ObjectDiscovery",
    "PropertyOutput",
    "PropertyPredictor",
    "Segmentation",
    "SetCopier",
    "VideoObjectDiscovery",
    "VideoOutput",
    "same_picture",
    "to_unit",
]
