"""GridSelfAttention: windows, padding and decomposed relative positions pair by pair in NumPy."""

import math

import keras
import numpy as np
import pytest
from faults import for_each

from keras_vit.config import WindowConfig
from keras_vit.layers import GridSelfAttention
from keras_vit.layers.grid_attention import DecomposedPositions

DIM, HEADS = 8, 2


def attended(tokens, size, weights, softmax):
    """Attention of all tokens of one rectangle, (rows * columns, dim): logits and sums one pair at a time."""
    width = DIM // HEADS
    query, key, value = np.split(tokens @ weights["qkv/kernel"] + weights["qkv/bias"], 3, axis=1)
    places = [(y, x) for y in range(size[0]) for x in range(size[1])]
    scores, outputs = np.zeros((HEADS, len(places), len(places))), np.zeros_like(tokens)
    for head in range(HEADS):
        part = slice(head * width, (head + 1) * width)
        for q, (qy, qx) in enumerate(places):
            logits = np.zeros(len(places))
            for k, (ky, kx) in enumerate(places):
                logits[k] = query[q, part] @ key[k, part] / math.sqrt(width)
                if "relative_positions/rows" in weights:  # the query is not scaled
                    logits[k] += query[q, part] @ weights["relative_positions/rows"][qy - ky + size[0] - 1]
                    logits[k] += query[q, part] @ weights["relative_positions/columns"][qx - kx + size[1] - 1]
            scores[head, q] = softmax(logits)
            outputs[q, part] = scores[head, q] @ value[:, part]
    return outputs @ weights["proj/kernel"] + weights["proj/bias"], scores


def in_windows(tokens, grid, side, weights, softmax):
    """The same of one image in windows: padding, each window, cropping."""
    rows, columns = grid
    padded = np.zeros((math.ceil(rows / side) * side, math.ceil(columns / side) * side, DIM))
    padded[:rows, :columns] = tokens.reshape(rows, columns, DIM)
    scores = []
    for y in range(0, len(padded), side):
        for x in range(0, padded.shape[1], side):
            window = padded[y : y + side, x : x + side]
            output, score = attended(window.reshape(-1, DIM), (side, side), weights, softmax)
            padded[y : y + side, x : x + side] = output.reshape(side, side, DIM)
            scores.append(score)
    return padded[:rows, :columns].reshape(-1, DIM), np.stack(scores)


@pytest.mark.parametrize(
    ("grid", "side", "relative"),
    [
        ((4, 6), 2, True),  # the windows divide the grid
        ((5, 3), 3, True),
        ((2, 3), 4, True),  # one window, larger than the grid
        ((3, 4), 2, False),
        ((3, 5), None, True),
        ((4, 4), None, True),
        ((2, 3), None, False),
    ],
)
def test_values_and_scores(grid, side, relative, reference, randomise):
    layer = GridSelfAttention(grid, WindowConfig(size=side, relative_positions=relative), HEADS)
    tokens = np.random.default_rng(1).normal(size=(2, math.prod(grid), DIM)).astype("float32")
    layer.build(tokens.shape)
    weights = randomise(layer)
    assert ("relative_positions/rows" in weights) is relative
    outputs = keras.ops.convert_to_numpy(layer(tokens))
    scores = keras.ops.convert_to_numpy(layer(tokens, return_attention_scores=True)[1])
    for sample, image in enumerate(tokens.astype("float64")):
        if side is None:
            expected, expected_scores = attended(image, grid, weights, reference.softmax)
        else:
            expected, expected_scores = in_windows(image, grid, side, weights, reference.softmax)
        np.testing.assert_allclose(outputs[sample], expected, atol=1e-5)
        np.testing.assert_allclose(scores[sample], expected_scores, atol=1e-5)
    symbolic = layer(keras.Input((math.prod(grid), DIM)), return_attention_scores=True)[1]
    assert tuple(symbolic.shape) == (None, *scores.shape[1:])


@pytest.mark.parametrize("side", [None, 3])
def test_another_grid_in_the_call_has_the_tables_resized_linearly(side, randomise):
    """Offsets i of the new table are at (i + 1/2) old / new - 1/2 of the old one, with the ends repeated."""
    window, size = WindowConfig(size=side), (5, 2)
    layer, fixed = GridSelfAttention((3, 4), window, HEADS), GridSelfAttention(size, window, HEADS)
    layer.build((None, 12, DIM))
    fixed.build((None, 10, DIM))
    weights = randomise(layer)
    for weight in fixed.weights:
        values = weights[weight.path.removeprefix(f"{fixed.name}/")]
        old, new = len(values), weight.shape[0]
        if "relative_positions" in weight.path and old != new:
            places = (np.arange(new) + 0.5) * old / new - 0.5
            values = np.stack([np.interp(places, np.arange(old), column) for column in values.T], axis=1)
        weight.assign(values)
    tokens = np.random.default_rng(2).normal(size=(2, 10, DIM)).astype("float32")
    outputs = layer(tokens, {"grid": np.zeros((2, *size, 1), "float32")})
    np.testing.assert_allclose(keras.ops.convert_to_numpy(outputs), fixed(tokens), atol=1e-5)
    if side is None:
        again = DecomposedPositions(size)
        again.build((None, HEADS, 10, DIM // HEADS))
        again.resize_from(layer.relative_positions, "bicubic")  # linear whatever the method
        for one, other in zip(again.weights, fixed.relative_positions.weights, strict=True):
            np.testing.assert_allclose(keras.ops.convert_to_numpy(one), other, atol=1e-6)


def test_tables_start_at_zero(initial):
    layer = GridSelfAttention((3, 5), WindowConfig(), HEADS)
    layer.build((None, 15, DIM))
    shapes = {path: value.shape for path, value in initial(layer).items() if "relative" in path}
    assert shapes == {"relative_positions/rows": (5, 4), "relative_positions/columns": (9, 4)}
    assert not any(value.any() for path, value in initial(layer).items() if "relative" in path)


@for_each(
    ("arguments", "message"),
    [
        ((None, WindowConfig(), 2), "grid_size must be one positive integer or a pair"),
        ((4, None, 2), "window must be a WindowConfig"),
        ((4, {"size": 0}, 2), "size must be an integer of at least 1; got size=0"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        GridSelfAttention(*arguments)
