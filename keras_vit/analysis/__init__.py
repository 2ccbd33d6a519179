"""What a model looks at, what its first filters see and what it knows of places: arrays; `plots` draws them."""

from keras_vit.analysis.attention import attention_model, attention_weights
from keras_vit.analysis.distance import mean_attention_distance, receptive_field
from keras_vit.analysis.filters import FilterComponents, embedding_filters, filter_components, smoothness
from keras_vit.analysis.positions import position_similarity
from keras_vit.analysis.rollout import attention_rollout, rollout_model

__all__ = [
    "FilterComponents",
    "attention_model",
    "attention_rollout",
    "attention_weights",
    "embedding_filters",
    "filter_components",
    "mean_attention_distance",
    "position_similarity",
    "receptive_field",
    "rollout_model",
    "smoothness",
]
