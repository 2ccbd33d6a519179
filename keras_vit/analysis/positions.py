"""How alike the position embeddings of patches are (Fig. 7 centre and Fig. 10 of arXiv 2010.11929)."""

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
    """Compute the cosine similarity of the position embedding of each patch with that of every patch.

    Args:
        model: a model of this package that adds positions to its tokens (`learned`, `learned_2d` or `sincos2d`), or one
            that contains its layers; or a table ([1,] prefix + rows * columns, dim).
        layer: of a model, the name of its layer of positions, such as `"position_embs_01"`; None is the first.
        grid_size: of a table: (rows, columns); None takes the square grid that its rows form.
        num_prefix_tokens: of a table: rows before those of the patches; None is 1, that of a class token.

    Returns:
        float64 array (rows, columns, rows, columns) in [-1, 1]: [i, j] is the map of the similarity with the patch in
        row i and column j. Of a row of zeros it is 0.

    Raises:
        ValueError: if the model adds no positions, as with `none` and `relative`, where there is no table per patch,
            and in a Swin, whose biases belong to offsets; or the table is of another grid.
    """
    if isinstance(model, keras.Model):
        if grid_size is not None or num_prefix_tokens is not None:
            raise ValueError("a model tells grid_size and num_prefix_tokens itself")
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
            "model must add embeddings of positions to its tokens, position_embedding 'learned', 'learned_2d' or "
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
