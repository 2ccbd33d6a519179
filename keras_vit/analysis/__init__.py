"""Attention, embedding filters and position similarity of a model as arrays; `plots` draws them."""

import importlib
from typing import TYPE_CHECKING

from keras_vit.analysis.attention import attention_model, attention_weights
from keras_vit.analysis.distance import mean_attention_distance, receptive_field
from keras_vit.analysis.filters import FilterComponents, embedding_filters, filter_components, smoothness
from keras_vit.analysis.heads import head_maps, head_strength
from keras_vit.analysis.heat_map import heat_map
from keras_vit.analysis.overlay import overlay
from keras_vit.analysis.positions import position_similarity
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
    "smoothness",
]


if TYPE_CHECKING:
    from keras_vit.analysis import plots
else:

    def __getattr__(name):
        """Import `plots` on first access."""
        if name != "plots":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return importlib.import_module("keras_vit.analysis.plots")
