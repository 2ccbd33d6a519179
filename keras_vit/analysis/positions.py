"""Similarity of the position embeddings of patches (Fig. 7 centre and Fig. 10 of arXiv 2010.11929)."""

import keras
import numpy as np
import numpy.typing as npt

from keras_vit import checks
from keras_vit.layers import AddPositionEmbs
from keras_vit.layers.position_grid import square_grid
from keras_vit.models.encoders import called_layers
from keras_vit.typing import Size


def position_similarity(
    model: keras.Model | npt.ArrayLike,
    layer: str | None = None,
    *,
    grid_size: Size | None = None,
    num_prefix_tokens: int | None = None,
) -> np.ndarray:
    """Compute the cosine similarity of the position embeddings of patches.

    All pairs of patches are compared.

    Args:
        model: a model of this package that adds position embeddings to its tokens (`learned`, `learned_2d` or
            `sincos2d`), or one that contains its layers; or a table ([1,] prefix + rows * columns, dim).
        layer: for a model, the name of its position embedding layer, such as `"position_embs_01"`; None for the first.
        grid_size: for a table: (rows, columns); None for a square grid.
        num_prefix_tokens: for a table: number of rows before the patches; None for 1, a class token.

    Returns:
        float64 array (rows, columns, rows, columns) in [-1, 1]: [i, j] is the map of similarities with the patch in
        row i and column j. The similarity with a row of zeros is 0.

    Raises:
        ValueError: if the model adds no position embeddings, as with `none` and `relative`, which have no table per
            patch, and in a Swin, whose biases belong to offsets; or if the table has another grid.
    """
    if isinstance(model, keras.Model):
        if grid_size is not None or num_prefix_tokens is not None:
            raise ValueError("a model must not be given grid_size or num_prefix_tokens")
        rows, grid = _rows_of(_position_layer(model, layer))
    else:
        if layer is not None:
            raise ValueError(f"layer is for a model; got layer={layer!r} with a table")
        rows, grid = _rows_of_table(model, grid_size, num_prefix_tokens)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    rows = np.divide(rows, norms, out=np.zeros_like(rows), where=norms > 0)
    return np.clip(rows @ rows.T, -1, 1).reshape(*grid, *grid)


def _position_layer(model, name):
    found = (layer for layer in called_layers(model) if isinstance(layer, AddPositionEmbs))
    layers = {layer.name: layer for layer in found if layer.position_embedding != "none"}
    if not layers:
        raise ValueError(
            "model must add position embeddings to its tokens, position_embedding 'learned', 'learned_2d' or "
            f"'sincos2d'; {model.name} does not"
        )
    if name is None:
        return next(iter(layers.values()))
    return layers[checks.check_choice("layer", name, layers)]


def _rows_of(layer):
    rows, columns = layer.built_grid
    table = keras.ops.convert_to_numpy(layer.table())[0].astype("float64")
    return table[-rows * columns :], layer.built_grid


def _rows_of_table(table, grid_size, num_prefix_tokens):
    table = np.asarray(table, "float64")
    table = table[0] if table.ndim == 3 and len(table) == 1 else table
    prefix = 1 if num_prefix_tokens is None else checks.check_integer("num_prefix_tokens", num_prefix_tokens, 0)
    if table.ndim != 2 or len(table) <= prefix:
        raise ValueError(f"a table must have shape (prefix + rows * columns, dim); got {table.shape}, {prefix} prefix")
    rows = table[prefix:]
    grid = square_grid(len(rows)) if grid_size is None else checks.check_pair("grid_size", grid_size)
    if grid is None or grid[0] * grid[1] != len(rows):
        raise ValueError(
            f"grid_size must be (rows, columns) of the {len(rows)} rows after the prefix; got grid_size={grid_size}"
        )
    return rows, grid
