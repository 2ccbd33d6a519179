"""WindowAttention: Eq. 4 of arXiv 2103.14030 pair by pair in NumPy; its bias table is in test_position_bias.py."""

import math

import keras
import numpy as np
import pytest
from faults import for_each

from keras_vit.layers.swin_block import WindowAttention


def scores_of_window(tokens, heads, kernel, bias, table, window, regions, softmax):
    """Weights (heads, query, key) and outputs (query, dim) before the projection of one window, one pair at a time."""
    length, dim = tokens.shape
    width = dim // heads
    query, key, value = np.split(tokens @ kernel + bias, 3, axis=1)
    offsets = [(dy, dx) for dy in range(1 - window[0], window[0]) for dx in range(1 - window[1], window[1])]
    places = [(y, x) for y in range(window[0]) for x in range(window[1])]
    weights, outputs = np.zeros((heads, length, length)), np.zeros((length, dim))
    for head in range(heads):
        part = slice(head * width, (head + 1) * width)
        for q, (qy, qx) in enumerate(places):
            logits = np.zeros(length)
            for k, (ky, kx) in enumerate(places):
                logits[k] = query[q, part] @ key[k, part] / math.sqrt(width)
                logits[k] += table[offsets.index((qy - ky, qx - kx)), head]
                logits[k] -= 100.0 * (regions[q] != regions[k])
            weights[head, q] = softmax(logits)
            outputs[q, part] = weights[head, q] @ value[:, part]
    return weights, outputs


@pytest.mark.parametrize("qkv_bias", [False, True])
@pytest.mark.parametrize("with_regions", [False, True])
@pytest.mark.parametrize(("window", "heads"), [((2, 3), 2), ((3, 2), 4), ((1, 4), 1)])
def test_values_and_scores(window, heads, with_regions, qkv_bias, reference, randomise):
    layer = WindowAttention(window, heads, qkv_bias)
    rng = np.random.default_rng(1)
    windows = rng.normal(size=(2, 3, math.prod(window), 8)).astype("float32")
    regions = rng.integers(3, size=windows.shape[1:3]) if with_regions else None
    layer.build(windows.shape)
    weights = randomise(layer)
    assert ("qkv/bias" in weights) is qkv_bias
    outputs = keras.ops.convert_to_numpy(layer(windows, regions))
    scores = keras.ops.convert_to_numpy(layer(windows, regions, return_attention_scores=True)[1])
    assert scores.shape == (2, 3, heads, math.prod(window), math.prod(window))
    for sample in range(2):
        for index in range(3):
            expected_scores, heads_output = scores_of_window(
                windows[sample, index].astype("float64"),
                heads,
                weights["qkv/kernel"],
                weights.get("qkv/bias", np.zeros(24)),
                weights["relative_position_bias/embedding"],
                window,
                regions[index] if with_regions else np.zeros(math.prod(window)),
                reference.softmax,
            )
            expected = heads_output @ weights["proj/kernel"] + weights["proj/bias"]
            np.testing.assert_allclose(scores[sample, index], expected_scores, atol=1e-5)
            np.testing.assert_allclose(outputs[sample, index], expected, atol=1e-4)


def test_symbolic_call_with_regions_builds_the_layer():
    layer = WindowAttention(2, 2)
    output = layer(keras.Input((3, 4, 8)), np.zeros((3, 4), "int32"))
    assert layer.built and tuple(output.shape) == (None, 3, 4, 8)


def test_weights_and_their_initial_values(initial):
    layer = WindowAttention((3, 4), 8)
    layer.build((None, 2, 12, 64))
    weights = initial(layer)
    assert {path: value.shape for path, value in weights.items()} == {
        "qkv/kernel": (64, 192),
        "qkv/bias": (192,),
        "relative_position_bias/embedding": (5 * 7, 8),
        "proj/kernel": (64, 64),
        "proj/bias": (64,),
    }
    for path, value in weights.items():
        if path.endswith("bias"):
            assert not value.any()
        else:  # a normal distribution of 0.02, cut at two of them, has a standard deviation of 0.88 * 0.02
            assert np.abs(value).max() <= 0.04
            assert value.std() == pytest.approx(0.88 * 0.02, rel=0.15)


@for_each(
    ("kwargs", "message"),
    [
        ({"window_size": 0, "num_heads": 1}, "window_size must be one positive integer or a pair"),
        ({"window_size": 2, "num_heads": 0}, "num_heads must be an integer of at least 1; got num_heads=0"),
        ({"window_size": 2, "num_heads": 1, "qkv_bias": 1}, "qkv_bias must be True or False; got qkv_bias=1"),
    ],
)
def test_wrong_arguments_are_refused(kwargs, message):
    with pytest.raises(ValueError, match=message):
        WindowAttention(**kwargs)


def test_wrong_shapes_are_refused():
    with pytest.raises(ValueError, match="num_heads must divide the width of the input; got 3 and 8"):
        WindowAttention(2, 3).build((None, 1, 4, 8))
    with pytest.raises(ValueError, match=r"needs 4 tokens per window of window_size=\(2, 2\); got .*\(None, 1, 6, 8\)"):
        WindowAttention(2, 2).build((None, 1, 6, 8))
