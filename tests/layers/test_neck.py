"""Neck: two convolutions and norms in NumPy."""

import keras
import numpy as np

from keras_vit.layers import Neck


def test_values(reference, randomise):
    layer = Neck(5)
    maps = np.random.default_rng(0).normal(size=(2, 3, 4, 6)).astype("float32")
    layer.build(maps.shape)
    weights = randomise(layer)
    assert sorted(weights) == [
        *("conv1/kernel", "conv2/kernel", "norm1/beta", "norm1/gamma", "norm2/beta", "norm2/gamma"),
    ]
    x = reference.layer_norm(maps @ weights["conv1/kernel"][0, 0], weights["norm1/gamma"], weights["norm1/beta"], 1e-6)
    padded, expected = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0))), 0.0
    for y in range(3):
        for x in range(3):
            expected = expected + padded[:, y : y + 3, x : x + 4] @ weights["conv2/kernel"][y, x]
    expected = reference.layer_norm(expected, weights["norm2/gamma"], weights["norm2/beta"], 1e-6)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(layer(maps)), expected, atol=1e-5)
