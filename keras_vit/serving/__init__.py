"""Export of models to files that other programs serve."""

from keras_vit.serving.export import ExportError, export

__all__ = ["ExportError", "export"]
