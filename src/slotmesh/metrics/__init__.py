"""Metrics of slots: pure functions, and torchmetrics classes for whole datasets."""

from slotmesh.metrics.ari import AdjustedRandIndex, ForegroundARI, ari, fg_ari
from slotmesh.metrics.average_precision import (
    AP_THRESHOLDS,
    APMode,
    AveragePrecision,
    average_precision,
    average_precision_per_image,
)
from slotmesh.metrics.clevr_table import (
    CLEVR_COLUMNS,
    CLEVR_LABELS,
    CLEVR_WIDTH,
    POSITION_SCALE,
    encode_objects,
)
from slotmesh.metrics.consistency import TemporalConsistency, temporal_consistency
from slotmesh.metrics.matching import Matching, match_objects
from slotmesh.metrics.miou import ForegroundMIoU, fg_miou
from slotmesh.metrics.overlap import MeanBestOverlap, MeanIoU, class_mask, mbo, miou
from slotmesh.metrics.rmse import NormalisedRMSE, matched_squared_error, normalised_rmse
from slotmesh.metrics.usage import SlotUsage, slot_usage

__all__ = [
    "AP_THRESHOLDS",
    "CLEVR_COLUMNS",
    "CLEVR_LABELS",
    "CLEVR_WIDTH",
    "POSITION_SCALE",
    "APMode",
    "AdjustedRandIndex",
    "AveragePrecision",
    "ForegroundARI",
    "ForegroundMIoU",
    "Matching",
    "MeanBestOverlap",
    "MeanIoU",
    "NormalisedRMSE",
    "SlotUsage",
    "TemporalConsistency",
    "ari",
    "average_precision",
    "average_precision_per_image",
    "class_mask",
    "encode_objects",
    "fg_ari",
    "fg_miou",
    "match_objects",
    "matched_squared_error",
    "mbo",
    "miou",
    "normalised_rmse",
    "slot_usage",
    "temporal_consistency",
]
