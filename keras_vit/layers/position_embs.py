"""AddPositionEmbs; a layer that loads position tables of another size resizes them."""

import math
from typing import Any, Self

import keras
import numpy as np
from keras import ops

from keras_vit import checks
from keras_vit.config.base import one_of, optional
from keras_vit.layers.base import Layer
from keras_vit.layers.position_grid import (
    array_module,
    patch_coordinates,
    resize_position_embedding,
    resize_weights,
    square_grid,
)
from keras_vit.typing import Size, Tensor

# position embeddings with one table per axis -> number of tables that share the width
_PER_AXIS = {"learned_2d": 2, "factorized": 1}


class ResizedTables(Layer):
    """Resize tables of another size when a layer loads them.

    By default a table is one-dimensional: it has one row per position along one axis.

    Attributes:
        usual_method: method of resizing, unless a layer has an argument `resize`, see `resize_position_embedding`.
        size_name: name of the attribute with the (rows, columns) of the tables; None if the shapes of the tables show
            their size. Tables of 4 x 4 and 2 x 8 positions have equal shapes, so they need the attribute.
        name_in_files: name of the size in files.
    """

    usual_method = "align_corners"
    size_name: str | None = None
    name_in_files: str | None = None

    @property
    def resize_method(self) -> str:
        """Return the method for tables from Keras files and for `keras_vit.resize`."""
        return getattr(self, "resize", None) or self.usual_method

    @property
    def tables(self) -> list[keras.Variable]:
        """Return the variables to resize."""
        return self.weights

    def resized(self, variable: keras.Variable, table: np.ndarray, method: str, old_size: Any = None) -> np.ndarray:
        """Return a table of this layer, resized from another size.

        Args:
            variable: the table of this layer.
            table: array, this table in a layer of another size.
            method: resize method, see `resize_position_embedding`.
            old_size: (rows, columns) of `table`, if the shape does not show it.

        Raises:
            ValueError: if the shape of `table` does not match its size.
        """
        old, new = table.shape[-2], variable.shape[-2]
        return resize_position_embedding(table, (old, 1), (new, 1), 0, method)

    def resize_from(self, other: Self, method: str | None = None) -> None:
        """Copy the tables from the same layer of a model for another image size.

        Args:
            other: the layer, built for that size.
            method: resize method, see `resize_position_embedding`; None means `resize_method`.
        """
        old_size = self.size_name and getattr(other, self.size_name)
        method = method or self.resize_method
        for variable, table in zip(self.tables, other.tables, strict=True):
            variable.assign(self.resized(variable, ops.convert_to_numpy(table), method, old_size))

    def save_own_variables(self, store):
        super().save_own_variables(store)
        if self.size_name and self.tables:
            store[self.name_in_files] = np.array(getattr(self, self.size_name))

    def load_own_variables(self, store):
        old_size = None
        if self.size_name:
            if not self.tables or self.name_in_files not in store.keys():
                super().load_own_variables(store)
                return
            old_size = tuple(int(side) for side in np.asarray(store[self.name_in_files]))
        for index, variable in enumerate(self.tables):
            variable.assign(self.resized(variable, np.asarray(store[str(index)]), self.resize_method, old_size))


@keras.saving.register_keras_serializable(package="keras_vit")
class AddPositionEmbs(ResizedTables):
    """Add position embeddings to the tokens: E_pos of Eq. 1 in arXiv 2010.11929.

    In a learned table, class tokens have their own rows. Registers have no position: their rows are zeros. When the
    layer loads a table of another grid (`.keras`, `.weights.h5` or a checkpoint), it resizes the table as the official
    code does, for square and other grids.

    Args:
        position_embedding: `learned`, a table that starts at N(0, 0.02); `learned_2d`, one such table for columns and
            one for rows, each of half the width, concatenated as [column, row] (appendix D.4); `factorized`, two such
            tables of the whole width, added (NaViT, arXiv 2307.06304); `sincos2d`, fixed sines and cosines in the form
            of MoCo-v3 (arXiv 2104.02057) with zeros for class tokens; `sincos2d_mae`, in the form of MAE (arXiv
            2111.06377); `none`.
        grid_size: (rows, columns) of the patch grid; None means a square grid.
        num_class_tokens: number of class tokens at the start of the sequence.
        num_registers: number of register tokens after them.
        resize: resize method for tables of other grids, see `resize_position_embedding`; None means `align_corners`.
        square_positions: whether `coordinates` are places in a square grid, whose side is the longer side of their
            grid.
        position_init: initial values of a `learned` table: `normal`, N(0, 0.02), or `sincos2d_mae`, those of that form.

    Shapes:
        (batch, num_class_tokens + num_registers + rows * columns, dim) -> the same. With the optional input
        `coordinates`, integers (batch or 1, patches, 4) from `PatchCoordinates`, the patches may form any grid: the
        table has `grid_size` rows and columns and is resized in every call.

    Raises:
        ValueError: if a value is out of range or a choice is unknown; at build, if the tokens do not form such a grid,
            `coordinates` are given without `grid_size`, or the width is not divisible by 4 (`sincos2d`) or 2
            (`learned_2d`).
    """

    own_checks = {
        "position_embedding": one_of(("learned", *_PER_AXIS, "sincos2d", "sincos2d_mae", "none")),
        "grid_size": optional(checks.check_pair),
    }
    size_name, name_in_files = "built_grid", "grid"

    def __init__(
        self,
        position_embedding: str = "learned",
        grid_size: Size | None = None,
        num_class_tokens: int = 1,
        num_registers: int = 0,
        resize: str | None = None,
        square_positions: bool = False,
        position_init: str = "normal",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.configure(position_embedding=position_embedding, grid_size=grid_size, resize=resize)
        self.configure(square_positions=square_positions, position_init=position_init)
        self.configure(num_class_tokens=num_class_tokens, num_registers=num_registers)

    def build(self, tokens_shape, coordinates_shape=None):
        is_open = coordinates_shape is not None and self.grid_size is not None
        self.built_grid = rows, columns = self.grid_size if is_open else self._grid(tokens_shape)
        dim, num_class = tokens_shape[-1], self.num_class_tokens
        if self.position_embedding == "learned":
            shape = (1, num_class + rows * columns, dim)
            if self.position_init == "normal":
                self.embedding = self.normal_weight("embedding", shape)
            else:
                table = sincos2d_table(self.built_grid, dim, self.position_init)
                table = np.pad(table, ((num_class, 0), (0, 0)))[None]  # class tokens start without positions
                values = lambda _, dtype: ops.convert_to_tensor(table, dtype)  # noqa: E731
                self.embedding = self.add_weight(name="embedding", shape=shape, initializer=values)
        elif self.position_embedding in _PER_AXIS:
            share = _PER_AXIS[self.position_embedding]
            if dim % share:
                raise ValueError(f"position_embedding='learned_2d' needs an even width; got {dim}")
            self.columns = self.normal_weight("columns", (1, columns, dim // share))
            self.rows = self.normal_weight("rows", (1, rows, dim // share))
            if num_class:
                self.class_rows = self.normal_weight("class_rows", (1, num_class, dim))
        elif self.position_embedding in SINCOS_FORMS:
            self.sincos2d, self.built_dim = sincos2d_table(self.built_grid, dim, self.position_embedding), dim

    def _grid(self, input_shape):
        tokens, prefix = input_shape[1], self.num_class_tokens + self.num_registers
        if tokens is None:
            raise ValueError(f"AddPositionEmbs needs a known number of tokens; got input shape {input_shape}")
        grid = self.grid_size or square_grid(tokens - prefix)
        if grid is None or math.prod(grid) + prefix != tokens:
            wanted = f"{grid[0]} x {grid[1]}" if grid else "a square number of"
            raise ValueError(
                f"AddPositionEmbs needs {self.num_class_tokens} class tokens, {self.num_registers} registers and "
                f"{wanted} patch tokens (pass grid_size for a grid that is not square); got {tokens} tokens"
            )
        return grid

    def call(self, tokens: Tensor, coordinates: Tensor = None) -> Tensor:
        if self.position_embedding == "none":
            return tokens
        return tokens + ops.cast(self.table(coordinates), tokens.dtype)

    def table(self, coordinates: Tensor = None) -> Tensor:
        """Return the table to add, (1, tokens, dim): class tokens, registers, patches.

        Args:
            coordinates: as in the call; the table is then (batch or 1, tokens, dim).
        """
        if self.position_embedding == "learned" and not self.num_registers and coordinates is None:
            return ops.convert_to_tensor(self.embedding)
        class_rows, patches = self._class_rows(), self._patches(coordinates)
        num_zeros = self.num_class_tokens + self.num_registers
        if class_rows is not None:
            class_rows, num_zeros = ops.cast(class_rows, patches.dtype), num_zeros - class_rows.shape[1]
            class_rows = ops.zeros_like(patches[:, :1]) + class_rows  # as many as there are tables
        patches = ops.pad(patches, ((0, 0), (num_zeros, 0), (0, 0))) if num_zeros else patches
        return patches if class_rows is None else ops.concatenate([class_rows, patches], axis=1)

    def _class_rows(self):
        if not self.num_class_tokens or self.position_embedding in SINCOS_FORMS:
            return None
        return self.class_rows if self.position_embedding in _PER_AXIS else self.embedding[:, : self.num_class_tokens]

    def _patches(self, coordinates):
        """Return the positions of the patches, (1, patches, dim), or at these coordinates."""
        rows, columns = self.built_grid
        if coordinates is None:
            if self.position_embedding in SINCOS_FORMS:
                return ops.convert_to_tensor(self.sincos2d[None])
            if self.position_embedding == "learned":
                return ops.convert_to_tensor(self.embedding)[:, self.num_class_tokens :]
            x = ops.tile(ops.convert_to_tensor(self.columns), (1, rows, 1))
            y = ops.repeat(ops.convert_to_tensor(self.rows), columns, axis=1)
            return self._joined(x, y)
        y, x, new_rows, new_columns = ops.unstack(ops.cast(coordinates, "float32"), 4, axis=-1)
        if self.position_embedding in SINCOS_FORMS:
            return _sincos(x, y, self.built_dim, self.position_embedding)
        is_same = ops.logical_and(ops.equal(new_rows, rows), ops.equal(new_columns, columns))
        if self.square_positions:
            new_rows = new_columns = ops.maximum(new_rows, new_columns)
        y = self._weights(y, rows, new_rows, is_same)  # (batch or 1, patches, rows)
        x = self._weights(x, columns, new_columns, is_same)
        if self.position_embedding in _PER_AXIS:
            tables = (ops.cast(table[0], "float32") for table in (self.columns, self.rows))
            return self._joined(*(ops.matmul(w, table) for w, table in zip((x, y), tables, strict=True)))
        weights = y[..., :, None] * x[..., None, :]
        weights = ops.reshape(weights, (*ops.shape(weights)[:2], rows * columns))
        return ops.matmul(weights, ops.cast(self.embedding[0, self.num_class_tokens :], "float32"))

    def _joined(self, x, y):
        return x + y if self.position_embedding == "factorized" else ops.concatenate([x, y], axis=-1)

    def _weights(self, places, old, new, is_same):
        itself = ops.one_hot(ops.cast(places, "int32"), old, dtype="float32")
        return ops.where(is_same[..., None], itself, resize_weights(self.resize_method, places, old, new))

    def resized(self, variable: keras.Variable, table: np.ndarray, method: str, old_size: Any = None) -> np.ndarray:
        """Return a weight of this layer, resized from another grid.

        Args:
            variable: the weight of this layer.
            table: array, the same weight of the layer on the other grid.
            method: resize method, see `resize_position_embedding`.
            old_size: (rows, columns) of the other grid; may be None for weights other than `embedding`.

        Raises:
            ValueError: if the shape of `table` does not match that grid.
        """
        if variable.name == "embedding":
            return resize_position_embedding(table, old_size, self.built_grid, self.num_class_tokens, method)
        return table if variable.name == "class_rows" else super().resized(variable, table, method)


# form of a fixed table -> what is taken from the number of frequencies in their exponents
SINCOS_FORMS = {"sincos2d": 1, "sincos2d_mae": 0}


def sincos2d_table(grid_size, dim, form="sincos2d"):
    """Return the fixed 2-D table (rows * columns, dim): [sin x, cos x, sin y, cos y] of x = column, y = row.

    Frequencies are 10000^(-i / (dim / 4 - 1)) for i = 0 ... dim / 4 - 1, as in MoCo-v3 and big_vision, or
    10000^(-i / (dim / 4)) in the form of MAE.
    """
    if dim % 4 or dim < 8:
        raise ValueError(f"position_embedding={form!r} needs a width of at least 8 divisible by 4; got {dim}")
    y, x, *_ = patch_coordinates(*grid_size).T
    return _sincos(x, y, dim, form).astype("float32")


def _sincos(x, y, dim, form):
    xp = array_module(x)
    frequencies = 10000.0 ** -(np.arange(dim // 4) / (dim // 4 - SINCOS_FORMS[form]))
    frequencies = frequencies if xp is np else frequencies.astype("float32")
    x, y = x[..., None] * frequencies, y[..., None] * frequencies
    return xp.concatenate([xp.sin(x), xp.cos(x), xp.sin(y), xp.cos(y)], axis=-1)
