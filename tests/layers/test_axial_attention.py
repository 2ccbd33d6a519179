"""AxialAttention: position-sensitive attention, head by head, query by query and key by key, in NumPy."""

import math

import keras
import numpy as np
import pytest
from faults import for_each
from scipy import ndimage

from keras_vit.layers.axial_resnet import AxialAttention
from keras_vit.models.costs import count_macs

EPSILON = 1e-3
ROWS, COLUMNS, CHANNELS = 3, 5, 8


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("num_heads", [1, 2])
@pytest.mark.parametrize("axis", ["height", "width"])
def test_values(axis, num_heads, training, reference, randomise):
    layer, maps = AxialAttention(axis, num_heads, EPSILON), _maps()
    layer.build(maps.shape)
    weights = _randomise(layer, randomise)
    output = _call(layer, maps, training=training)
    turned = maps.swapaxes(1, 2) if axis == "height" else maps
    sequences = turned.reshape(-1, *turned.shape[2:]).astype("float64")
    expected = _attention(reference.softmax, sequences, weights, num_heads, training).reshape(turned.shape)
    np.testing.assert_allclose(output, expected.swapaxes(1, 2) if axis == "height" else expected, atol=2e-5)


def _attention(softmax, sequences, weights, num_heads, training):
    """softmax(BN(q k) + BN(q r^q) + BN(k r^k)), then BN(A v) + BN(A r^v); (n, length, channels) -> the same."""
    count, length, channels = sequences.shape
    head_dim = channels // num_heads
    half = head_dim // 2

    def norm(x, name, axis):
        """Batch normalisation with one mean, variance, scale and shift per index of `axis`."""
        others = tuple(i for i in range(x.ndim) if i != axis)
        shape = [-1 if i == axis else 1 for i in range(x.ndim)]
        gamma, beta, mean, variance = (
            weights[f"{name}_norm/{kind}"].reshape(shape)
            for kind in ("gamma", "beta", "moving_mean", "moving_variance")
        )
        if training:
            mean, variance = x.mean(axis=others, keepdims=True), x.var(axis=others, keepdims=True)
        return (x - mean) / np.sqrt(variance + EPSILON) * gamma + beta

    fused = norm(sequences @ weights["qkv/kernel"], "qkv", 2)
    table = weights["relative_positions"]  # row d + length - 1: the offset d
    product, by_query, by_key = (np.zeros((count, num_heads, length, length)) for _ in range(3))
    outputs, positions = np.zeros_like(sequences), np.zeros_like(sequences)
    for head in range(num_heads):
        own = fused[:, :, 2 * head * head_dim : 2 * (head + 1) * head_dim]
        query, key = own[:, :, :half], own[:, :, half : 2 * half]
        for i in range(length):
            for j in range(length):
                product[:, head, i, j] = (query[:, i] * key[:, j]).sum(axis=-1)
                by_query[:, head, i, j] = query[:, i] @ table[i - j + length - 1, :half]
                by_key[:, head, i, j] = key[:, j] @ table[j - i + length - 1, half : 2 * half]
    logits = norm(product, "product", 1) + norm(by_query, "query_position", 1) + norm(by_key, "key_position", 1)
    attention = softmax(logits)
    for head in range(num_heads):
        value = fused[:, :, (2 * head + 1) * head_dim : 2 * (head + 1) * head_dim]
        columns = slice(head * head_dim, (head + 1) * head_dim)
        for i in range(length):
            for j in range(length):
                weight = attention[:, head, i, j, None]
                outputs[:, i, columns] += weight * value[:, j]
                positions[:, i, columns] += weight * table[i - j + length - 1, 2 * half :]
    return norm(outputs, "value", 2) + norm(positions, "value_position", 2)


@pytest.mark.parametrize("axis", ["height", "width"])
def test_a_cell_changes_exactly_the_cells_of_its_column_or_row(axis, randomise):
    layer, maps = AxialAttention(axis, 2), _maps()
    layer.build(maps.shape)
    _randomise(layer, randomise)
    changed = maps.copy()
    changed[0, 1, 3] += 1.0
    differs = np.any(_call(layer, maps) != _call(layer, changed), axis=-1)
    expected = np.zeros((2, ROWS, COLUMNS), bool)
    expected[(0, slice(None), 3) if axis == "height" else (0, 1)] = True
    np.testing.assert_array_equal(differs, expected)


def test_training_moves_the_statistics_of_every_norm_by_a_tenth():
    layer, maps = AxialAttention("width", 2), _maps()
    layer(maps, training=True)
    fused = maps.reshape(-1, CHANNELS).astype("float64") @ _numpy(layer.qkv.kernel)
    norm = layer.qkv_norm
    np.testing.assert_allclose(_numpy(norm.moving_mean), 0.1 * fused.mean(axis=0), atol=1e-6)
    np.testing.assert_allclose(_numpy(norm.moving_variance), 0.9 + 0.1 * fused.var(axis=0), atol=1e-5)
    moved = [weight.path for weight in layer.non_trainable_weights if np.any(_numpy(weight) != _numpy(weight)[0])]
    assert len(moved) == 2 * 6


@pytest.mark.parametrize(("axis", "old", "new"), [("height", (3, 4), (5, 4)), ("width", (2, 4), (7, 3))])
@pytest.mark.parametrize("way", ["file", "resize_from"])
def test_relative_positions_of_another_length_are_resized_linearly(axis, old, new, way, randomise, tmp_path):
    source, target = (_model(axis, size) for size in (old, new))
    _randomise(source.layers[0], randomise)
    table = _numpy(source.layers[0].relative_positions)
    if way == "file":
        source.save_weights(tmp_path / "source.weights.h5")
        target.load_weights(tmp_path / "source.weights.h5")
    else:
        target.layers[0].resize_from(source.layers[0], "align_corners")
    resized = _numpy(target.layers[0].relative_positions)
    old_length, new_length = (size[0 if axis == "height" else 1] for size in (old, new))
    assert len(resized) == 2 * new_length - 1
    expected = ndimage.zoom(table, (len(resized) / len(table), 1), order=1)
    np.testing.assert_allclose(resized, expected, atol=1e-6)
    np.testing.assert_allclose(resized[new_length - 1], table[old_length - 1], atol=1e-6)  # offset 0


def test_resize_from_uses_the_method_given(randomise):
    source, target = AxialAttention("width", 2), AxialAttention("width", 2)
    source.build((None, 2, 4, CHANNELS))
    target.build((None, 2, 7, CHANNELS))
    _randomise(source, randomise)
    tables = []
    for method in ("align_corners", "bilinear", "bicubic"):
        target.resize_from(source, method)
        tables.append(_numpy(target.relative_positions))
    assert all(np.abs(a - b).max() > 0.01 for a, b in zip(tables, tables[1:], strict=False))


@pytest.mark.parametrize(("axis", "pairs"), [("height", 2 * 3**2), ("width", 3 * 2**2)])
def test_multiply_accumulates_are_those_of_the_five_products(axis, pairs):
    # 2 columns of 3 cells and 3 rows of 2, 8 channels of which keys have 4: pairs of cells x (3 x 4 + 2 x 8)
    inputs = keras.Input((3, 2, 8))
    projections = 3 * 2 * 8 * 16
    assert count_macs(keras.Model(inputs, AxialAttention(axis, 2)(inputs))) == pairs * 28 + projections


def test_initial_values():
    layer = AxialAttention("width", 2)
    layer.build((None, 64, 64, 128))
    assert _numpy(layer.qkv.kernel).std() == pytest.approx(1 / math.sqrt(128), rel=0.03)
    assert _numpy(layer.relative_positions).std() == pytest.approx(1 / math.sqrt(64), rel=0.03)
    assert layer.relative_positions.shape == (2 * 64 - 1, 2 * 64)
    assert layer.qkv.bias is None


@for_each(
    ("kwargs", "message"),
    [
        ({"axis": "rows"}, "axis must be one of 'height', 'width'; got axis='rows'"),
        ({"num_heads": 0}, "num_heads must be an integer of at least 1; got num_heads=0"),
        ({"epsilon": 0}, "epsilon must be a finite number above 0; got epsilon=0"),
    ],
)
def test_wrong_arguments_are_refused(kwargs, message):
    with pytest.raises(ValueError, match=message):
        AxialAttention(**{"axis": "width", **kwargs})


@for_each(
    ("shape", "message"),
    [
        ((None, 3, None, 8), "maps of shape .batch, rows, columns, channels. with known size"),
        ((None, 15, 8), "maps of shape .batch, rows, columns, channels. with known size"),
        ((None, 3, 5, 10), "twice num_heads must divide the channels .* got num_heads=2 and 10 channels"),
    ],
)
def test_wrong_maps_are_refused(shape, message):
    with pytest.raises(ValueError, match=message):
        AxialAttention("width", 2).build(shape)


def _model(axis, size):
    return keras.Sequential([keras.Input((*size, CHANNELS)), AxialAttention(axis, 2, name="attention")])


def _randomise(layer, randomise):
    """Random weights, with variances above 0."""
    randomise(layer)
    for weight in layer.weights:
        if weight.path.endswith("moving_variance"):
            weight.assign(np.abs(_numpy(weight)) + 0.2)
    prefix = f"{layer.name}/"
    return {w.path.split(prefix, 1)[1]: _numpy(w).astype("float64") for w in layer.weights}


def _maps():
    return np.random.default_rng(1).normal(size=(2, ROWS, COLUMNS, CHANNELS)).astype("float32")


def _call(layer, maps, training=False):
    return _numpy(layer(maps, training=training))


def _numpy(tensor):
    return keras.ops.convert_to_numpy(tensor)
