"""Similarity of positions against scikit-learn's cosines."""

import keras
import numpy as np
import pytest
from families import FAMILIES, built
from faults import for_each
from sklearn.metrics.pairwise import cosine_similarity

import keras_vit
from keras_vit.analysis import position_similarity
from keras_vit.layers.position_grid import sincos2d_table


def _expected(rows, grid):
    return cosine_similarity(rows).reshape(*grid, *grid)


@pytest.mark.parametrize("name", ["plain", "DeiT distilled", "axial"])
def test_similarity_of_a_learned_table(name):
    model = built(name)
    table = keras.ops.convert_to_numpy(model.get_layer("position_embs").embedding)[0]
    np.testing.assert_allclose(position_similarity(model), _expected(table[-16:], (4, 4)), atol=1e-6)


def test_similarity_of_tables_of_rows_and_columns_in_every_block():
    model = FAMILIES["registers"].build(image_size=(24, 32))
    for name in ("position_embs", "position_embs_01"):
        layer = model.get_layer(name)
        columns, rows = (keras.ops.convert_to_numpy(table)[0] for table in (layer.columns, layer.rows))
        joined = np.array([np.concatenate([columns[j], rows[i]]) for i in range(3) for j in range(4)])
        np.testing.assert_allclose(position_similarity(model, name), _expected(joined, (3, 4)), atol=1e-6)
    np.testing.assert_array_equal(position_similarity(model), position_similarity(model, "position_embs"))


def test_similarity_of_fixed_positions_in_a_model_around():
    config = FAMILIES["plain"].config.replace(position_embedding="sincos2d")
    model = keras_vit.VisionTransformer(config)
    inputs = keras.Input((32, 32, 3))
    around = keras.Model(inputs, model(inputs))
    np.testing.assert_allclose(position_similarity(around), _expected(sincos2d_table((4, 4), 48), (4, 4)), atol=1e-6)


def test_a_row_of_zeros_is_like_nothing():
    table = np.eye(5, 3)[None]
    similarity = position_similarity(table, num_prefix_tokens=1)
    assert similarity.shape == (2, 2, 2, 2) and similarity[1, 1].max() == 0 == similarity[1, 0].max()


@for_each(
    ("model", "arguments", "message"),
    [
        ("Swin", {}, "model must add position embeddings .*; tiny does not"),
        ("BiT", {}, "model must add position embeddings"),
        ("plain", {"layer": "position_embs_01"}, "layer must be one of 'position_embs'; got layer='position_embs_01'"),
        ("plain", {"grid_size": (4, 4)}, "a model must not be given grid_size"),
        (
            np.ones((1, 8, 4)),
            {},
            r"grid_size must be \(rows, columns\) of 7 patches; got grid_size=None",
        ),
        (np.ones((1, 8, 4)), {"grid_size": (2, 4)}, "of 7 patches"),
        (np.ones((8, 4)), {"layer": "x"}, "layer is for a model; got layer='x' with a table"),
        (np.ones((2, 8, 4)), {}, r"a table must have shape .* got \(2, 8, 4\)"),
    ],
)
def test_arguments_are_checked(model, arguments, message):
    model = built(model) if isinstance(model, str) else model
    with pytest.raises(ValueError, match=message.replace("tiny", r"tiny\w*")):
        position_similarity(model, **arguments)
