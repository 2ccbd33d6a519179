"""A small model that takes images as scikit-learn's digits are, for the tests of the page."""

import numpy as np

import keras_vit

NAME = "small-digits"


def small_digit_model():
    """Two blocks, two heads, random weights: what it answers differs from digit to digit."""
    config = keras_vit.ViTConfig(
        name=NAME,
        image_size=8,
        patch_size=2,
        channels=1,
        hidden_dim=16,
        num_layers=2,
        num_heads=2,
        mlp_dim=16,
        classes=10,
    )
    model = keras_vit.VisionTransformer(config, labels=[str(digit) for digit in range(10)])
    rng = np.random.default_rng(1)
    model.set_weights([rng.normal(size=weight.shape) for weight in model.weights])
    return model
