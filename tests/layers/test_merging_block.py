"""MergingTransformerBlock: a TransformerBlock whose tokens are merged between attention and MLP."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_vit.layers import TransformerBlock
from keras_vit.layers.token_merging import MergingTransformerBlock, TokenMerging

SHAPE = (3, 9, 8)


@pytest.fixture
def twins(randomise):
    """A block that merges and one that does not, of equal weights, and tokens."""
    arguments = {"num_heads": 2, "mlp_dim": 12, "layer_scale_init": 0.5, "gelu": "erf"}
    merging, plain = MergingTransformerBlock(3, 1, **arguments), TransformerBlock(**arguments)
    for block in (merging, plain):
        block.build(SHAPE)
    randomise(merging, scale=0.5)
    plain.set_weights(merging.get_weights())
    return merging, plain, np.random.default_rng(1).normal(size=SHAPE).astype("float32")


def test_tokens_merge_between_attention_and_mlp(twins):
    merging, plain, tokens = twins
    state = (None, None)
    for length in (6, 4):
        normalised = plain.norm1(tokens)
        sizes = {} if state[0] is None else {"key_sizes": ops.convert_to_tensor(state[0])[:, None, None]}
        branch, keys = plain.attention(normalised, sizes, return_keys=True)
        expected = TokenMerging(3, 1)(tokens + _scale(plain.layer_scale1) * branch, keys, *state)
        middle = expected[0]
        expected = [middle + _scale(plain.layer_scale2) * plain.mlp(plain.norm2(middle)), *expected[1:]]
        found = merging(tokens, *state)
        assert found[0].shape == (3, length, 8)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(ops.convert_to_numpy(one), ops.convert_to_numpy(other), atol=1e-5)
        tokens, *state = found
        merging = MergingTransformerBlock(3, 1, **_arguments(merging))  # a block is built for one length
        merging.build((3, length, 8))
        merging.set_weights(plain.get_weights())


def _scale(layer):
    return ops.convert_to_tensor(layer.gamma)


def _arguments(block):
    names = ("num_heads", "mlp_dim", "layer_scale_init", "gelu")
    return {name: block.get_config()[name] for name in names}


def test_attention_of_the_first_block_is_that_of_a_plain_one(twins):
    merging, plain, tokens = twins
    np.testing.assert_array_equal(merging.attention_scores(tokens), plain.attention_scores(tokens))


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_symbolic_shapes_and_dtypes_are_the_eager_ones(policy):
    block = MergingTransformerBlock(3, 1, num_heads=2, mlp_dim=12, dtype=policy)
    symbolic, eager = block(keras.Input(SHAPE[1:])), block(np.zeros(SHAPE, "float32"))
    for one, other in zip(symbolic, eager, strict=True):
        assert (tuple(one.shape), one.dtype) == (
            (None, *other.shape[1:]),
            keras.backend.standardize_dtype(other.dtype),
        )
    assert block.compute_output_shape((3, 9, 8)) == tuple(tuple(x.shape) for x in eager)
    assert block.compute_output_shape((3, 9, 8), (3, 9), (3, 20)) == ((3, 6, 8), (3, 6), (3, 20))


def test_config_goes_and_comes():
    block = MergingTransformerBlock(3, 1, num_heads=2, mlp_dim=12, remat="attention", dropout_rate=0.1)
    config = block.get_config()
    assert (config["token_merging"], config["num_prefix_tokens"], config["remat"]) == (3, 1, "attention")
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(block))
    assert type(again) is MergingTransformerBlock and again.get_config() == config


def test_files_of_keras_name_it_as_a_plain_block():
    assert MergingTransformerBlock.__name__ == "TransformerBlock"


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="a tape of TensorFlow")
def test_no_gradient_goes_through_the_choice():
    import tensorflow as tf

    tokens, keys = tf.random.normal((2, 6, 4)), tf.random.normal((2, 6, 3))
    with tf.GradientTape() as tape:
        tape.watch((tokens, keys))
        merged, _, _ = TokenMerging(2)(tokens, keys)
    to_tokens, to_keys = tape.gradient(merged, (tokens, keys))
    assert to_keys is None
    np.testing.assert_allclose(tf.reduce_sum(to_tokens, 1), np.full((2, 4), 4.0), atol=1e-5)  # 4 means, shares add to 1
