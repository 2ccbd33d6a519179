"""WindowAttention: Eq. 4 of arXiv 2103.14030 pair by pair in NumPy; its bias table and how it is resized."""

import math

import keras
import numpy as np
import pytest

from keras_vit.layers.swin_block import RelativePositionBias, WindowAttention

# torch.nn.functional.interpolate(..., mode="bicubic", align_corners=False) of arange(15) ** 2 / 10, 3 x 5 -> 5 x 3
BICUBIC = [
    [-0.25007, -0.032, 0.8083],
    [0.52674, 1.462, 3.01948],
    [2.77408, 4.9, 7.64815],
    [7.72141, 11.038, 14.97681],
    [11.27823, 15.312, 19.968],
]


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


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "mixed_float16"])
def test_biases_are_added_in_float32(dtype):
    layer = RelativePositionBias((1, 2), 1, dtype=dtype)
    layer.build((None, 1, 1, 2, 2))
    layer.embedding.assign(np.array([[-0.001], [0.0], [0.001]], "float32"))
    logits = keras.ops.cast(np.full((1, 1, 1, 2, 2), 8.0), layer.compute_dtype)  # 8.001 is no 16-bit number
    sums = layer(logits)
    assert keras.backend.standardize_dtype(sums.dtype) == "float32"
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(sums)[0, 0, 0], [[8.0, 7.999], [8.001, 8.0]], atol=1e-6, rtol=0
    )
    symbolic = layer(keras.KerasTensor((None, 1, 1, 2, 2), layer.compute_dtype))
    assert symbolic.dtype == "float32"


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="TensorFlow's gradients may be IndexedSlices")
def test_gradient_of_the_table_is_dense():
    import tensorflow as tf

    layer = RelativePositionBias(2, 3)
    layer.build((None, 1, 3, 4, 4))
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(layer(tf.zeros((1, 1, 3, 4, 4))))
    gradient = tape.gradient(total, layer.embedding.value)
    assert isinstance(gradient, tf.Tensor)
    pairs = np.outer([1, 2, 1], [1, 2, 1]).reshape(9, 1)  # how many pairs of a 2 x 2 window have each offset
    np.testing.assert_array_equal(gradient.numpy(), np.broadcast_to(pairs, (9, 3)))


def one_head(window):
    layer = RelativePositionBias(window, 1)
    layer.build((None, 1, 1, math.prod(window), math.prod(window)))
    return layer


def test_table_of_another_window_is_resized_bicubically():
    old, new = one_head((2, 3)), one_head((3, 2))
    old.embedding.assign((np.arange(15.0) ** 2 / 10).reshape(15, 1))
    new.resize_from(old)
    table = keras.ops.convert_to_numpy(new.embedding)
    np.testing.assert_allclose(table.reshape(5, 3), BICUBIC, atol=2e-5)
    new.resize_from(old, "align_corners")
    corners = keras.ops.convert_to_numpy(new.embedding).reshape(5, 3)[[0, 0, -1, -1], [0, -1, 0, -1]]
    np.testing.assert_allclose(corners, [0.0, 1.6, 10.0, 19.6], atol=1e-5)


def test_saved_table_of_another_window_is_resized_though_its_shape_is_equal(tmp_path):
    models = []
    for window in ((2, 3), (3, 2)):
        inputs = keras.Input((1, 1, 6, 6))
        models.append(keras.Model(inputs, one_head(window)(inputs)))
    old, new = models
    old.layers[-1].embedding.assign((np.arange(15.0) ** 2 / 10).reshape(15, 1))
    old.save_weights(tmp_path / "old.weights.h5")
    new.load_weights(tmp_path / "old.weights.h5")
    table = keras.ops.convert_to_numpy(new.layers[-1].embedding)
    np.testing.assert_allclose(table.reshape(5, 3), BICUBIC, atol=2e-5)


def test_table_keeps_its_precision_under_mixed_bfloat16():
    layer = RelativePositionBias((1, 2), 1, dtype="mixed_bfloat16")
    layer.build((None, 1, 1, 2, 2))
    layer.embedding.assign([[2.0], [3.0], [1.0 + 2**-9]])  # bfloat16 would round the last one to 1
    bias = keras.ops.convert_to_numpy(layer(np.zeros((1, 1, 1, 2, 2), "float32")))
    np.testing.assert_array_equal(np.sort(bias.ravel()), [1.0 + 2**-9, 2.0, 3.0, 3.0])


def test_table_that_is_not_of_its_window_is_refused():
    layer = one_head((2, 2))
    with pytest.raises(ValueError, match=r"3 x 5 grid rows; got shape \(9, 1\)"):
        layer.resized(layer.embedding, np.zeros((9, 1)), "bicubic", (2, 3))
    with pytest.raises(ValueError, match=r"a row per offset of a square window; got shape \(15, 1\)"):
        layer.resized(layer.embedding, np.zeros((15, 1)), "bicubic")


@pytest.mark.parametrize(
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
