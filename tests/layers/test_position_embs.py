"""AddPositionEmbs: the rows that are added, the grids that are refused, and tables of other grids."""

import math

import keras
import numpy as np
import onevit
import pytest
from faults import for_each
from scipy import ndimage

from keras_vit.layers import AddPositionEmbs
from keras_vit.layers.position_grid import patch_coordinates, resize_position_embedding


def test_learned_rows_are_added_one_per_token(randomise):
    layer, tokens = AddPositionEmbs(), _tokens(17, 6)
    layer.build(tokens.shape)
    table = randomise(layer)["embedding"]
    assert table.shape == (1, 17, 6)
    np.testing.assert_allclose(_call(layer, tokens), tokens + table, atol=1e-6)


def test_registers_have_no_position(randomise):
    layer, tokens = AddPositionEmbs(grid_size=(2, 3), num_class_tokens=2, num_registers=3), _tokens(11, 6)
    layer.build(tokens.shape)
    table = randomise(layer)["embedding"][0]
    assert table.shape == (8, 6)
    rows = np.concatenate([table[:2], np.zeros((3, 6)), table[2:]])
    np.testing.assert_allclose(_call(layer, tokens), tokens + rows, atol=1e-6)


@pytest.mark.parametrize(("form", "last"), [("sincos2d", 1), ("sincos2d_mae", 0)])
@pytest.mark.parametrize(("grid", "dim"), [((3, 4), 8), ((5, 2), 12), ((1, 1), 8)])
def test_sincos2d_is_the_table_of_moco_v3_or_mae_with_zeros_for_prefix_tokens(grid, dim, form, last):
    """MoCo-v3 divides i by dim / 4 - 1, MAE (util/pos_embed.py, columns first) by dim / 4."""
    layer = AddPositionEmbs(form, grid, num_class_tokens=1, num_registers=2)
    tokens = _tokens(3 + grid[0] * grid[1], dim)
    expected = np.zeros((3 + grid[0] * grid[1], dim))
    quarter = dim // 4
    for row in range(grid[0]):
        for column in range(grid[1]):
            for i in range(quarter):
                frequency = 10000 ** (-i / (quarter - last))
                channels = (math.sin(column * frequency), math.cos(column * frequency))
                channels += (math.sin(row * frequency), math.cos(row * frequency))
                expected[3 + row * grid[1] + column, i::quarter] = channels
    np.testing.assert_allclose(_call(layer, tokens), tokens + expected, atol=2e-6)
    assert layer.weights == []


@pytest.mark.parametrize("method", [None, "bilinear_antialias", "bicubic_antialias", "bicubic_offset"])
def test_tables_of_other_grids_are_resized_by_the_method_given(method, randomise):
    old, new = AddPositionEmbs(grid_size=(3, 4)), AddPositionEmbs(grid_size=(5, 2), resize=method)
    old.build((None, 13, 6))
    new.build((None, 11, 6))
    table = randomise(old)["embedding"]
    new.resize_from(old)
    resized = keras.ops.convert_to_numpy(new.embedding)
    np.testing.assert_allclose(resized[:, :1], table[:, :1], atol=1e-6)  # the class token
    if method is None:
        grid = ndimage.zoom(table[0, 1:].reshape(3, 4, 6), (5 / 3, 2 / 4, 1), order=1)
    else:
        arguments = ("bilinear" if "linear" in method else "bicubic", "antialias" in method, 0.1 * ("offset" in method))
        vertical, horizontal = (onevit.resize_matrix(*sides, *arguments) for sides in ((3, 5), (4, 2)))
        grid = np.einsum("yr,xc,rcd->yxd", vertical, horizontal, table[0, 1:].reshape(3, 4, 6))
    np.testing.assert_allclose(resized[0, 1:].reshape(5, 2, 6), grid, atol=1e-5)


def test_none_adds_nothing():
    layer, tokens = AddPositionEmbs("none"), _tokens(5, 6)
    np.testing.assert_array_equal(_call(layer, tokens), tokens)
    assert layer.weights == []


def test_table_starts_at_normal_002(initial):
    layer = AddPositionEmbs()
    layer.build((None, 65, 256))
    table = initial(layer)["embedding"]
    assert table.std() == pytest.approx(0.02, rel=0.03)
    assert abs(table.mean()) < 0.001


@pytest.mark.parametrize(
    ("kwargs", "tokens", "grid"),
    [
        ({}, 197, (14, 14)),
        ({"num_class_tokens": 0}, 196, (14, 14)),
        ({"num_registers": 4}, 1 + 4 + 49, (7, 7)),
        ({"grid_size": (2, 8), "num_class_tokens": 0}, 16, (2, 8)),
        ({"grid_size": 4}, 17, (4, 4)),
    ],
)
def test_grid_is_the_one_given_or_the_square_that_the_tokens_form(kwargs, tokens, grid):
    layer = AddPositionEmbs(**kwargs)
    layer.build((None, tokens, 8))
    assert layer.built_grid == grid


@for_each(
    ("kwargs", "shape", "message"),
    [
        (
            {},
            (None, 196, 8),
            r"1 class tokens, 0 registers and a square number of patch tokens .* got 196 tokens",
        ),
        (
            {"num_class_tokens": 0},
            (None, 197, 8),
            "0 class tokens, .* a square number of patch tokens .* got 197 tokens",
        ),
        ({}, (None, 1, 8), "a square number of patch tokens .* got 1 tokens"),
        (
            {"grid_size": (2, 8)},
            (None, 16, 8),
            r"1 class tokens, 0 registers and 2 x 8 patch tokens .* got 16 tokens",
        ),
        (
            {"grid_size": (2, 8), "num_registers": 1},
            (None, 17, 8),
            "1 registers and 2 x 8 patch tokens .* got 17 tokens",
        ),
        ({}, (None, None, 8), r"a known number of tokens; got input shape \(None, None, 8\)"),
        ({"position_embedding": "sincos2d"}, (None, 17, 10), "a width of at least 8 divisible by 4; got 10"),
        ({"position_embedding": "sincos2d"}, (None, 17, 4), "a width of at least 8 divisible by 4; got 4"),
        ({"position_embedding": "sincos2d_mae"}, (None, 17, 4), "'sincos2d_mae' needs a width of at least 8 .* got 4"),
    ],
)
def test_tokens_that_are_not_such_a_grid_are_refused(kwargs, shape, message):
    with pytest.raises(ValueError, match=message):
        AddPositionEmbs(**kwargs).build(shape)


@for_each(
    ("kwargs", "message"),
    [
        (
            {"position_embedding": "learnt"},
            "must be one of 'learned', 'learned_2d', 'factorized', 'sincos2d', .* got .*embedding='learnt'",
        ),
        (
            {"grid_size": (0, 2)},
            r"grid_size must be one positive integer or a pair .* got grid_size=\(0, 2\)",
        ),
        (
            {"num_class_tokens": -1},
            "num_class_tokens must be an integer of at least 0; got num_class_tokens=-1",
        ),
        ({"resize": "cubic"}, "resize must be one of 'align_corners', .* got resize='cubic'"),
        ({"num_registers": "4"}, "num_registers must be an integer of at least 0; got num_registers='4'"),
    ],
)
def test_wrong_arguments_are_refused(kwargs, message):
    with pytest.raises(ValueError, match=message):
        AddPositionEmbs(**kwargs)


@pytest.mark.parametrize("suffix", [".weights.h5", ".keras"])
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ((4, 4), (2, 8)),  # as many rows: only the grid tells that it must be resized
        ((4, 4), (8, 8)),
        ((3, 5), (2, 2)),
        ((4, 4), (4, 4)),
    ],
)
def test_table_of_another_grid_is_resized_when_it_is_loaded(old, new, suffix, tmp_path, randomise):
    source, target = _model(old), _model(new)
    table = randomise(source.get_layer("positions"))["embedding"][0]
    path = tmp_path / f"model{suffix}"
    (source.save if suffix == ".keras" else source.save_weights)(path)
    target.load_weights(path)
    factors = [n / o for n, o in zip(new, old, strict=True)]
    grid = ndimage.zoom(table[1:].reshape(*old, 6), (*factors, 1), order=1)  # the official code's way
    loaded = keras.ops.convert_to_numpy(target.get_layer("positions").embedding)[0]
    np.testing.assert_allclose(loaded, np.concatenate([table[:1], grid.reshape(-1, 6)]), atol=1e-6)


def test_table_that_fits_comes_back_exactly(tmp_path, randomise):
    source, target = _model((4, 4)), _model((4, 4))
    table = randomise(source.get_layer("positions"))["embedding"]
    source.save_weights(tmp_path / "m.weights.h5")
    target.load_weights(tmp_path / "m.weights.h5")
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(target.get_layer("positions").embedding), table)


def test_file_that_names_no_grid_loads_a_table_of_the_same_length_and_refuses_another():
    layer = AddPositionEmbs(grid_size=(2, 3))
    layer.build((None, 7, 6))
    table = np.random.default_rng(0).normal(size=(1, 7, 6)).astype("float32")
    layer.load_own_variables({"0": table})
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(layer.embedding), table)
    with pytest.raises(ValueError, match=r"shape"):
        layer.load_own_variables({"0": table[:, :5]})


def test_table_with_the_wrong_number_of_class_rows_is_refused():
    layer = AddPositionEmbs(grid_size=(2, 2))
    layer.build((None, 5, 6))
    with pytest.raises(ValueError, match=r"table must have 1 prefix rows and 2 x 2 grid rows; got shape \(1, 4, 6\)"):
        layer.resized(layer.embedding, np.zeros((1, 4, 6)), "bilinear", (2, 2))


def test_table_can_be_resized_by_another_method():
    layer, other = (AddPositionEmbs(grid_size=(1, side), num_class_tokens=0) for side in (4, 2))
    layer.build((None, 4, 1))
    other.build((None, 2, 1))
    other.embedding.assign(np.array([[[0.0], [8.0]]]))
    layer.resize_from(other, "bilinear")
    np.testing.assert_allclose(keras.ops.convert_to_numpy(layer.embedding)[0, :, 0], [0, 2, 6, 8], atol=1e-6)


def _model(grid):
    inputs = keras.Input((1 + grid[0] * grid[1], 6))
    return keras.Model(inputs, AddPositionEmbs(grid_size=grid, name="positions")(inputs))


def _tokens(count, dim):
    return np.random.default_rng(1).normal(size=(2, count, dim)).astype("float32")


def _call(layer, tokens):
    return keras.ops.convert_to_numpy(layer(tokens))


def test_learned_2d_is_a_table_of_columns_beside_one_of_rows():
    layer = AddPositionEmbs("learned_2d", (2, 3), num_class_tokens=1, num_registers=1)
    layer.build((None, 8, 4))
    assert {w.name: tuple(w.shape) for w in layer.weights} == {
        "columns": (1, 3, 2),
        "rows": (1, 2, 2),
        "class_rows": (1, 1, 4),
    }
    for weight in layer.weights:
        assert 0.005 < keras.ops.convert_to_numpy(weight).std() < 0.05
    columns = np.arange(6.0).reshape(1, 3, 2)
    rows = 10 + np.arange(4.0).reshape(1, 2, 2)
    class_rows = np.full((1, 1, 4), 7.0)
    layer.set_weights([columns, rows, class_rows])
    added = keras.ops.convert_to_numpy(layer(np.zeros((1, 8, 4), "float32")))[0]
    np.testing.assert_array_equal(added[0], class_rows[0, 0])
    np.testing.assert_array_equal(added[1], np.zeros(4))  # the register
    for row in range(2):
        for column in range(3):
            patch = added[2 + 3 * row + column]
            np.testing.assert_array_equal(patch, [*columns[0, column], *rows[0, row]])


@pytest.mark.parametrize("grid", [(2, 5), (3, 2), (4, 4), (6, 1)])
@pytest.mark.parametrize("is_square", [False, True])
def test_factorized_tables_are_added_and_resized_to_the_grid_or_its_square(grid, is_square, randomise):
    layer = AddPositionEmbs("factorized", (3, 4), 0, resize="bilinear", square_positions=is_square)
    tokens, coordinates = _tokens(math.prod(grid), 6), patch_coordinates(*grid)[None]
    layer.build(tokens.shape, coordinates.shape)
    tables = randomise(layer)
    sides = (max(grid),) * 2 if is_square else grid
    rows, columns = (_linear(tables[name][0], side) for name, side in zip(("rows", "columns"), sides, strict=True))
    expected = [rows[row] + columns[column] for row in range(grid[0]) for column in range(grid[1])]
    added = keras.ops.convert_to_numpy(layer(tokens, coordinates)) - tokens
    np.testing.assert_allclose(added, np.broadcast_to(expected, added.shape), atol=1e-6)


def _linear(table, length):
    """Linear interpolation with half-pixel centres; the ends are repeated."""
    places = (np.arange(length) + 0.5) * len(table) / length - 0.5
    return np.stack([np.interp(places, np.arange(len(table)), channel) for channel in table.T], axis=1)


def test_square_positions_are_the_corner_of_the_square(randomise):
    """A grid of 3 x 5 gets the first three rows of a table that is resized to 5 x 5."""
    layer = AddPositionEmbs(grid_size=(4, 4), num_class_tokens=0, resize="bicubic_antialias", square_positions=True)
    layer.build((None, 15, 6), (1, 15, 4))
    table = randomise(layer)["embedding"]
    square = resize_position_embedding(table, 4, 5, 0, "bicubic_antialias")
    found = keras.ops.convert_to_numpy(layer.table(keras.ops.convert_to_tensor(patch_coordinates(3, 5)[None])))
    np.testing.assert_allclose(found, square[:, :15], atol=1e-6)


def test_learned_2d_resizes_on_both_axes(tmp_path):
    def model(grid):
        inputs = keras.Input((grid[0] * grid[1], 2))
        return keras.Model(inputs, AddPositionEmbs("learned_2d", grid, num_class_tokens=0, name="positions")(inputs))

    old, new = model((2, 3)), model((3, 5))
    old.layers[-1].set_weights([np.array([[[0.0], [2.0], [6.0]]]), np.array([[[1.0], [3.0]]])])
    old.save_weights(tmp_path / "old.weights.h5")
    new.load_weights(tmp_path / "old.weights.h5")
    columns, rows = (keras.ops.convert_to_numpy(w)[0, :, 0] for w in new.layers[-1].weights)
    np.testing.assert_allclose(columns, [0, 1, 2, 4, 6], atol=1e-6)
    np.testing.assert_allclose(rows, [1, 2, 3], atol=1e-6)
    turned = model((3, 2))  # as many positions on another grid
    turned.layers[-1].resize_from(old.layers[-1])
    columns, rows = (keras.ops.convert_to_numpy(w)[0, :, 0] for w in turned.layers[-1].weights)
    np.testing.assert_allclose(columns, [0, 6], atol=1e-6)
    np.testing.assert_allclose(rows, [1, 2, 3], atol=1e-6)


def test_learned_2d_needs_an_even_width():
    with pytest.raises(ValueError, match="position_embedding='learned_2d' needs an even width; got 5"):
        AddPositionEmbs("learned_2d").build((None, 5, 5))
