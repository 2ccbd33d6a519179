"""Rotary position embeddings: angles and rotation against NumPy, for the three kinds."""

import keras
import numpy as np
import onevit
import pytest
from faults import for_each

from keras_vit.config import RotaryConfig
from keras_vit.layers import MultiHeadSelfAttention
from keras_vit.layers.position_grid import patch_coordinates
from keras_vit.layers.rotary import MixedRotaryEmbedding, RotaryEmbedding, rotary_angles, rotate


def coordinates(grid):
    return patch_coordinates(*grid).astype("float64")


KINDS = ("dinov3", "eva02", "pe")
GRIDS = ((4, 4), (3, 5), (1, 6))


@pytest.mark.parametrize("head_dim", [16, 64])
@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("kind", KINDS)
def test_angles(kind, grid, head_dim):
    for theta in (None, 50.0):
        angles = rotary_angles(RotaryConfig(kind=kind, theta=theta), coordinates(grid), head_dim)
        expected = onevit.rope_table(kind, *grid, head_dim, theta=theta)
        np.testing.assert_allclose(angles, expected, rtol=1e-12)
        assert angles.shape == (grid[0] * grid[1], head_dim)


@pytest.mark.parametrize(("grid", "reference"), [((4, 4), (16, 16)), ((3, 5), (7, 2)), ((5, 5), (5, 5))])
def test_reference_grid_scales_the_coordinates(grid, reference):
    rotary = RotaryConfig(kind="eva02", reference_grid=reference)
    expected = onevit.rope_table("eva02", *grid, 16, reference)
    np.testing.assert_allclose(rotary_angles(rotary, coordinates(grid), 16), expected, rtol=1e-12)


def test_coordinates_of_pe_start_at_1_after_a_class_token():
    tokens = np.zeros((1, 13, 32), "float32")
    rotary = RotaryConfig(kind="pe")
    for class_tokens, offset in ((1, 1.0), (0, 0.0)):
        layer = RotaryEmbedding(rotary, 2, (3, 4), num_class_tokens=class_tokens)
        cosines = keras.ops.convert_to_numpy(layer(tokens))[0, class_tokens:]
        expected = np.cos(onevit.rope_table("pe", 3, 4, 16, offset=offset))
        np.testing.assert_allclose(cosines, expected, atol=1e-6)


def test_rope_vit_starts_at_0_and_has_another_base():
    """RoPE-Axial (arXiv 2403.13298, Eqs. 11 and 12): the first half of the angles belongs to columns."""
    layer = RotaryEmbedding(RotaryConfig(kind="rope_vit"), 2, (3, 4), num_class_tokens=1)
    cosines = keras.ops.convert_to_numpy(layer(np.zeros((1, 13, 32), "float32")))[0, 1:]
    angles = [
        [place * 100.0 ** (-4 * i / 16) for place in (x, y) for i in range(4)] for y in range(3) for x in range(4)
    ]
    np.testing.assert_allclose(cosines, np.cos(np.repeat(angles, 2, axis=1)), atol=1e-6)


def test_mixed_frequencies_belong_to_columns_and_rows_of_each_block_and_head():
    """RoPE-Mixed (arXiv 2403.13298): column times the first frequency plus row times the second."""
    layer = MixedRotaryEmbedding(RotaryConfig(kind="mixed"), 2, (3, 4), num_class_tokens=1, num_layers=3)
    table = keras.ops.convert_to_numpy(layer(np.zeros((1, 13, 32), "float32")))
    assert table.shape == layer.compute_output_shape((None, 13, 32)) == (2, 3, 2, 13, 16)
    frequencies = keras.ops.convert_to_numpy(layer.frequencies)
    lengths = 10.0 ** (-4 * np.arange(4) / 16)
    np.testing.assert_allclose(np.linalg.norm(frequencies, axis=0), np.tile(lengths, (3, 2, 2)), rtol=1e-5)
    for block, head, patch in np.ndindex(3, 2, 12):
        row, column = divmod(patch, 4)
        angles = np.repeat(column * frequencies[0, block, head] + row * frequencies[1, block, head], 2)
        np.testing.assert_allclose(table[:, block, head, 1 + patch], [np.cos(angles), np.sin(angles)], atol=1e-5)
    np.testing.assert_array_equal(table[:, :, :, 0], np.broadcast_to([[[[1.0]]], [[[0.0]]]], (2, 3, 2, 16)))


@pytest.mark.parametrize(("class_tokens", "registers"), [(1, 0), (1, 4), (0, 2), (2, 1)])
@pytest.mark.parametrize("head_dim", [16, 64])
@pytest.mark.parametrize("kind", KINDS)
def test_rotation_leaves_class_tokens_and_registers(kind, head_dim, class_tokens, registers):
    grid, heads, prefix, rotary = (3, 5), 2, class_tokens + registers, RotaryConfig(kind=kind)
    x = np.random.default_rng(0).normal(size=(2, heads, prefix + 15, head_dim)).astype("float32")
    layer = RotaryEmbedding(rotary, heads, grid, class_tokens, registers)
    table = layer(np.zeros((1, prefix + 15, heads * head_dim), "float32"))
    assert tuple(table.shape) == layer.compute_output_shape((None, prefix + 15, heads * head_dim))
    rotated = keras.ops.convert_to_numpy(rotate(keras.ops.convert_to_tensor(x), table, rotary))
    angles = onevit.rope_table(kind, *grid, head_dim, offset=float(kind == "pe" and class_tokens > 0))
    np.testing.assert_allclose(rotated, onevit.rotate(x, angles, kind, prefix), atol=1e-5)
    np.testing.assert_array_equal(rotated[:, :, :prefix], x[:, :, :prefix])


@pytest.mark.parametrize("kind", KINDS)
def test_logits_depend_only_on_the_offset(kind):
    """This is the purpose of rotary positions (arXiv 2104.09864, Eq. 11)."""
    rng = np.random.default_rng(1)
    rotary, grid = RotaryConfig(kind=kind), (4, 5)
    query, key = (np.tile(rng.normal(size=16).astype("float32"), (1, 1, 20, 1)) for _ in range(2))
    table = RotaryEmbedding(rotary, 1, grid, num_class_tokens=0)(np.zeros((1, 20, 16), "float32"))
    query, key = (
        keras.ops.convert_to_numpy(rotate(keras.ops.convert_to_tensor(x), table, rotary)) for x in (query, key)
    )
    logits = (query[0, 0] @ key[0, 0].T).reshape(*grid, *grid)
    np.testing.assert_allclose(logits[1:, 2:, 1:, 2:], logits[:-1, :-2, :-1, :-2], atol=1e-4)
    assert np.abs(logits - logits[0, 0, 0, 0]).max() > 0.1


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_table_has_the_dtype_of_the_tokens(policy):
    rotary = RotaryConfig(kind="dinov3")
    layer = RotaryEmbedding(rotary, 2, (2, 3), dtype=policy)
    tokens = np.zeros((1, 7, 32), "float32")
    assert keras.backend.standardize_dtype(layer(tokens).dtype) == layer.compute_dtype
    attention = MultiHeadSelfAttention(2, block={"rotary": rotary.to_dict()}, dtype=policy)
    assert keras.backend.standardize_dtype(attention(tokens, {"rotary": layer(tokens)}).dtype) == layer.compute_dtype


def test_config_round_trips():
    rotary = RotaryConfig(kind="eva02", theta=5.0, reference_grid=(2, 3))
    layer = RotaryEmbedding(rotary, 2, (2, 3), num_class_tokens=0, num_registers=4)
    again = RotaryEmbedding.from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
    assert again.rotary == rotary and again.num_registers == 4


@for_each(
    ("arguments", "message"),
    [
        (
            {"rotary": {"kind": "axial"}},
            "kind must be one of 'dinov3', 'eva02', 'pe', 'rope_vit', 'mixed'; got kind='axial'",
        ),
        ({"rotary": "eva02"}, "rotary must be a RotaryConfig of keras_vit, or None; got rotary='eva02'"),
        ({"num_heads": 0}, "num_heads must be an integer of at least 1; got num_heads=0"),
        ({"grid_size": (0, 2)}, r"grid_size must be one positive integer or a pair .* got grid_size=\(0, 2\)"),
        ({"num_class_tokens": -1}, "num_class_tokens must be an integer of at least 0"),
        ({"num_registers": 0.5}, "num_registers must be an integer of at least 0"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        RotaryEmbedding(**{"rotary": RotaryConfig(kind="eva02"), "num_heads": 2, "grid_size": 2, **arguments})


def test_width_of_heads_must_be_divisible_by_4():
    layer = RotaryEmbedding(RotaryConfig(kind="eva02"), 2, 2)
    with pytest.raises(ValueError, match="a width of each head that is divisible by 4; got 6"):
        layer.build((None, 5, 12))
    with pytest.raises(ValueError, match="num_heads must divide the width of the input; got 2 and 9"):
        layer.build((None, 5, 9))
