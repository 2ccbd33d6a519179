"""MlpBlock: dense, GELU, dropout, dense, dropout."""

import math

import keras
import numpy as np
import pytest

from keras_vit.layers import MlpBlock


@pytest.mark.parametrize("gelu", ["tanh", "erf"])
def test_values(gelu, reference, randomise):
    layer, x = MlpBlock(7, gelu=gelu), 2 * np.random.default_rng(1).normal(size=(2, 3, 5)).astype("float32")
    layer.build(x.shape)
    weights = randomise(layer)
    assert list(weights) == ["dense1/kernel", "dense1/bias", "dense2/kernel", "dense2/bias"]
    expected = reference.mlp(x.astype("float64"), *weights.values(), gelu)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(layer(x)), expected, atol=1e-5)


def test_the_two_forms_of_gelu_differ_where_they_should(reference):
    x = np.linspace(-4, 4, 801)[:, None].astype("float32")
    outputs = {}
    for gelu in ("tanh", "erf"):
        layer = MlpBlock(1, gelu=gelu)
        layer.build(x.shape)
        layer.set_weights([np.ones((1, 1)), np.zeros(1), np.ones((1, 1)), np.zeros(1)])
        outputs[gelu] = keras.ops.convert_to_numpy(layer(x))
        np.testing.assert_allclose(outputs[gelu], reference.gelu(x.astype("float64"), gelu), atol=2e-6)
    assert np.abs(outputs["tanh"] - outputs["erf"]).max() == pytest.approx(4.7e-4, rel=0.02)


def test_dropout_stands_after_both_dense_layers():
    layer, x = MlpBlock(40, dropout_rate=0.5), np.full((100, 40, 40), 20.0, "float32")
    layer.build(x.shape)
    identity = np.eye(40)
    layer.set_weights([identity, np.zeros(40), identity, np.zeros(40)])  # GELU(20) = 20
    factors = keras.ops.convert_to_numpy(layer(x, training=True)) / 20
    assert set(np.unique(factors.round(4))) == {0.0, 4.0}  # kept by both: scaled by 2 twice
    assert (factors > 0).mean() == pytest.approx(0.25, abs=0.01)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(layer(x, training=False)), x, rtol=1e-6)


def test_last_dropout_covers_the_bias():
    layer = MlpBlock(4, dropout_rate=0.5)
    layer.build((None, 8))
    layer.set_weights([np.zeros((8, 4)), np.zeros(4), np.zeros((4, 8)), np.ones(8)])
    output = keras.ops.convert_to_numpy(layer(np.zeros((500, 8), "float32"), training=True))
    assert set(np.unique(output)) == {0.0, 2.0}


def test_kernels_start_xavier_uniform_and_biases_at_normal_1e_6(check_uniform, initial):
    layer = MlpBlock(384)
    layer.build((None, 10, 128))
    weights = initial(layer)
    for name in ("dense1", "dense2"):
        check_uniform(weights[f"{name}/kernel"], math.sqrt(6 / (128 + 384)))
    biases = np.concatenate([weights["dense1/bias"], weights["dense2/bias"]])
    assert biases.std() == pytest.approx(1e-6, rel=0.15)
    assert 0 < np.abs(biases).max() < 6e-6


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"mlp_dim": 0}, "mlp_dim must be an integer of at least 1; got mlp_dim=0"),
        ({"mlp_dim": 4, "dropout_rate": 1}, r"dropout_rate must be a number in \[0, 1\); got dropout_rate=1"),
        ({"mlp_dim": 4, "gelu": "exact"}, "gelu must be one of 'tanh', 'erf'; got gelu='exact'"),
    ],
)
def test_wrong_arguments_are_refused(kwargs, message):
    with pytest.raises(ValueError, match=message):
        MlpBlock(**kwargs)
