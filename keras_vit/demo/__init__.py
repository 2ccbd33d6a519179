"""A page in the browser on which a model names images and shows where it looks: `keras-vit demo`."""

from keras_vit.demo.server import build_page, launch, wait

__all__ = ["build_page", "launch", "wait"]
