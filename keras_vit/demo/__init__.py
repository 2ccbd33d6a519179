"""A page in the browser that shows how a model classifies images and where it looks: `keras-vit demo`."""

from keras_vit.demo.server import build_page, launch, wait

__all__ = ["build_page", "launch", "wait"]
