"""The heads and the residual units of DPT, compared with their definitions in NumPy."""

import keras
import numpy as np
import pytest

from keras_vit.layers.dpt import ResidualUnit, SegmentationHead

RNG = np.random.default_rng(0)
MAPS = RNG.normal(size=(2, 3, 5, 4)).astype("float32")


def filled(layer):
    layer.build(MAPS.shape)
    for variable in layer.weights:
        variable.assign(
            RNG.uniform(0.2, 1.0, variable.shape) * (1 if "moving" in variable.path else RNG.choice([-1, 1]))
        )
    return layer


def convolved(x, conv):
    kernel, *bias = (keras.ops.convert_to_numpy(weight) for weight in conv.weights)
    side = kernel.shape[0]
    padded = np.pad(x, ((0, 0), (side // 2,) * 2, (side // 2,) * 2, (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (side, side), axis=(1, 2))
    return np.einsum("brcdij,ijdo->brco", windows, kernel) + (bias[0] if bias else 0)


def normalised(x, norm):
    gamma, beta, mean, variance = (keras.ops.convert_to_numpy(weight) for weight in norm.weights)
    return (x - mean) / np.sqrt(variance + 1e-5) * gamma + beta


def enlarged(x, axis, size):
    """Linear interpolation with aligned corners."""
    places = np.linspace(0, x.shape[axis] - 1, size)
    return np.apply_along_axis(lambda values: np.interp(places, np.arange(len(values)), values), axis, x)


@pytest.mark.parametrize("scale", [1, 2])
def test_segmentation_head(scale):
    head = filled(SegmentationHead(3, scale=scale))
    assert not head.conv1.use_bias and head.conv2.use_bias
    x = convolved(np.maximum(normalised(convolved(MAPS, head.conv1), head.norm), 0), head.conv2)
    expected = enlarged(enlarged(x, 1, 3 * scale), 2, 5 * scale)
    np.testing.assert_allclose(head(MAPS), expected, atol=2e-5)
    assert head.compute_output_shape((None, 3, None, 4)) == (None, 3 * scale, None, 3)


@pytest.mark.parametrize("use_bias", [False, True])
@pytest.mark.parametrize("batch_norm", [False, True])
def test_residual_unit(batch_norm, use_bias):
    unit = filled(ResidualUnit(batch_norm, use_bias))
    assert len(unit.weights) == 2 + 2 * use_bias + 8 * batch_norm
    x = MAPS
    for number in (1, 2):
        x = convolved(np.maximum(x, 0), getattr(unit, f"conv{number}"))
        x = normalised(x, getattr(unit, f"norm{number}")) if batch_norm else x
    np.testing.assert_allclose(unit(MAPS), MAPS + x, rtol=1e-5, atol=1e-4)


def test_training_updates_the_statistics_as_pytorch_does():
    head = filled(SegmentationHead(3, dropout_rate=0.0))
    before, x = keras.ops.convert_to_numpy(head.norm.moving_mean), convolved(MAPS, head.conv1)
    head(MAPS, training=True)
    np.testing.assert_allclose(head.norm.moving_mean, 0.9 * before + 0.1 * x.mean((0, 1, 2)), atol=1e-5)
