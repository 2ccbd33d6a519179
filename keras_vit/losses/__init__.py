"""Losses of task models; `keras_vit.tasks` has the public names. They are registered when `keras_vit` is imported."""

from keras_vit.losses.maps import HeatmapLoss, ScaleShiftInvariantLoss, SiLogLoss
from keras_vit.losses.sets import VOID, DetectionLoss, MaskLoss, SegmentationLoss

__all__ = [
    "VOID",
    "DetectionLoss",
    "HeatmapLoss",
    "MaskLoss",
    "ScaleShiftInvariantLoss",
    "SegmentationLoss",
    "SiLogLoss",
]
