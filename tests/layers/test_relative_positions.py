"""RelativePositions: the logits of the paper's appendix D.4, stated pair by pair in NumPy."""

import math

import keras
import numpy as np
import pytest
from faults import for_each
from slow_rows import slow_after

from keras_vit.layers import MultiHeadSelfAttention, TransformerBlock
from keras_vit.layers.position_bias import RelativePositions, relative_logits


@pytest.mark.parametrize("prefix", [0, 1, 3])
@pytest.mark.parametrize("patches", [1, 2, 5])
def test_logits_are_query_times_the_key_of_the_offset(patches, prefix):
    rng = np.random.default_rng(0)
    query = rng.normal(size=(2, 3, prefix + patches, 4)).astype("float32")
    keys = rng.normal(size=(2 * patches - 1, 4)).astype("float32")
    expected = np.zeros((2, 3, prefix + patches, prefix + patches))
    for q in range(patches):
        for k in range(patches):
            expected[:, :, prefix + q, prefix + k] = query[:, :, prefix + q] @ keys[(q - k) + patches - 1]
    logits = keras.ops.convert_to_numpy(relative_logits(query, keys))
    np.testing.assert_allclose(logits, expected, atol=1e-5)


def test_attention_adds_them_before_the_softmax(randomise):
    attention, positions = MultiHeadSelfAttention(2), RelativePositions(2, num_prefix_tokens=1)
    tokens = np.random.default_rng(1).normal(size=(2, 5, 8)).astype("float32")
    attention.build(tokens.shape)
    positions.build(tokens.shape)
    weights, table = randomise(attention), randomise(positions)["embedding"]
    keys = positions(tokens)
    output, scores = attention(tokens, {"relative_keys": keys}, return_attention_scores=True)

    fused = tokens @ weights["qkv/kernel"] + weights["qkv/bias"]
    query, key, value = np.moveaxis(fused.reshape(2, 5, 3, 2, 4), (2, 3), (0, 2))  # (batch, heads, tokens, 4)
    logits = query @ np.swapaxes(key, -1, -2)
    for q in range(1, 5):  # token 0 is the class token, which has no position
        for k in range(1, 5):
            logits[:, :, q, k] += query[:, :, q] @ table[(q - k) + 3]
    expected = np.exp(logits / math.sqrt(4))
    expected /= expected.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(scores), expected, atol=1e-6)
    heads = np.moveaxis(expected @ value, 1, 2).reshape(2, 5, 8)
    heads = heads @ weights["proj/kernel"] + weights["proj/bias"]
    np.testing.assert_allclose(keras.ops.convert_to_numpy(output), heads, atol=1e-5)


def test_keys_of_zero_change_nothing(randomise):
    attention = MultiHeadSelfAttention(2)
    tokens = np.random.default_rng(1).normal(size=(2, 5, 8)).astype("float32")
    attention.build(tokens.shape)
    randomise(attention)
    with_zeros = attention(tokens, {"relative_keys": np.zeros((9, 4), "float32")})
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(with_zeros), keras.ops.convert_to_numpy(attention(tokens)), atol=1e-6
    )


@pytest.mark.parametrize("remat", slow_after(1, [None, "attention", "block"]))
def test_block_hands_them_to_its_attention_and_trains_them(remat):
    inputs = keras.Input((5, 8))
    positions = RelativePositions(2, num_prefix_tokens=1)
    block = TransformerBlock(2, 12, remat=remat)
    model = keras.Model(inputs, block(inputs, {"relative_keys": positions(inputs)}))
    tokens = np.random.default_rng(1).normal(size=(4, 5, 8)).astype("float32")
    before = keras.ops.convert_to_numpy(positions.embedding).copy()
    assert before.std() == pytest.approx(0.02, rel=0.5)
    scores = keras.ops.convert_to_numpy(block.attention_scores(tokens, {"relative_keys": positions(tokens)}))
    assert np.abs(scores - keras.ops.convert_to_numpy(block.attention_scores(tokens))).max() > 1e-4
    model.compile(keras.optimizers.SGD(1.0), "mse")
    model.fit(tokens, -tokens, epochs=1, verbose=0)
    assert (np.abs(keras.ops.convert_to_numpy(positions.embedding) - before).max(axis=1) > 0).all()


def test_the_keys_follow_the_dtype_of_the_policy():
    layer = RelativePositions(2, dtype="mixed_bfloat16")
    keys = layer(np.zeros((1, 4, 8), "float32"))
    assert keras.backend.standardize_dtype(keys.dtype) == "bfloat16" and layer.embedding.dtype == "float32"


def test_keys_of_another_length_are_interpolated_between_offsets(tmp_path):
    old, new = (RelativePositions(1, num_prefix_tokens=1) for _ in range(2))
    old.build((None, 4, 1))  # 3 patches, offsets -2 ... 2
    new.build((None, 6, 1))  # 5 patches, offsets -4 ... 4
    old.embedding.assign(np.array([[-20.0], [-1.0], [0.0], [3.0], [5.0]]))
    new.resize_from(old)
    expected = [-20.0, -10.5, -1.0, -0.5, 0.0, 1.5, 3.0, 4.0, 5.0]
    np.testing.assert_allclose(keras.ops.convert_to_numpy(new.embedding)[:, 0], expected, atol=1e-6)
    models = []
    for layer, tokens in ((old, 4), (RelativePositions(1, num_prefix_tokens=1), 6)):
        inputs = keras.Input((tokens, 1))
        models.append(keras.Model(inputs, layer(inputs)))
    models[0].save_weights(tmp_path / "old.weights.h5")
    models[1].load_weights(tmp_path / "old.weights.h5")
    loaded = keras.ops.convert_to_numpy(models[1].layers[-1].embedding)
    np.testing.assert_allclose(loaded[:, 0], expected, atol=1e-6)


def test_config_round_trip():
    layer = RelativePositions(3, num_prefix_tokens=2, name="positions")
    text = keras.saving.serialize_keras_object(layer)
    assert keras.saving.deserialize_keras_object(text).get_config() == layer.get_config()


@for_each(
    ("kwargs", "shape", "message"),
    [
        ({"num_heads": 0}, None, "num_heads must be an integer of at least 1; got num_heads=0"),
        ({"num_heads": 2, "num_prefix_tokens": -1}, None, "num_prefix_tokens must be an integer of at least 0"),
        ({"num_heads": 3}, (None, 4, 8), "num_heads must divide the width of the input; got 3 and 8"),
        ({"num_heads": 2}, (None, None, 8), r"a known number of tokens .* got input shape \(None, None, 8\)"),
        ({"num_heads": 2, "num_prefix_tokens": 4}, (None, 4, 8), "above num_prefix_tokens=4"),
    ],
)
def test_wrong_arguments_and_inputs_are_refused(kwargs, shape, message):
    with pytest.raises(ValueError, match=message):
        RelativePositions(**kwargs).build(shape)
