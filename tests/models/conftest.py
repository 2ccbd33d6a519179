"""Small models with random weights, and images for them."""

import keras
import numpy as np
import pytest
from filled import filled

from keras_vit import VisionTransformer, ViTConfig

TINY = {
    "name": "tiny",
    "image_size": 16,
    "patch_size": 4,
    "hidden_dim": 16,
    "num_layers": 2,
    "num_heads": 2,
    "mlp_dim": 24,
    "classes": 5,
}


@pytest.fixture(scope="session")
def make_config():
    return lambda **changes: ViTConfig(**{**TINY, **changes})


@pytest.fixture(scope="session")
def make_model(make_config):
    """Function from changes to the tiny config to a model of random weights: zeros would hide the rest."""

    def make(preprocessing=None, labels=None, **changes):
        config = make_config(**changes)
        return filled(lambda: VisionTransformer(config, preprocessing=preprocessing, labels=labels), 5, 0.05, 0.3)

    return make


@pytest.fixture(scope="session")
def make_images():
    """Function from a model to a batch of random images of its size."""

    def make(model, count=3):
        return np.random.default_rng(6).normal(size=(count, *model.input.shape[1:])).astype("float32")

    return make


@pytest.fixture(scope="session")
def run():
    """Function that calls a model and gives float32 arrays."""

    def call(model, images, **kwargs):
        outputs = model(images, **kwargs)
        return keras.tree.map_structure(lambda x: keras.ops.convert_to_numpy(keras.ops.cast(x, "float32")), outputs)

    return call


@pytest.fixture(scope="session")
def images():
    """Six random images of the tiny config's size."""
    return np.random.default_rng(7).normal(size=(6, 16, 16, 3)).astype("float32")
