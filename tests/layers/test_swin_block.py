"""SwinBlock against a statement of it in NumPy that neither rolls nor masks.

Shifted windows are cut at `shift`, `shift + window` and so on, with smaller ones at the four edges: the roll and the
mask of the layer are only a way to compute that with windows of equal size.
"""

import math

import keras
import numpy as np
import pytest
from faults import for_each

from keras_vit.layers.position_grid import resize_position_embedding
from keras_vit.layers.swin_block import SwinBlock

DIM, HEADS = 8, 2

# map, window_size, shifted -> window really used, shift really used, padded map
GEOMETRIES = [
    ((4, 6), 2, False, 2, 0, (4, 6)),
    ((4, 6), 2, True, 2, 1, (4, 6)),
    ((6, 6), 3, True, 3, 1, (6, 6)),
    ((5, 7), 3, False, 3, 0, (6, 9)),
    ((5, 7), 3, True, 3, 1, (6, 9)),
    ((6, 9), 4, True, 4, 2, (8, 12)),
    ((4, 4), 4, True, 4, 0, (4, 4)),
    ((3, 3), 7, True, 3, 0, (3, 3)),
    ((3, 8), 4, True, 3, 0, (3, 9)),
]


def make_block(size, window_size, shifted, randomise, **kwargs):
    block = SwinBlock(HEADS, 12, window_size, shifted, epsilon=1e-3, **kwargs)
    block.build((None, *size, DIM))
    return block, randomise(block)


def attention_of_map(tokens, weights, window, shift, softmax):
    """Attention inside the windows of one padded map (rows, columns, dim).

    Returns its output before cropping, and the weights as a dict {(query place, key place): (heads,)}.
    """
    rows, columns, dim = tokens.shape
    width = dim // HEADS
    fused = tokens @ weights["attention/qkv/kernel"] + weights["attention/qkv/bias"]
    query, key, value = np.split(fused, 3, axis=-1)
    table = weights["attention/relative_position_bias/embedding"].reshape(2 * window - 1, 2 * window - 1, HEADS)
    windows = {}
    for y, x in np.ndindex(rows, columns):
        windows.setdefault(((y - shift) // window, (x - shift) // window), []).append((y, x))
    outputs, scores = np.zeros(tokens.shape), {}
    for places in windows.values():
        for head in range(HEADS):
            part = slice(head * width, (head + 1) * width)
            for q in places:
                logits = [
                    query[q][part] @ key[k][part] / math.sqrt(width)
                    + table[q[0] - k[0] + window - 1, q[1] - k[1] + window - 1, head]
                    for k in places
                ]
                probabilities = softmax(np.array(logits))
                outputs[q][part] = sum(p * value[k][part] for p, k in zip(probabilities, places, strict=True))
                for p, k in zip(probabilities, places, strict=True):
                    scores.setdefault((q, k), np.zeros(HEADS))[head] = p
    projected = outputs @ weights["attention/proj/kernel"]
    return projected + weights["attention/proj/bias"], scores


def padded_norm(maps, weights, padded, reference):
    normed = reference.layer_norm(maps, weights["norm1/gamma"], weights["norm1/beta"], 1e-3)
    return np.pad(normed, ((0, padded[0] - maps.shape[0]), (0, padded[1] - maps.shape[1]), (0, 0)))


@pytest.mark.parametrize("gelu", ["erf", "tanh"])
@pytest.mark.parametrize(("size", "window_size", "shifted", "window", "shift", "padded"), GEOMETRIES)
def test_values(size, window_size, shifted, window, shift, padded, gelu, reference, randomise):
    block, weights = make_block(size, window_size, shifted, randomise, gelu=gelu)
    assert (block.built_window, block.built_shift, block.padded_size) == (window, shift, padded)
    maps = np.random.default_rng(1).normal(size=(2, *size, DIM)).astype("float32")
    outputs = keras.ops.convert_to_numpy(block(maps))
    for sample in range(2):
        residual = maps[sample].astype("float64")
        normed = padded_norm(residual, weights, padded, reference)
        branch, _ = attention_of_map(normed, weights, window, shift, reference.softmax)
        residual = residual + branch[: size[0], : size[1]]
        normed = reference.layer_norm(residual, weights["norm2/gamma"], weights["norm2/beta"], 1e-3)
        mlp = [weights[f"mlp/dense{i}/{kind}"] for i in (1, 2) for kind in ("kernel", "bias")]
        expected = residual + reference.mlp(normed, *mlp, gelu)
        np.testing.assert_allclose(outputs[sample], expected, atol=2e-4)


@pytest.mark.parametrize(("size", "window_size", "shifted", "window", "shift", "padded"), GEOMETRIES)
def test_attention_scores_lie_as_documented(size, window_size, shifted, window, shift, padded, reference, randomise):
    block, weights = make_block(size, window_size, shifted, randomise)
    maps = np.random.default_rng(1).normal(size=(1, *size, DIM)).astype("float32")
    scores = keras.ops.convert_to_numpy(block.attention_scores(maps))[0]
    normed = padded_norm(maps[0].astype("float64"), weights, padded, reference)
    _, expected = attention_of_map(normed, weights, window, shift, reference.softmax)
    corners = [(y, x) for y in range(0, padded[0], window) for x in range(0, padded[1], window)]
    assert scores.shape == (len(corners), HEADS, window**2, window**2)
    np.testing.assert_allclose(scores.sum(axis=-1), 1.0, atol=1e-6)
    for index, (y, x) in enumerate(corners):
        inside = [(y + i + shift, x + j + shift) for i, j in np.ndindex(window, window)]
        places = [(row % padded[0], column % padded[1]) for row, column in inside]
        for q, query in enumerate(places):
            for k, key in enumerate(places):
                wanted = expected.get((query, key), np.zeros(HEADS))
                np.testing.assert_allclose(scores[index, :, q, k], wanted, atol=1e-5)


def test_variable_paths(randomise):
    _, weights = make_block((4, 4), 2, True, randomise)
    assert sorted(weights) == sorted(
        [
            "norm1/gamma",
            "norm1/beta",
            "attention/qkv/kernel",
            "attention/qkv/bias",
            "attention/relative_position_bias/embedding",
            "attention/proj/kernel",
            "attention/proj/bias",
            "norm2/gamma",
            "norm2/beta",
            "mlp/dense1/kernel",
            "mlp/dense1/bias",
            "mlp/dense2/kernel",
            "mlp/dense2/bias",
        ]
    )


def test_stochastic_depth_drops_the_branches_of_whole_samples(randomise):
    block, _ = make_block((2, 2), 2, False, randomise, drop_path_rate=0.5)
    maps = np.random.default_rng(1).normal(size=(400, 2, 2, DIM)).astype("float32")
    outputs = keras.ops.convert_to_numpy(block(maps, training=True))
    same = (outputs == maps).all(axis=(1, 2, 3))
    assert same.mean() == pytest.approx(0.25, abs=0.08)  # both branches dropped
    assert not (outputs == maps)[~same].all(axis=(1, 2)).any()


def test_dropout_falls_on_the_attention_output_and_twice_on_the_mlp():
    block = SwinBlock(1, 3, 2, dropout_rate=0.25)
    rates = [layer.rate for layer in (block.dropout, block.drop_path)]
    assert rates == [0.25, 0.0] and block.mlp.dropout_rate == 0.25
    block.build((None, 2, 2, DIM))
    block.set_weights([np.zeros(weight.shape) for weight in block.weights])
    block.attention.proj.bias.assign(np.ones(DIM))
    outputs = keras.ops.convert_to_numpy(block(np.zeros((200, 2, 2, DIM), "float32"), training=True))
    assert set(np.unique(outputs.round(5))) == {0.0, np.float32(1 / 0.75).round(5)}
    assert (outputs == 0).mean() == pytest.approx(0.25, abs=0.03)


def test_weights_of_another_map_load_with_the_table_resized(randomise, tmp_path):
    models = []
    for side in (8, 5):
        inputs = keras.Input((side, side, DIM))
        models.append(keras.Model(inputs, SwinBlock(HEADS, 12, 7, shifted=True, name="block")(inputs)))
    old, new = (model.get_layer("block") for model in models)
    weights = randomise(old)
    models[0].save_weights(tmp_path / "old.weights.h5")
    models[1].load_weights(tmp_path / "old.weights.h5")
    assert (old.built_window, new.built_window) == (7, 5)
    path = "attention/relative_position_bias/embedding"
    weights[path] = resize_position_embedding(weights[path], (13, 13), (9, 9), 0, "bicubic")
    for weight in new.weights:
        np.testing.assert_allclose(
            keras.ops.convert_to_numpy(weight), weights[weight.path.removeprefix("block/")], atol=1e-6
        )


@for_each(
    ("changes", "message"),
    [
        ({"num_heads": 0}, "num_heads must be an integer of at least 1"),
        ({"mlp_dim": 0}, "mlp_dim must be an integer of at least 1"),
        ({"window_size": (2, 2)}, r"window_size must be an integer of at least 1; got window_size=\(2, 2\)"),
        ({"shifted": 1}, "shifted must be True or False; got shifted=1"),
        ({"dropout_rate": 1.0}, r"dropout_rate must be a number in \[0, 1\)"),
        ({"drop_path_rate": -0.1}, r"drop_path_rate must be a number in \[0, 1\)"),
        ({"qkv_bias": None}, "qkv_bias must be True or False; got qkv_bias=None"),
        ({"gelu": "exact"}, "gelu must be one of 'tanh', 'erf', 'quick'; got gelu='exact'"),
        ({"epsilon": 0}, "epsilon must be a finite number above 0; got epsilon=0"),
    ],
)
def test_wrong_arguments_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        SwinBlock(**{"num_heads": 2, "mlp_dim": 12, "window_size": 2, **changes})


def test_wrong_shapes_are_refused():
    with pytest.raises(ValueError, match=r"known size; got \(None, None, 4, 8\)"):
        SwinBlock(2, 12, 2).build((None, None, 4, 8))
    with pytest.raises(ValueError, match=r"maps of shape .*; got \(None, 16, 8\)"):
        SwinBlock(2, 12, 2).build((None, 16, 8))
    with pytest.raises(ValueError, match="num_heads must divide the width of the input; got 3 and 8"):
        SwinBlock(3, 12, 2).build((None, 4, 4, 8))
