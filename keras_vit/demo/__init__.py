"""A browser page that shows the predictions and the attention of a model: `keras-vit demo`."""

from keras_vit.demo.server import build_page, launch, wait

__all__ = ["build_page", "launch", "wait"]
