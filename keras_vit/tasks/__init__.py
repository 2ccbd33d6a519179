"""Answers of task models in pixels of the image: depth, segments, boxes, keypoints and masks; and losses."""

from keras_vit.losses import (
    DetectionLoss,
    HeatmapLoss,
    MaskLoss,
    ScaleShiftInvariantLoss,
    SegmentationLoss,
    SiLogLoss,
)
from keras_vit.tasks.boxes import Boxes, detected_boxes, example_boxes
from keras_vit.tasks.depth import DepthMap, depth_map
from keras_vit.tasks.inputs import Placement, placements, prepare
from keras_vit.tasks.keypoints import Keypoints, flip_average, heatmap_peaks, keypoints
from keras_vit.tasks.masks import Masks, mask_stability, masks_in_image
from keras_vit.tasks.segments import LabelMap, Segments, instances, label_map, panoptic, semantic_scores

__all__ = [
    "Boxes",
    "DepthMap",
    "DetectionLoss",
    "HeatmapLoss",
    "Keypoints",
    "LabelMap",
    "MaskLoss",
    "Masks",
    "Placement",
    "ScaleShiftInvariantLoss",
    "SegmentationLoss",
    "Segments",
    "SiLogLoss",
    "depth_map",
    "detected_boxes",
    "example_boxes",
    "flip_average",
    "heatmap_peaks",
    "instances",
    "keypoints",
    "label_map",
    "mask_stability",
    "masks_in_image",
    "panoptic",
    "placements",
    "prepare",
    "semantic_scores",
]
