"""Position tables: prefix rows are separated from grid rows, and another grid is resized."""

import math

import numpy as np

from keras_vit import checks
from keras_vit.layers.position_grid import RESIZE_METHODS, resize_position_embedding, square_grid

GRID = "position_embs/grid"  # Keras file entry next to our table: its rows and columns
RESIZE_CHOICES = ("auto", *RESIZE_METHODS)
MOST_TIMES = 64  # maximum size of a table, relative to the model's: eight times the side of the grid

_METHODS = {"swin": "bicubic"}  # other families resize as the official ViT code does


def split_table(num_rows, prefixes, new_grid, stored_grid=None):
    """Find how many rows of a table are prefix rows, and which grid the others form.

    Args:
        num_rows: number of rows of the table.
        prefixes: numbers of prefix rows that the file may have, most likely first.
        new_grid: (rows, columns) of the model.
        stored_grid: (rows, columns) that the file states, or None.

    Returns:
        Pair (number of prefix rows, grid of the table).

    Raises:
        ValueError: if the rows form no such grid, or contradict the stated one. Published files have square grids; any
            other grid must be stated or equal the model's.
    """
    if stored_grid is not None:
        for prefix in prefixes:
            if num_rows - prefix == math.prod(stored_grid):
                return prefix, tuple(stored_grid)
        raise ValueError(
            f"the file states a grid of {stored_grid[0]} x {stored_grid[1]} patches; its table has {num_rows} rows"
        )
    squares = [(prefix, square_grid(num_rows - prefix)) for prefix in prefixes if num_rows > prefix]
    squares = [(prefix, grid) for prefix, grid in squares if grid]
    squares.sort(key=lambda pair: pair[1] != tuple(new_grid))  # stable sort: the model's own grid first
    if squares:
        return squares[0]
    for prefix in prefixes:
        if num_rows - prefix == math.prod(new_grid):
            return prefix, tuple(new_grid)
    raise ValueError(
        f"the position table must have a square grid of rows, or the model's {new_grid[0]} x {new_grid[1]}, after "
        f"{' or '.join(str(prefix) for prefix in prefixes)} prefix rows; got {num_rows} rows"
    )


def fit_table(table, num_prefix, old_grid, num_class_rows, new_grid, method):
    """Convert a file's table to the model's table (1, num_class_rows + rows * columns, dim).

    If the file has no class rows, because it adds positions before the class token, they are zeros, which gives the
    same sum. `register_rows` handles the rows of registers.
    """
    grid_rows = table[:, num_prefix:]
    class_rows = table[:, : min(num_prefix, num_class_rows)]
    zeros = np.zeros((1, num_class_rows - class_rows.shape[1], table.shape[2]), table.dtype)
    resized = resize_position_embedding(grid_rows, old_grid, new_grid, 0, method)
    return np.concatenate([class_rows, zeros, resized], axis=1)


def register_rows(table, num_prefix, num_class_rows):
    """Return the rows (1, registers, dim) that a file adds to its registers; our models include them in the tokens."""
    return table[:, num_class_rows:num_prefix]


def check_method(resize):
    """Check the argument `resize` of the loaders."""
    return checks.check_choice("resize", resize, RESIZE_CHOICES)


def method_of(layout, family):
    """Return the resize method for position tables: the `names.Layout`'s, or the family's for Keras files (None)."""
    return _METHODS.get(family, "align_corners") if layout is None else layout.resize


def stored_grid(checkpoint):
    """Return the grid that Keras wrote next to the table, or None."""
    entry = checkpoint.entries.get(GRID)
    if entry is None:
        return None
    if entry.shape != (2,):
        raise ValueError(f"{GRID} of {str(checkpoint.path)!r} must be [rows, columns]; got shape {entry.shape}")
    return checks.check_pair(GRID, entry.read().tolist())


def exceeds(shape, variable_shape):
    """Return why a table is too large to be resized, or None if it has at most `MOST_TIMES` the model's values."""
    if math.prod(shape) <= MOST_TIMES * math.prod(variable_shape):
        return None
    return f"shape {tuple(shape)} has more than {MOST_TIMES} times the values of the model's {tuple(variable_shape)}"
