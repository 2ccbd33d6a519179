"""What a model looks at."""

from keras_vit.analysis.attention import attention_model, rollout_model

__all__ = ["attention_model", "rollout_model"]
