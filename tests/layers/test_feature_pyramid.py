"""FeaturePyramid: its four maps in NumPy; Enlarge: the values of Keras's layer."""

import keras
import numpy as np
import pytest
from scipy.special import erf

from keras_vit.layers import FeaturePyramid
from keras_vit.layers.feature_pyramid import Enlarge


def enlarged(maps, kernel, bias):
    """A transposed convolution with kernel and stride 2: each cell becomes four."""
    batch, rows, columns, _ = maps.shape
    cells = np.einsum("byxc,ijdc->byixjd", maps, kernel)
    return cells.reshape(batch, 2 * rows, 2 * columns, -1) + bias


def test_values(reference, randomise):
    layer = FeaturePyramid(5)
    maps = np.random.default_rng(0).normal(size=(2, 5, 4, 8)).astype("float32")
    layer.build(maps.shape)
    weights = randomise(layer)
    twice = enlarged(maps, weights["enlarge_4a/kernel"], weights["enlarge_4a/bias"])
    normed = reference.layer_norm(twice, weights["norm/gamma"], weights["norm/beta"], 1e-6)
    expected = {
        "neck_4": enlarged(
            normed * (1 + erf(normed / np.sqrt(2))) / 2, weights["enlarge_4b/kernel"], weights["enlarge_4b/bias"]
        ),
        "neck_2": enlarged(maps, weights["enlarge_2/kernel"], weights["enlarge_2/bias"]),
        "neck_1": maps,
        "neck_half": maps[:, :4].reshape(2, 2, 2, 2, 2, 8).max((2, 4)),
    }
    found = layer(maps)
    assert [level.shape for level in found] == layer.compute_output_shape(maps.shape)
    assert [level.shape[1:3] for level in found] == [(20, 16), (10, 8), (5, 4), (2, 2)]
    for level, neck, taken in zip(found, layer.necks, expected.values(), strict=True):
        level, passed = (keras.ops.convert_to_numpy(x) for x in (level, neck(taken.astype("float32"))))
        np.testing.assert_allclose(level, passed, atol=1e-5)


def test_a_saved_model_has_the_same_maps_and_weights_that_learn(tmp_path):
    inputs = keras.Input((None, None, 8))
    model = keras.Model(inputs, FeaturePyramid(4, name="pyramid")(inputs))
    assert [tuple(level.shape) for level in model.outputs] == [(None, None, None, 4)] * 4
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    maps = np.random.default_rng(1).normal(size=(1, 3, 5, 8)).astype("float32")
    for one, other in zip(model(maps), again(maps), strict=True):
        np.testing.assert_array_equal(one, other)
    before = model.get_weights()
    model.compile(keras.optimizers.SGD(0.1), ["mse"] * 4, run_eagerly=True)
    model.train_on_batch(maps, [np.ones_like(level) for level in model(maps)])
    assert all((one != other).any() for one, other in zip(before, model.get_weights(), strict=True))


def test_a_width_that_4_does_not_divide_is_refused():
    with pytest.raises(ValueError, match="FeaturePyramid needs a width that 4 divides; got 6"):
        FeaturePyramid().build((None, 3, 3, 6))


@pytest.mark.parametrize(("size", "factor"), [((3, 5), (4, 2)), ((1, 4), (3, 1)), ((4, 4), 14)])
def test_enlarged_maps_are_those_of_keras(size, factor):
    maps = np.random.default_rng(2).normal(size=(2, *size, 3)).astype("float32")
    inputs = keras.Input((None, None, 3))
    layer = Enlarge(factor)
    model = keras.Model(inputs, layer(inputs))
    expected = keras.layers.UpSampling2D(factor, "channels_last", "bilinear")(maps)
    assert layer.compute_output_shape(maps.shape) == expected.shape
    for found in (layer(maps), model.predict(maps, verbose=0)):
        np.testing.assert_allclose(found, expected, atol=1e-5)
