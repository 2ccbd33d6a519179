"""Attention, embedding filters and position similarity of a model as arrays; `plots` draws them."""

from keras_vit.analysis import plots
from keras_vit.analysis.attention import attention_model, attention_weights
from keras_vit.analysis.embeddings import (
    FilterComponents,
    embedding_filters,
    filter_components,
    position_similarity,
    smoothness,
)
from keras_vit.analysis.heads import head_maps, head_strength, mean_attention_distance, receptive_field
from keras_vit.analysis.overlay import heat_map, overlay, seen_images
from keras_vit.analysis.rollout import attention_rollout, rollout_by_block, rollout_model

__all__ = [
    "FilterComponents",
    "attention_model",
    "attention_rollout",
    "attention_weights",
    "embedding_filters",
    "filter_components",
    "head_maps",
    "head_strength",
    "heat_map",
    "mean_attention_distance",
    "overlay",
    "plots",
    "position_similarity",
    "receptive_field",
    "rollout_by_block",
    "rollout_model",
    "seen_images",
    "smoothness",
]
