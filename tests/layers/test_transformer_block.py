"""TransformerBlock: Eqs. 2 and 3 with LayerScale, and where dropout and stochastic depth stand."""

import keras
import numpy as np
import pytest

from keras_vit.layers import TransformerBlock


@pytest.mark.parametrize(
    "kwargs",
    [
        {"gelu": "tanh"},
        {"gelu": "erf", "epsilon": 1e-3},
        {"gelu": "tanh", "layer_scale_init": 0.1},
        {"gelu": "erf", "qk_norm": True, "qkv_bias": False, "epsilon": 1e-3},
    ],
)
def test_values(kwargs, reference, randomise):
    block, tokens = TransformerBlock(2, 12, **kwargs), _tokens(2)
    block.build(tokens.shape)
    weights = randomise(block, scale=0.3)
    output = _call(block, tokens)
    scores = keras.ops.convert_to_numpy(block.attention_scores(tokens))
    for sample in range(2):
        expected, expected_scores = _block(reference, tokens[sample].astype("float64"), weights, **kwargs)
        np.testing.assert_allclose(output[sample], expected, atol=2e-5)
        np.testing.assert_allclose(scores[sample], expected_scores, atol=1e-6)


def _block(reference, tokens, weights, gelu, epsilon=1e-6, qkv_bias=True, qk_norm=False, layer_scale_init=None):
    def pair(name, *kinds):
        return [weights[f"{name}/{kind}"] for kind in kinds]

    fused = (
        weights["attention/qkv/kernel"],
        weights.get("attention/qkv/bias", np.zeros(24)),
    )
    norms = [pair(f"attention/{n}_norm", "gamma", "beta") for n in ("query", "key")] if qk_norm else None
    projection = pair("attention/proj", "kernel", "bias")
    scale1, scale2 = (weights[f"layer_scale{i}/gamma"] if layer_scale_init else 1.0 for i in (1, 2))
    normed = reference.layer_norm(tokens, *pair("norm1", "gamma", "beta"), epsilon)
    branch, scores = reference.self_attention(normed, 2, fused, projection, norms, epsilon)
    tokens = tokens + scale1 * branch
    normed = reference.layer_norm(tokens, *pair("norm2", "gamma", "beta"), epsilon)
    mlp = pair("mlp/dense1", "kernel", "bias") + pair("mlp/dense2", "kernel", "bias")
    return tokens + scale2 * reference.mlp(normed, *mlp, gelu), scores


def test_stochastic_depth_drops_either_branch_of_a_sample():
    block, tokens = TransformerBlock(2, 12, drop_path_rate=0.5), np.zeros((400, 5, 8), "float32")
    _branches_that_add(block, tokens.shape, attention=1.0, mlp=10.0)
    output = _call(block, tokens, training=True)
    np.testing.assert_array_equal(output, np.broadcast_to(output[:, :1, :1], output.shape))  # whole samples
    values, counts = np.unique(output[:, 0, 0], return_counts=True)
    assert values.tolist() == [0.0, 2.0, 20.0, 22.0]  # the branches are drawn apart, what is kept is doubled
    assert (counts > 60).all()


def test_dropout_stands_on_attention_output_and_mlp_output():
    block, tokens = TransformerBlock(2, 12, dropout_rate=0.5), np.zeros((50, 5, 8), "float32")
    _branches_that_add(block, tokens.shape, attention=1.0, mlp=10.0)
    output = _call(block, tokens, training=True)
    values, counts = np.unique(output, return_counts=True)
    assert values.tolist() == [0.0, 2.0, 20.0, 22.0]
    assert counts / output.size == pytest.approx(0.25, abs=0.05)


def test_attention_dropout_reaches_the_attention_alone():
    block = TransformerBlock(2, 12, attention_dropout_rate=0.5)
    assert (block.attention.dropout_rate, block.mlp.dropout_rate, block.dropout.rate) == (0.5, 0.0, 0.0)


def test_layer_scale_stands_on_both_branches_before_the_sum():
    block, tokens = TransformerBlock(2, 12, layer_scale_init=0.25), np.zeros((1, 5, 8), "float32")
    _branches_that_add(block, tokens.shape, attention=1.0, mlp=10.0)
    np.testing.assert_array_equal(_call(block, tokens), np.full((1, 5, 8), 2.75))


def test_block_without_layer_scale_has_no_such_weight():
    block = TransformerBlock(2, 12)
    block.build((None, 5, 8))
    assert not [weight.path for weight in block.weights if "layer_scale" in weight.path]


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"num_heads": 0}, "num_heads must be an integer of at least 1; got num_heads=0"),
        ({"mlp_dim": 1.5}, "mlp_dim must be an integer of at least 1; got mlp_dim=1.5"),
        ({"dropout_rate": 1.0}, r"dropout_rate must be a number in \[0, 1\); got dropout_rate=1.0"),
        (
            {"attention_dropout_rate": -1},
            r"attention_dropout_rate must be a number in \[0, 1\); got attention_dropout_rate=-1",
        ),
        (
            {"drop_path_rate": 1.0},
            r"drop_path_rate must be a number in \[0, 1\); got drop_path_rate=1.0",
        ),
        (
            {"layer_scale_init": -1.0},
            "layer_scale_init must be a finite number above 0; got layer_scale_init=-1.0",
        ),
        ({"gelu": "exact"}, "gelu must be one of 'tanh', 'erf'; got gelu='exact'"),
        ({"remat": 1}, "remat must be True or False; got remat=1"),
        ({"epsilon": "small"}, "epsilon must be a finite number above 0; got epsilon='small'"),
    ],
)
def test_wrong_arguments_are_refused(kwargs, message):
    with pytest.raises(ValueError, match=message):
        TransformerBlock(**{"num_heads": 2, "mlp_dim": 12, **kwargs})


def _branches_that_add(block, shape, attention, mlp):
    """Makes the branches constants: the biases that end them, all kernels zero."""
    block.build(shape)
    for weight in block.weights:
        if weight.path.endswith(("kernel", "bias")):
            weight.assign(np.zeros(weight.shape))
    block.attention.proj.bias.assign(np.full(8, attention))
    block.mlp.dense2.bias.assign(np.full(8, mlp))


def _tokens(size):
    return np.random.default_rng(1).normal(size=(size, 5, 8)).astype("float32")


def _call(block, tokens, training=False):
    return keras.ops.convert_to_numpy(block(tokens, training=training))
