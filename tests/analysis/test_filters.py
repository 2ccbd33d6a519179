"""Principal components of the first filters against scikit-learn's."""

import keras
import numpy as np
import pytest
from families import built
from faults import for_each
from sklearn.decomposition import PCA

from keras_vit.analysis import embedding_filters, filter_components, smoothness


def _kernel_of(name, model):
    if name == "hybrid":
        kernel = keras.ops.convert_to_numpy(model.get_layer("root_conv").kernel).astype("float64")
        centred = kernel - kernel.mean((0, 1, 2))
        return centred / (centred.std((0, 1, 2)) + 1e-5)
    layer = {"hybrid on a CNN": lambda: model.get_layer("cnn").get_layer("conv")}.get(
        name, lambda: model.get_layer("patch_encoder").projection
    )()
    return keras.ops.convert_to_numpy(layer.kernel).astype("float64")


@pytest.mark.parametrize("name", ["plain", "axial", "Swin", "hybrid", "hybrid on a CNN"])
def test_components_are_those_of_scikit_learn(name):
    model = built(name)
    kernel = _kernel_of(name, model)
    count = min(5, kernel.shape[-1] - 1)
    expected = PCA(count).fit(kernel.reshape(-1, kernel.shape[-1]).T)
    found = filter_components(model, count)
    flat = found.filters.reshape(count, -1)
    signs = np.sign((flat * expected.components_).sum(1, keepdims=True))
    np.testing.assert_allclose(signs * flat, expected.components_, atol=1e-5)
    np.testing.assert_allclose(found.explained, expected.explained_variance_ratio_, rtol=1e-5)
    assert (np.take_along_axis(flat, np.abs(flat).argmax(1)[:, None], 1) > 0).all()


def test_a_model_around_it_has_the_same_filters():
    model = built("plain")
    inputs = keras.Input((32, 32, 3))
    around = keras.Model(inputs, model(keras.layers.Rescaling(2.0)(inputs)))
    np.testing.assert_array_equal(embedding_filters(around, 4), embedding_filters(model, 4))
    assert embedding_filters(model).shape == (28, 8, 8, 3)


def test_there_are_no_more_components_than_filters():
    kernel = np.random.default_rng(0).normal(size=(4, 4, 3, 6))
    assert embedding_filters(kernel, centred=False).shape == (6, 4, 4, 3)
    found = filter_components(kernel)  # the mean filter is one direction less
    assert found.filters.shape == (5, 4, 4, 3) and found.explained.min() > 1e-3


def test_smoothness_of_waves_and_of_noise():
    x = np.arange(16) * 2 * np.pi / 16
    wave = {cycles: np.cos(cycles * x)[:, None, None] * np.ones((16, 16, 3)) for cycles in (1, 4, 5)}
    np.testing.assert_allclose(smoothness(list(wave.values())), [1, 1, 0], atol=1e-12)
    np.testing.assert_allclose(smoothness(list(wave.values()), cycles=3), [1, 0, 0], atol=1e-12)
    assert smoothness(np.zeros((1, 16, 16, 3))) == [0]
    noise = np.random.default_rng(0).normal(size=(400, 16, 16, 3))
    assert abs(smoothness(noise).mean() - (9 / 16) ** 2) < 0.01


@for_each(
    ("arguments", "message"),
    [
        ({"components": 0}, "components must be an integer of at least 1; got components=0"),
        ({"centred": None}, "centred must be True or False; got centred=None"),
        ({"model": np.ones((4, 3, 6))}, r"a kernel must have shape .*; got \(4, 3, 6\)"),
        ({"model": keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)], name="dense")}, "dense has none"),
    ],
)
def test_arguments_are_checked(arguments, message):
    with pytest.raises(ValueError, match=message):
        embedding_filters(**{"model": np.ones((4, 4, 3, 6)), **arguments})
