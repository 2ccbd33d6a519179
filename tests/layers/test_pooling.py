"""Poolings: one token, the mean of the patches, attention pooling."""

import math

import keras
import numpy as np
import onevit
import pytest
from faults import for_each

from keras_vit.layers import AttentionPooling, GlobalAveragePooling, TokenAndAveragePooling, TokenPooling


@pytest.mark.parametrize(("kwargs", "index"), [({}, 0), ({"index": 3}, 3)])
def test_token_pooling_takes_one_token(kwargs, index):
    tokens = _tokens()
    np.testing.assert_array_equal(_call(TokenPooling(**kwargs), tokens), tokens[:, index])


@pytest.mark.parametrize("prefix", [0, 1, 3])
def test_global_average_leaves_the_prefix_out(prefix):
    tokens = _tokens()
    expected = tokens[:, prefix:].astype("float64").mean(axis=1)
    np.testing.assert_allclose(_call(GlobalAveragePooling(prefix), tokens), expected, atol=1e-6)


def test_global_average_sums_float16_in_float32():
    tokens = np.full((1, 1000, 2), 200.0, "float32")  # the sum, 200000, is beyond float16
    tokens[0, 0] = 0.0
    layer = GlobalAveragePooling(dtype="mixed_float16")
    np.testing.assert_allclose(_call(layer, tokens), 199.8, atol=0.1)


@pytest.mark.parametrize("prefix", [1, 5])
def test_token_and_average_are_concatenated(prefix):
    tokens = _tokens()
    expected = np.concatenate([tokens[:, 0], tokens[:, prefix:].astype("float64").mean(axis=1)], axis=-1)
    layer = TokenAndAveragePooling(prefix)
    np.testing.assert_allclose(_call(layer, tokens), expected, atol=1e-6)
    assert layer.compute_output_shape((None, 7, 8)) == (None, 16)
    assert tuple(layer(keras.Input((7, 8))).shape) == (None, 16)


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("prefix", [1, 5])
def test_token_and_average_of_several_blocks(count, prefix):
    """The class token of every level, the oldest first, then the mean of the patches of the last (DINOv2's heads)."""
    levels = [np.random.default_rng(index).normal(size=(2, 7, 8)).astype("float32") for index in range(count)]
    expected = [level[:, 0] for level in levels] + [levels[-1][:, prefix:].astype("float64").mean(axis=1)]
    layer = TokenAndAveragePooling(prefix)
    np.testing.assert_allclose(_call(layer, levels), np.concatenate(expected, axis=-1), atol=1e-6)
    symbolic = layer([keras.Input((7, 8)) for _ in range(count)])
    assert tuple(symbolic.shape) == (None, 8 * (count + 1))
    assert layer.compute_output_shape([(3, 7, 8)] * count) == (3, 8 * (count + 1))


def test_token_and_average_sums_float16_in_float32():
    tokens = np.full((1, 1001, 2), 200.0, "float32")  # the sum of the patches, 200000, is beyond float16
    layer = TokenAndAveragePooling(1, dtype="mixed_float16")
    output = layer(tokens)
    assert keras.backend.standardize_dtype(output.dtype) == "float16"
    np.testing.assert_array_equal(_call(layer, tokens), np.full((1, 4), 200.0))


@pytest.mark.parametrize(("num_heads", "prefix"), [(1, 0), (2, 1), (4, 2)])
def test_pooling_of_aimv2_has_neither_mlp_nor_projected_query(num_heads, prefix, randomise):
    """AttentionPoolingClassifier of github.com/apple/ml-aim: keys and values without biases, then a projection."""
    tokens = _tokens()
    layer = AttentionPooling(num_heads, None, prefix)
    layer.build(tokens.shape)
    weights = randomise(layer)
    assert set(weights) == {"probe", "key_value/kernel", "proj/kernel", "proj/bias"}
    keys, values = np.split(weights["key_value/kernel"], 2, axis=1)
    theirs = {
        "probe": weights["probe"],
        "k": {"w": keys.T},
        "v": {"w": values.T},
        "o": onevit.of_layer(weights, "proj"),
    }
    expected = onevit.map_pool(tokens[:, prefix:].astype("float64"), theirs, {"pool_heads": num_heads})
    np.testing.assert_allclose(_call(layer, tokens), expected, atol=2e-5)


@pytest.mark.parametrize("gelu", ["tanh", "erf", "quick"])
def test_map_pooling_is_that_of_the_statement_in_numpy(gelu, randomise):
    tokens = _tokens()
    layer = AttentionPooling(4, 12, 2, gelu, 1e-3)
    layer.build(tokens.shape)
    weights = randomise(layer)
    pairs = zip("kv", np.split(weights["key_value/kernel"], 2, 1), np.split(weights["key_value/bias"], 2), strict=True)
    theirs = {name: {"w": kernel.T, "b": bias} for name, kernel, bias in pairs} | onevit.of_mlp(weights, "mlp/")
    theirs |= {"probe": weights["probe"], "q": onevit.of_layer(weights, "query")}
    theirs |= {"o": onevit.of_layer(weights, "proj"), "n": onevit.of_layer(weights, "norm")}
    settings = {"pool_heads": 4, "act": gelu, "eps": 1e-3}
    expected = onevit.map_pool(tokens[:, 2:].astype("float64"), theirs, settings)
    np.testing.assert_allclose(_call(layer, tokens), expected, atol=2e-5)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
@pytest.mark.parametrize("mlp_dim", [None, 12])
def test_attention_pooling_in_mixed_precision(mlp_dim, policy, randomise):
    layer, tokens = AttentionPooling(2, mlp_dim, 1, "quick", dtype=policy), _tokens()
    layer.build(tokens.shape)
    randomise(layer)
    assert keras.backend.standardize_dtype(layer(tokens).dtype) == layer.compute_dtype
    assert np.isfinite(_call(layer, tokens)).all()


@pytest.mark.parametrize("gelu", ["tanh", "erf"])
@pytest.mark.parametrize(("num_heads", "prefix"), [(1, 0), (4, 2)])
def test_map_pooling_is_one_query_over_the_patches_then_an_mlp(num_heads, prefix, gelu, reference, randomise):
    tokens = _tokens().astype("float64")
    layer = AttentionPooling(num_heads, 12, prefix, gelu, 1e-3)
    layer.build(tokens.shape)
    weights = randomise(layer)
    query = weights["probe"][0, 0] @ weights["query/kernel"] + weights["query/bias"]
    mlp = [weights[f"mlp/{name}"] for name in ("dense1/kernel", "dense1/bias", "dense2/kernel", "dense2/bias")]
    for sample, output in enumerate(_call(layer, tokens.astype("float32"))):
        key_value = tokens[sample, prefix:] @ weights["key_value/kernel"] + weights["key_value/bias"]
        key, value = np.split(key_value, 2, axis=1)
        heads = [np.split(x, num_heads, axis=-1) for x in (query[None], key, value)]
        pooled = np.concatenate([reference.attention(*parts)[0][0] for parts in zip(*heads, strict=True)])
        pooled = pooled @ weights["proj/kernel"] + weights["proj/bias"]
        normed = reference.layer_norm(pooled, weights["norm/gamma"], weights["norm/beta"], 1e-3)
        np.testing.assert_allclose(output, pooled + reference.mlp(normed, *mlp, gelu), atol=2e-5)


def test_map_pooling_does_not_see_the_prefix(randomise):
    tokens = _tokens()
    layer = AttentionPooling(2, 6, num_prefix_tokens=2)
    layer.build(tokens.shape)
    randomise(layer)
    before = _call(layer, tokens)
    tokens[:, :2] += 7
    np.testing.assert_array_equal(_call(layer, tokens), before)
    tokens[:, 2] += 7
    assert np.abs(_call(layer, tokens) - before).max() > 0.01


def test_map_pooling_starts_xavier_uniform(check_uniform, initial):
    layer = AttentionPooling(4, 256)
    layer.build((None, 5, 128))
    weights = initial(layer)
    for part in (weights["query/kernel"], *np.split(weights["key_value/kernel"], 2, axis=1)):
        check_uniform(part, math.sqrt(6 / (2 * 128)))
    check_uniform(weights["proj/kernel"], math.sqrt(6 / (2 * 128)))
    for name in ("dense1", "dense2"):
        check_uniform(weights[f"mlp/{name}/kernel"], math.sqrt(6 / (128 + 256)))
    limit = math.sqrt(6 / (1 + 128))
    assert 0.9 * limit < np.abs(weights["probe"]).max() <= limit
    for name in ("query/bias", "key_value/bias", "proj/bias"):
        assert not weights[name].any()


@for_each(
    ("make", "message"),
    [
        (lambda: TokenPooling(-1), "index must be an integer of at least 0; got index=-1"),
        (
            lambda: GlobalAveragePooling(-1),
            "num_prefix_tokens must be an integer of at least 0; got num_prefix_tokens=-1",
        ),
        (
            lambda: TokenAndAveragePooling(-1),
            "num_prefix_tokens must be an integer of at least 0; got num_prefix_tokens=-1",
        ),
        (lambda: AttentionPooling(0, 4), "num_heads must be an integer of at least 1; got num_heads=0"),
        (lambda: AttentionPooling(2, 0), "mlp_dim must be an integer of at least 1; got mlp_dim=0"),
        (
            lambda: AttentionPooling(2, 4, -1),
            "num_prefix_tokens must be an integer of at least 0; got num_prefix_tokens=-1",
        ),
        (lambda: AttentionPooling(2, 4, gelu="exact"), "gelu must be one of 'tanh', 'erf', 'quick'; got gelu='exact'"),
        (lambda: AttentionPooling(2, 4, epsilon=-1), "epsilon must be a finite number above 0; got epsilon=-1"),
        (
            lambda: AttentionPooling(3, 4).build((None, 5, 8)),
            "num_heads must divide the width of the input; got 3 and 8",
        ),
    ],
)
def test_wrong_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def _tokens():
    return np.random.default_rng(1).normal(size=(2, 7, 8)).astype("float32")


def _call(layer, tokens):
    return keras.ops.convert_to_numpy(keras.ops.cast(layer(tokens), "float32"))
