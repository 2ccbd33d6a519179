"""MultiHeadSelfAttention: Eqs. 5 to 8 of the paper's appendix A, head by head in NumPy."""

import math

import keras
import numpy as np
import onevit
import pytest
from faults import for_each

from keras_vit.config import BlockConfig, RotaryConfig
from keras_vit.layers import MultiHeadSelfAttention
from keras_vit.layers.rotary import RotaryEmbedding


@pytest.mark.parametrize("num_heads", [1, 2, 4])
@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize("qkv_bias", [False, True])
def test_values_and_scores(num_heads, qk_norm, qkv_bias, reference, randomise):
    layer = MultiHeadSelfAttention(num_heads, qkv_bias=qkv_bias, qk_norm=qk_norm, epsilon=1e-3)
    tokens = np.random.default_rng(1).normal(size=(2, 5, 8)).astype("float32")
    layer.build(tokens.shape)
    weights = randomise(layer)
    assert ("qkv/bias" in weights) is qkv_bias
    output, scores = (keras.ops.convert_to_numpy(x) for x in layer(tokens, return_attention_scores=True))
    fused = weights["qkv/kernel"], weights.get("qkv/bias", np.zeros(24))
    projection = weights["proj/kernel"], weights["proj/bias"]
    norms = [(weights[f"{n}_norm/gamma"], weights[f"{n}_norm/beta"]) for n in ("query", "key")] if qk_norm else None
    for sample in range(2):
        expected, expected_scores = reference.self_attention(
            tokens[sample].astype("float64"), num_heads, fused, projection, norms, epsilon=1e-3
        )
        np.testing.assert_allclose(output[sample], expected, atol=1e-5)
        np.testing.assert_allclose(scores[sample], expected_scores, atol=1e-6)
    np.testing.assert_allclose(scores.sum(axis=-1), 1.0, atol=1e-6)
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(layer(tokens)), output)


# `block` of the layer, its other arguments, weights that it must have and must not have
SWITCHES = [
    ({"bias": False}, {}, ("qkv/bias",), ("proj/bias",)),
    ({"key_bias": False}, {}, ("query_bias", "value_bias"), ("qkv/bias",)),
    ({"key_bias": False}, {"qkv_bias": False}, (), ("query_bias", "value_bias", "qkv/bias")),
    ({"key_bias": False}, {"qk_norm": True}, ("query_bias", "value_bias"), ("qkv/bias",)),
    ({"attention_norm": True}, {"epsilon": 1e-3}, ("output_norm/gamma", "output_norm/beta"), ()),
    (
        {"norm": "rms", "attention_norm": True, "bias": False},
        {"qk_norm": True, "qkv_bias": False, "epsilon": 1e-3},
        ("query_norm/scale", "key_norm/scale", "output_norm/scale"),
        ("query_norm/gamma", "qkv/bias", "proj/bias"),
    ),
]


@pytest.mark.parametrize("kind", [None, "dinov3", "eva02", "pe"])
@pytest.mark.parametrize(("block", "kwargs", "present", "absent"), SWITCHES, ids=str)
def test_switches_of_the_block(block, kwargs, present, absent, kind, randomise):
    rotary = None if kind is None else RotaryConfig(kind=kind)
    layer = MultiHeadSelfAttention(2, block=BlockConfig(**block, rotary=rotary), **kwargs)
    rng = np.random.default_rng(1)
    tokens = rng.normal(size=(2, 8, 16)).astype("float32")  # class token, register, 2 x 3 patches
    bias = rng.normal(size=(2, 8, 8)).astype("float32")
    layer.build(tokens.shape)
    weights = randomise(layer)
    assert set(present) <= set(weights) and not set(absent) & set(weights)
    table = angles = None
    if kind is not None:
        table = RotaryEmbedding(rotary, 2, (2, 3), 1, 1)(tokens)
        angles = onevit.rope_table(kind, 2, 3, 8, offset=float(kind == "pe"))
    positions = {"attention_bias": bias} | ({} if table is None else {"rotary": table})
    output = keras.ops.convert_to_numpy(layer(tokens, positions))
    settings = {"heads": 2, "eps": kwargs.get("epsilon", 1e-6), "norm": block.get("norm", "layer")}
    settings |= {"rope": kind, "prefix": 2}
    expected = onevit.attention(tokens.astype("float64"), onevit.of_attention(weights), settings, angles, bias)
    np.testing.assert_allclose(output, expected, atol=2e-5)


@pytest.mark.parametrize("block", [{}, {"key_bias": False, "attention_norm": True}])
@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_switches_in_mixed_precision(block, policy, randomise):
    """The logits have the dtype of the biases, float32; the output has that of the policy."""
    rotary = RotaryConfig(kind="eva02")
    layer = MultiHeadSelfAttention(2, block=BlockConfig(**block, rotary=rotary), dtype=policy)
    tokens = np.random.default_rng(1).normal(size=(2, 7, 16)).astype("float32")
    layer.build(tokens.shape)
    randomise(layer)
    table = RotaryEmbedding(rotary, 2, (2, 3), dtype=policy)(tokens)
    bias = np.random.default_rng(2).normal(size=(2, 7, 7)).astype("float32")
    output = layer(tokens, {"attention_bias": bias, "rotary": table})
    assert keras.backend.standardize_dtype(output.dtype) == layer.compute_dtype
    assert np.isfinite(keras.ops.convert_to_numpy(keras.ops.cast(output, "float32"))).all()


def test_a_key_of_size_s_counts_as_s_equal_keys(randomise):
    """Proportional attention, arXiv 2210.09461, section 3.2."""
    layer = MultiHeadSelfAttention(2)
    tokens = np.random.default_rng(1).normal(size=(1, 4, 8)).astype("float32")
    layer.build(tokens.shape)
    randomise(layer)
    sizes = np.array([3, 1, 4, 2], "int32")
    output, scores = layer(tokens, {"key_sizes": sizes[None, None, None]}, return_attention_scores=True)
    places = np.repeat(np.arange(4), sizes)
    expected, repeated = layer(tokens[:, places], return_attention_scores=True)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(output)[:, places], expected, atol=1e-5)
    shares = keras.ops.convert_to_numpy(scores)[:, :, places][..., places] / sizes[places]
    np.testing.assert_allclose(shares, repeated, atol=1e-6)


@pytest.mark.parametrize("qk_norm", [False, True])
def test_keys_are_the_mean_over_the_heads(qk_norm, reference, randomise):
    layer = MultiHeadSelfAttention(2, qk_norm=qk_norm)
    tokens = np.random.default_rng(1).normal(size=(2, 5, 8)).astype("float32")
    layer.build(tokens.shape)
    weights = randomise(layer)
    output, keys = layer(tokens, return_keys=True)
    np.testing.assert_array_equal(output, layer(tokens))
    fused = tokens @ weights["qkv/kernel"] + weights["qkv/bias"]
    heads = [fused[..., 8:12], fused[..., 12:16]]
    if qk_norm:
        norm = [weights["key_norm/gamma"], weights["key_norm/beta"], 1e-6]
        heads = [reference.layer_norm(head, *norm) for head in heads]
    np.testing.assert_allclose(keras.ops.convert_to_numpy(keys), sum(heads) / 2, atol=1e-5)
    symbolic = layer(keras.Input((5, 8)), return_keys=True)
    assert [tuple(x.shape) for x in symbolic] == [(None, 5, 8), (None, 5, 4)]


def test_scores_do_not_change_with_training_but_the_output_does(randomise):
    layer = MultiHeadSelfAttention(2, dropout_rate=0.5)
    tokens = np.random.default_rng(1).normal(size=(2, 5, 8)).astype("float32")
    layer.build(tokens.shape)
    randomise(layer)
    (calm, scores), (busy, busy_scores) = (
        [keras.ops.convert_to_numpy(x) for x in layer(tokens, training=flag, return_attention_scores=True)]
        for flag in (False, True)
    )
    np.testing.assert_array_equal(scores, busy_scores)
    assert np.abs(calm - busy).max() > 0.1


def test_dropout_falls_on_the_attention_weights():
    layer = MultiHeadSelfAttention(1, dropout_rate=0.5)
    tokens = np.zeros((400, 4, 3), "float32")
    layer.build(tokens.shape)
    bias = np.concatenate([np.zeros(6), np.ones(3)])  # uniform attention to values of one
    layer.set_weights([np.zeros((3, 9)), bias, np.eye(3), np.zeros(3)])
    output = keras.ops.convert_to_numpy(layer(tokens, training=True))
    # Each query keeps k of its 4 weights of 1/4, doubled: k / 2, the same for every channel.
    assert set(np.unique(output.round(5))) == {0.0, 0.5, 1.0, 1.5, 2.0}
    np.testing.assert_array_equal(output, np.broadcast_to(output[..., :1], output.shape))
    assert output.mean() == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize(
    ("dtype", "scores_dtype"),
    [("float32", "float32"), ("mixed_float16", "float32"), ("mixed_bfloat16", "float32")],
)
def test_symbolic_scores_have_the_shape_and_dtype_of_eager_ones(dtype, scores_dtype):
    layer = MultiHeadSelfAttention(2, dtype=dtype)
    symbolic = layer(keras.Input((5, 8)), return_attention_scores=True)
    eager = layer(np.zeros((3, 5, 8), "float32"), return_attention_scores=True)
    assert [tuple(x.shape) for x in symbolic] == [(None, 5, 8), (None, 2, 5, 5)]
    assert [tuple(x.shape) for x in eager] == [(3, 5, 8), (3, 2, 5, 5)]
    for pair in zip(symbolic, eager, strict=True):
        assert len({keras.backend.standardize_dtype(x.dtype) for x in pair}) == 1
    assert symbolic[1].dtype == scores_dtype


def test_float16_products_beyond_its_range_stay_finite():
    layer = MultiHeadSelfAttention(1, dtype="mixed_float16")
    tokens = np.ones((1, 3, 64), "float32")
    layer.build(tokens.shape)
    kernel = np.concatenate([np.eye(64) * 50, np.eye(64) * 50, np.eye(64)], axis=1)  # q k = 64 * 2500 = 160000
    layer.set_weights([kernel, np.zeros(192), np.eye(64), np.zeros(64)])
    output = keras.ops.convert_to_numpy(keras.ops.cast(layer(tokens), "float32"))
    np.testing.assert_allclose(output, 1.0, atol=1e-2)


def test_kernels_start_xavier_uniform_for_each_of_query_key_and_value(check_uniform, initial):
    layer = MultiHeadSelfAttention(4)
    layer.build((None, 5, 128))
    weights = initial(layer)
    limit = math.sqrt(6 / (2 * 128))
    for part in np.split(weights["qkv/kernel"], 3, axis=1):
        check_uniform(part, limit)
    check_uniform(weights["proj/kernel"], limit)
    assert not weights["qkv/bias"].any() and not weights["proj/bias"].any()


@for_each(
    ("kwargs", "message"),
    [
        ({"num_heads": 0}, "num_heads must be an integer of at least 1; got num_heads=0"),
        (
            {"num_heads": 2, "dropout_rate": -0.1},
            r"dropout_rate must be a number in \[0, 1\); got dropout_rate=-0.1",
        ),
        ({"num_heads": 2, "qkv_bias": 1}, "qkv_bias must be True or False; got qkv_bias=1"),
        ({"num_heads": 2, "qk_norm": None}, "qk_norm must be True or False; got qk_norm=None"),
        ({"num_heads": 2, "epsilon": 0}, "epsilon must be a finite number above 0; got epsilon=0"),
        ({"num_heads": 2, "block": "eva02"}, "block must be a BlockConfig of keras_vit, or None; got block='eva02'"),
        ({"num_heads": 2, "block": {"norm": "batch"}}, "norm must be one of 'layer', 'rms'; got norm='batch'"),
    ],
)
def test_wrong_arguments_are_refused(kwargs, message):
    with pytest.raises(ValueError, match=message):
        MultiHeadSelfAttention(**kwargs)


def test_heads_that_do_not_divide_the_width_are_refused():
    with pytest.raises(ValueError, match="num_heads must divide the width of the input; got 3 and 8"):
        MultiHeadSelfAttention(3).build((None, 5, 8))


def test_scores_and_keys_at_once(randomise):
    layer, x = MultiHeadSelfAttention(2), np.random.default_rng(1).normal(size=(2, 3, 4)).astype("float32")
    layer.build(x.shape)
    randomise(layer)
    output, scores, keys = layer(x, return_attention_scores=True, return_keys=True)
    for pair in (scores, layer(x, return_attention_scores=True)[1]), (keys, layer(x, return_keys=True)[1]):
        np.testing.assert_array_equal(*pair)
    symbolic = layer(keras.Input((3, 4)), return_attention_scores=True, return_keys=True)
    assert [tuple(x.shape)[1:] for x in symbolic] == [tuple(x.shape)[1:] for x in (output, scores, keys)]
