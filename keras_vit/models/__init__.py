"""Layers put together into functional keras models."""

from keras_vit.models.base import clone, resize
from keras_vit.models.features import features
from keras_vit.models.vit import VisionTransformer

__all__ = ["VisionTransformer", "clone", "features", "resize"]
