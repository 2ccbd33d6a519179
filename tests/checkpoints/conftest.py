"""Small models for the tests of this folder: random weights everywhere, so that no two arrays are equal."""

import numpy as np
import pytest

import keras_vit

TINY = {
    "name": "tiny",
    "image_size": 16,
    "patch_size": 4,
    "hidden_dim": 8,
    "num_layers": 2,
    "num_heads": 2,
    "mlp_dim": 12,
    "classes": 3,
}


@pytest.fixture
def make_model():
    """Function of changes to the tiny config that builds a model whose weights are all drawn from N(0, 0.5)."""

    def make(seed=0, **changes):
        model = keras_vit.VisionTransformer(keras_vit.ViTConfig(**{**TINY, **changes}))
        rng = np.random.default_rng(seed)
        for variable in model.weights:
            variable.assign(rng.normal(0.0, 0.5, variable.shape))
        return model

    return make


@pytest.fixture
def weights_of():
    """Function of a model that returns {path of the variable: array}."""
    return lambda model: {variable.path: variable.numpy().copy() for variable in model.weights}
