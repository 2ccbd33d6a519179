"""DifferentialSelfAttention: Eqs. 1 to 3 of arXiv 2410.05258, head by head in NumPy."""

import math

import keras
import numpy as np
import pytest
from scipy.special import softmax

from keras_vit.layers import DifferentialSelfAttention


@pytest.mark.parametrize("lambda_init", [0.2, 0.7])
def test_values_and_scores(lambda_init, randomise):
    layer = DifferentialSelfAttention(lambda_init, 2)
    tokens = np.random.default_rng(1).normal(size=(2, 5, 8)).astype("float32")
    layer.build(tokens.shape)
    weights = randomise(layer)
    output, scores = (keras.ops.convert_to_numpy(x) for x in layer(tokens, return_attention_scores=True))
    q1, k1, q2, k2 = (weights[f"lambda_{name}"] for name in ("q1", "k1", "q2", "k2"))
    weight = math.exp(q1 @ k1) - math.exp(q2 @ k2) + lambda_init
    for sample in range(2):
        query, key, value = np.split(tokens[sample] @ weights["qkv/kernel"] + weights["qkv/bias"], 3, axis=-1)
        heads = []
        for head in range(2):
            first, second = np.s_[:, 4 * head : 4 * head + 2], np.s_[:, 4 * head + 2 : 4 * head + 4]
            maps = [softmax(query[half] @ key[half].T / math.sqrt(2), axis=-1) for half in (first, second)]
            expected = maps[0] - weight * maps[1]
            np.testing.assert_allclose(scores[sample, head], expected, atol=1e-6)
            attended = expected @ value[:, 4 * head : 4 * head + 4]
            mean_square = (attended**2).mean(axis=-1, keepdims=True)
            normed = attended / np.sqrt(mean_square + 1e-5) * weights["head_norm/scale"]
            heads.append(normed * (1 - lambda_init))
        expected = np.concatenate(heads, axis=-1) @ weights["proj/kernel"] + weights["proj/bias"]
        np.testing.assert_allclose(output[sample], expected, atol=1e-5)
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(layer(tokens)), output)


def test_lambda_starts_near_its_initial_value():
    layer = DifferentialSelfAttention(0.35, 1)
    layer.build((None, 3, 64))
    assert float(keras.ops.convert_to_numpy(layer._lambda())) == pytest.approx(0.35, abs=0.3)


def test_the_width_must_have_two_maps_per_head():
    with pytest.raises(ValueError, match="num_heads must divide the width of the input; got 6 and 9"):
        DifferentialSelfAttention(0.2, 3).build((None, 4, 9))
    with pytest.raises(ValueError, match="qk_norm must be False.*; got qk_norm=True"):
        DifferentialSelfAttention(0.2, 2, qk_norm=True)
