"""Biases of attention logits: RelativePositionBias of Swin, AttentionBias of BEiT with its class token, and the MLP."""

import math

import keras
import numpy as np
import onevit
import pytest
from faults import for_each
from scipy.interpolate import RectBivariateSpline, RegularGridInterpolator

from keras_vit.layers import TransformerBlock
from keras_vit.layers.position_bias import AttentionBias, RelativePositionBias, RelativePositionMlp

# torch.nn.functional.interpolate(..., mode="bicubic", align_corners=False) of arange(15) ** 2 / 10, 3 x 5 -> 5 x 3
BICUBIC = [
    [-0.25007, -0.032, 0.8083],
    [0.52674, 1.462, 3.01948],
    [2.77408, 4.9, 7.64815],
    [7.72141, 11.038, 14.97681],
    [11.27823, 15.312, 19.968],
]


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


def attention_bias(window, heads=2, **arguments):
    layer = AttentionBias(window, heads, **arguments)
    layer.build((None, 1 + math.prod(window), 8))
    return layer


def random_table(layer, seed=0):
    table = np.random.default_rng(seed).normal(size=layer.embedding.shape).astype("float32")
    layer.embedding.assign(table)
    return table


class TestAttentionBias:
    @pytest.mark.parametrize("window", [(3, 3), (2, 5), (4, 1), (1, 1)])
    def test_rows_are_those_of_beit(self, window):
        layer = attention_bias(window, heads=3)
        table = random_table(layer)
        bias = keras.ops.convert_to_numpy(layer(np.zeros((2, 1 + math.prod(window), 6), "float32")))
        np.testing.assert_array_equal(bias, table[onevit.beit_index(*window)].transpose(2, 0, 1))
        symbolic = layer(keras.Input((1 + math.prod(window), 6)))
        assert (tuple(symbolic.shape), symbolic.dtype) == (bias.shape, "float32")

    def test_table_has_three_rows_more_than_offsets(self):
        assert attention_bias((4, 3), heads=5).embedding.shape == (7 * 5 + 3, 5)

    @pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
    def test_biases_are_added_in_float32(self, policy):
        layer = attention_bias((1, 2), dtype=policy)
        layer.embedding.assign(np.full((6, 2), 1.0 + 2**-12, "float32"))  # no 16-bit number
        tokens = np.zeros((1, 3, 8), "float32")
        bias = layer(tokens)
        assert keras.backend.standardize_dtype(bias.dtype) == "float32"
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(bias), 1.0 + 2**-12)
        block = TransformerBlock(2, 12, dtype=policy)
        assert keras.backend.standardize_dtype(block(tokens, {"attention_bias": bias}).dtype) == block.compute_dtype

    @pytest.mark.parametrize(("old", "new"), [((3, 4), (5, 6)), ((5, 5), (3, 4)), ((4, 4), (4, 7))])
    @pytest.mark.parametrize("method", ["geometric", "geometric_cubic"])
    def test_resize_is_that_of_beit(self, old, new, method):
        """BEiT interpolates between offsets that it spaces geometrically; the authors' code uses scipy."""
        source, layer = attention_bias(old), attention_bias(new, resize=method)
        table = random_table(source)
        layer.resize_from(source)
        resized = keras.ops.convert_to_numpy(layer.embedding)
        places = [beit_offsets(2 * a - 1, 2 * b - 1) for a, b in zip(old, new, strict=True)]
        wanted = [np.arange(2 * side - 1) - (side - 1.0) for side in new]
        wanted = [np.clip(w, p[0], p[-1]) for w, p in zip(wanted, places, strict=True)]
        for head in range(2):
            grid = table[:-3, head].reshape([2 * side - 1 for side in old]).astype("float64")
            if method == "geometric_cubic":
                expected = RectBivariateSpline(*places, grid)(*wanted)
            else:
                points = np.stack(np.meshgrid(*wanted, indexing="ij"), -1)
                expected = RegularGridInterpolator(places, grid)(points)
            np.testing.assert_allclose(resized[:-3, head], expected.ravel(), atol=2e-5)

    @pytest.mark.parametrize("method", [None, "geometric", "geometric_cubic", "bicubic"])
    def test_rows_of_the_class_token_are_copied(self, method):
        source, layer = attention_bias((3, 3)), attention_bias((4, 2), resize=method)
        table = random_table(source)
        layer.resize_from(source)
        resized = keras.ops.convert_to_numpy(layer.embedding)
        assert resized.shape == (7 * 3 + 3, 2)
        np.testing.assert_array_equal(resized[-3:], table[-3:])

    def test_method_is_cubic_unless_it_is_given(self):
        assert attention_bias((2, 2)).resize_method == "geometric_cubic"
        assert attention_bias((2, 2), resize="geometric").resize_method == "geometric"

    def test_saved_table_is_resized(self, tmp_path):
        models = []
        for window in ((2, 3), (3, 2)):  # their tables have equal shapes
            tokens = keras.Input((7, 8))
            models.append(keras.Model(tokens, AttentionBias(window, 2)(tokens)))
        old, new = models
        table = random_table(old.layers[-1])
        old.save_weights(tmp_path / "old.weights.h5")
        new.load_weights(tmp_path / "old.weights.h5")
        expected = attention_bias((3, 2))
        expected.resize_from(old.layers[-1])
        loaded = keras.ops.convert_to_numpy(new.layers[-1].embedding)
        np.testing.assert_array_equal(loaded, keras.ops.convert_to_numpy(expected.embedding))
        assert np.abs(loaded - table).max() > 0.1

    def test_table_that_is_not_of_its_window_is_refused(self):
        layer = attention_bias((2, 2))
        with pytest.raises(ValueError, match=r"3 x 5 grid rows; got shape \(9, 2\)"):
            layer.resized(layer.embedding, np.zeros((12, 2)), "geometric", (2, 3))
        with pytest.raises(ValueError, match=r"a row per offset of a square window; got shape \(18, 2\)"):
            layer.resized(layer.embedding, np.zeros((18, 2)), "geometric")

    @for_each(
        ("kwargs", "message"),
        [
            ({"window_size": 0, "num_heads": 1}, "window_size must be one positive integer or a pair"),
            ({"window_size": 2, "num_heads": 0}, "num_heads must be an integer of at least 1; got num_heads=0"),
            (
                {"window_size": 2, "num_heads": 1, "resize": "spline"},
                "resize must be one of 'align_corners', .* got resize='spline'",
            ),
        ],
    )
    def test_wrong_arguments_are_refused(self, kwargs, message):
        with pytest.raises(ValueError, match=message):
            AttentionBias(**kwargs)

    def test_config_round_trips(self):
        layer = AttentionBias((2, 3), 4, resize="geometric")
        again = AttentionBias.from_config(layer.get_config())
        assert again.get_config() == layer.get_config()
        assert (again.window_size, again.num_heads, again.resize) == ((2, 3), 4, "geometric")


def beit_offsets(old, new):
    """The places of old offsets among new ones, as the authors compute them (unilm/beit/run_class_finetuning.py)."""

    def sum_of_series(first, ratio, count):
        return first * (1.0 - ratio**count) / (1.0 - ratio)

    left, right = 1.01, 1.5
    while right - left > 1e-6:
        ratio = (left + right) / 2.0
        if sum_of_series(1, ratio, old // 2) > new // 2:
            right = ratio
        else:
            left = ratio
    places, current = [], 1.0
    for index in range(old // 2):
        places.append(current)
        current += ratio ** (index + 1)
    return np.array([-place for place in reversed(places)] + [0.0] + places)


@pytest.mark.parametrize("prefix", [0, 2])
def test_the_mlp_maps_logarithms_of_offsets_to_biases(prefix, randomise):
    """arXiv 2111.09883, Eq. 4, pair by pair in NumPy."""
    layer = RelativePositionMlp((2, 3), 4, mlp_dim=5, num_prefix_tokens=prefix)
    layer.build((None, prefix + 6, 8))
    weights = randomise(layer)
    found = keras.ops.convert_to_numpy(layer(np.zeros((1, prefix + 6, 8), "float32")))
    expected = np.zeros((4, prefix + 6, prefix + 6))
    for query, key in np.ndindex(6, 6):
        offset = np.array([query // 3 - key // 3, query % 3 - key % 3])
        logarithms = np.sign(offset) * np.log(1 + np.abs(offset))
        hidden = np.maximum(logarithms @ weights["dense1/kernel"] + weights["dense1/bias"], 0)
        expected[:, prefix + query, prefix + key] = hidden @ weights["dense2/kernel"] + weights["dense2/bias"]
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_the_mlp_computes_in_float32(dtype):
    layer = RelativePositionMlp(2, 3, dtype=dtype)
    tokens = keras.KerasTensor((None, 4, 6), layer.compute_dtype)
    assert (layer(tokens).shape, layer(tokens).dtype) == ((3, 4, 4), "float32")
    assert keras.backend.standardize_dtype(layer(keras.ops.zeros((1, 4, 6))).dtype) == "float32"
