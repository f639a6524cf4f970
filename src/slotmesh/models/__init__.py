"""The networks of the paper, from images or sets to slots and predictions."""

from slotmesh.models.images import to_unit
from slotmesh.models.merging import same_picture
from slotmesh.models.object_discovery import DiscoveryOutput, ObjectDiscovery
from slotmesh.models.property_predictor import PropertyOutput, PropertyPredictor
from slotmesh.models.segmentation import Segmentation
from slotmesh.models.set_copier import SetCopier
from slotmesh.models.video_object_discovery import VideoObjectDiscovery, VideoOutput

__all__ = [
    "DiscoveryOutput",
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
