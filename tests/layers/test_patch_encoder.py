"""PatchEncoder: patches in raster order, each projected by the same kernel."""

import math

import keras
import numpy as np
import pytest
from faults import for_each

from keras_vit.layers import PatchEncoder


def test_tokens_are_the_patches_in_raster_order_times_the_kernel(randomise):
    layer = PatchEncoder((2, 3), 5)
    images = np.random.default_rng(1).normal(size=(2, 6, 12, 3)).astype("float32")
    layer.build(images.shape)
    weights = randomise(layer)
    kernel, bias = weights["projection/kernel"], weights["projection/bias"]
    assert kernel.shape == (2, 3, 3, 5)
    expected = np.empty((2, 12, 5))
    for sample in range(2):
        for row in range(3):
            for column in range(4):
                patch = images[sample, 2 * row : 2 * row + 2, 3 * column : 3 * column + 3]
                expected[sample, 4 * row + column] = patch.ravel() @ kernel.reshape(18, 5) + bias
    np.testing.assert_allclose(keras.ops.convert_to_numpy(layer(images)), expected, atol=1e-5)


def test_one_integer_means_square_patches():
    layer = PatchEncoder(4, 8)
    assert layer.patch_size == (4, 4)
    assert layer.compute_output_shape((None, 12, 8, 3)) == (None, 6, 8)
    assert layer.grid_size((None, 12, 8, 3)) == (3, 2)


@for_each(
    ("shape", "message"),
    [
        (
            (None, 225, 224, 3),
            r"image_size must be divisible by patch_size; got image_size=\(225, 224\), patch_size=\(16, 16\)",
        ),
        ((None, 224, 8, 3), r"image_size must be .* patch_size; got image_size=\(224, 8\)"),
        ((None, None, 225, 3), r"image_size must be divisible by patch_size; got image_size=\(225,\)"),
        (
            (None, None, None, None),
            r"images or maps of shape \(batch, rows, columns, channels\) with known size; got \(None, None",
        ),
        (
            (None, None, None),
            r"images or maps of shape \(batch, rows, columns, channels\) with known size; got \(None, None, None\)",
        ),
        ((None, 224, 3), r"patches must have the width patch height \* patch width \* channels .*; got 3 and"),
    ],
)
def test_images_that_the_patches_do_not_tile_are_refused(shape, message):
    with pytest.raises(ValueError, match=message):
        PatchEncoder(16, 8, whole_patches=True).build(shape)
    if shape[-1] == 3 and len(shape) == 4 and min(filter(None, shape[1:3])) > 16:
        PatchEncoder(16, 8).build(shape)


@for_each(
    ("arguments", "message"),
    [
        ((0, 8), "patch_size must be one positive integer or a pair .* got patch_size=0"),
        (
            ((4, 4, 4), 8),
            r"patch_size must be one positive integer or a pair \(height, width\) of them; got patch_size=\(4, 4, 4\)",
        ),
        ((4, 0), "hidden_dim must be an integer of at least 1; got hidden_dim=0"),
        ((4, 7.5), "hidden_dim must be an integer of at least 1; got hidden_dim=7.5"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        PatchEncoder(*arguments)


def test_kernel_starts_lecun_normal_and_bias_at_zero(initial):
    layer = PatchEncoder(8, 512)
    layer.build((None, 16, 16, 3))
    weights = initial(layer)
    kernel, std = weights["projection/kernel"], 1 / math.sqrt(8 * 8 * 3)
    assert kernel.std() == pytest.approx(std, rel=0.02)
    # A normal cut at two deviations, widened so that the deviation of what is left is right.
    assert 0.99 * 2 * std / 0.87962566 < np.abs(kernel).max() <= 2 * std / 0.87962566 * (1 + 1e-6)
    assert not weights["projection/bias"].any()
