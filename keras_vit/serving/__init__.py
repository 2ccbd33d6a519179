"""Models as files that other programs serve."""

from keras_vit.serving.export import export

__all__ = ["export"]
