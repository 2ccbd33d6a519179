"""MlpBlock: dense, GELU, dropout, dense, dropout."""

import math

import keras
import numpy as np
import onevit
import pytest
from faults import for_each

from keras_vit.config import BlockConfig
from keras_vit.layers import MlpBlock


@pytest.mark.parametrize("gelu", ["tanh", "erf"])
def test_values(gelu, reference, randomise):
    layer, x = MlpBlock(7, gelu=gelu), 2 * np.random.default_rng(1).normal(size=(2, 3, 5)).astype("float32")
    layer.build(x.shape)
    weights = randomise(layer)
    assert list(weights) == ["dense1/kernel", "dense1/bias", "dense2/kernel", "dense2/bias"]
    expected = reference.mlp(x.astype("float64"), *weights.values(), gelu)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(layer(x)), expected, atol=1e-5)


@pytest.mark.parametrize("gelu", ["tanh", "erf", "quick"])
@pytest.mark.parametrize(
    "block",
    [
        {},
        {"bias": False},
        {"mlp_norm": True},
        {"mlp_norm": True, "norm": "rms"},
        {"gated": True},
        {"gated": True, "bias": False, "norm": "rms"},
        {"gated": True, "mlp_norm": True},
    ],
    ids=str,
)
def test_switches_of_the_block(block, gelu, randomise):
    layer = MlpBlock(7, gelu=gelu, block=BlockConfig(**block), epsilon=1e-3)
    x = 2 * np.random.default_rng(1).normal(size=(2, 3, 5)).astype("float32")
    layer.build(x.shape)
    weights = randomise(layer)
    gated, kind = block.get("gated", False), block.get("norm", "layer")
    assert weights["dense1/kernel"].shape == (5, 14 if gated else 7)
    assert ("dense1/bias" in weights) is block.get("bias", True) is ("dense2/bias" in weights)
    assert any(path.startswith("hidden_norm/") for path in weights) is block.get("mlp_norm", False)
    settings = {"act": gelu, "eps": 1e-3, "norm": kind}
    expected = onevit.mlp(x.astype("float64"), onevit.of_mlp(weights, gated=gated), settings)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(layer(x)), expected, atol=2e-5)


@pytest.mark.parametrize("expert", [0, 2])
def test_experts(expert, reference, randomise):
    """ViTPose++ (arXiv 2212.04246): the last channels come from the expert, the others from the shared layer."""
    layer = MlpBlock(7, gelu="erf", block=BlockConfig(num_experts=3, expert_dim=2, expert=expert))
    x = 2 * np.random.default_rng(1).normal(size=(2, 3, 5)).astype("float32")
    layer.build(x.shape)
    weights = randomise(layer)
    assert {path: weights[path].shape for path in weights if "expert" in path} == {
        **{f"expert_{index}/kernel": (7, 2) for index in range(3)},
        **{f"expert_{index}/bias": (2,) for index in range(3)},
    }
    first = weights["dense1/kernel"], weights["dense1/bias"]
    parts = [
        reference.mlp(x.astype("float64"), *first, weights[f"{name}/kernel"], weights[f"{name}/bias"], "erf")
        for name in ("dense2", f"expert_{expert}")
    ]
    np.testing.assert_allclose(keras.ops.convert_to_numpy(layer(x)), np.concatenate(parts, axis=-1), atol=1e-5)
    trained = {variable.path.split("/")[-2] for variable in layer.trainable_variables}
    assert trained == {"dense1", "dense2", f"expert_{expert}"}


def test_quick_gelu_is_no_other_gelu():
    """Hendrycks and Gimpel, arXiv 1606.08415, section 2: x sigmoid(1.702 x); it differs by up to 0.02."""
    x = np.linspace(-6, 6, 1201)[:, None].astype("float32")
    outputs = {}
    for gelu in ("tanh", "erf", "quick"):
        layer = MlpBlock(1, gelu=gelu)
        layer.build(x.shape)
        layer.set_weights([np.ones((1, 1)), np.zeros(1), np.ones((1, 1)), np.zeros(1)])
        outputs[gelu] = keras.ops.convert_to_numpy(layer(x))
    wide = x.astype("float64")
    np.testing.assert_allclose(outputs["quick"], wide / (1 + np.exp(-1.702 * wide)), atol=2e-6)
    for other in ("tanh", "erf"):
        assert np.abs(outputs["quick"] - outputs[other]).max() == pytest.approx(0.0203, rel=0.03)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("block", [{}, {"gated": True, "mlp_norm": True}, {"norm": "rms", "mlp_norm": True}], ids=str)
def test_mixed_precision(block, policy, randomise):
    layer = MlpBlock(7, gelu="quick", block=BlockConfig(**block), dtype=policy)
    x = 20 * np.random.default_rng(1).normal(size=(2, 3, 5)).astype("float32")
    layer.build(x.shape)
    randomise(layer)
    output = layer(x)
    assert keras.backend.standardize_dtype(output.dtype) == layer.compute_dtype
    assert np.isfinite(keras.ops.convert_to_numpy(keras.ops.cast(output, "float32"))).all()


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


@for_each(
    ("kwargs", "message"),
    [
        ({"mlp_dim": 0}, "mlp_dim must be an integer of at least 1; got mlp_dim=0"),
        ({"mlp_dim": 4, "dropout_rate": 1}, r"dropout_rate must be a number in \[0, 1\); got dropout_rate=1"),
        ({"mlp_dim": 4, "gelu": "exact"}, "gelu must be one of 'tanh', 'erf', 'quick'; got gelu='exact'"),
    ],
)
def test_wrong_arguments_are_refused(kwargs, message):
    with pytest.raises(ValueError, match=message):
        MlpBlock(**kwargs)
