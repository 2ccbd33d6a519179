"""AddPositionEmbs: adds position embeddings and resizes them when it loads those of another patch grid."""

import math
from typing import Any, Self

import keras
import numpy as np
from keras import ops

from keras_vit import checks
from keras_vit.layers.position_grid import resize_position_embedding, square_grid
from keras_vit.typing import Size, Tensor

POSITION_EMBEDDINGS = ("learned", "learned_2d", "sincos2d", "none")


@keras.saving.register_keras_serializable(package="keras_vit")
class AddPositionEmbs(keras.layers.Layer):
    """Add position embeddings to the tokens: E_pos of Eq. 1 in arXiv 2010.11929.

    In a learned table, class tokens have their own rows. Registers have no position: their rows are zeros. When the
    layer loads a table of another grid (`.keras`, `.weights.h5` or a checkpoint), it resizes the table as the official
    code does, for square and other grids.

    Args:
        position_embedding: `learned`, a table that starts at N(0, 0.02); `learned_2d`, one such table for columns and
            one for rows, each of half the width, concatenated as [column, row] (appendix D.4); `sincos2d`, fixed sines
            and cosines in the form of MoCo-v3 (arXiv 2104.02057) with zeros for class tokens; `none`.
        grid_size: (rows, columns) of the patch grid; None means a square grid.
        num_class_tokens: number of class tokens at the start of the sequence.
        num_registers: number of register tokens after them.

    Shapes:
        (batch, num_class_tokens + num_registers + rows * columns, dim) -> the same

    Raises:
        ValueError: if a value is out of range or a choice is unknown; at build, if the tokens do not form such a grid,
            or the width is not divisible by 4 (`sincos2d`) or 2 (`learned_2d`).
    """

    def __init__(
        self,
        position_embedding: str = "learned",
        grid_size: Size | None = None,
        num_class_tokens: int = 1,
        num_registers: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        checks.check_choice("position_embedding", position_embedding, POSITION_EMBEDDINGS)
        self.position_embedding = position_embedding
        self.grid_size = None if grid_size is None else checks.check_pair("grid_size", grid_size)
        self.num_class_tokens = checks.check_integer("num_class_tokens", num_class_tokens, minimum=0)
        self.num_registers = checks.check_integer("num_registers", num_registers, minimum=0)

    def build(self, input_shape):
        self.built_grid = rows, columns = self._grid(input_shape)
        dim, num_class = input_shape[-1], self.num_class_tokens
        if self.position_embedding == "learned":
            self.embedding = self._table("embedding", (1, num_class + rows * columns, dim))
        elif self.position_embedding == "learned_2d":
            if dim % 2:
                raise ValueError(f"position_embedding='learned_2d' needs an even width; got {dim}")
            self.columns = self._table("columns", (1, columns, dim // 2))
            self.rows = self._table("rows", (1, rows, dim // 2))
            if num_class:
                self.class_rows = self._table("class_rows", (1, num_class, dim))
        elif self.position_embedding == "sincos2d":
            self.sincos2d = sincos2d_table(self.built_grid, dim)
        self.built = True

    def _table(self, name, shape):
        return self.add_weight(name=name, shape=shape, initializer=keras.initializers.RandomNormal(stddev=0.02))

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

    def call(self, tokens: Tensor) -> Tensor:
        if self.position_embedding == "none":
            return tokens
        return tokens + ops.cast(self.table(), tokens.dtype)

    def table(self) -> Tensor:
        """Return the table to add, (1, tokens, dim): class tokens, registers, patches."""
        if self.position_embedding == "learned" and not self.num_registers:
            return ops.convert_to_tensor(self.embedding)
        class_rows, patches = self._class_rows_and_patches()
        num_zeros = self.num_class_tokens + self.num_registers - class_rows.shape[1]
        return ops.concatenate([class_rows, ops.pad(patches, ((0, 0), (num_zeros, 0), (0, 0)))], axis=1)

    def _class_rows_and_patches(self):
        if self.position_embedding == "learned":
            table = ops.convert_to_tensor(self.embedding)
            return table[:, : self.num_class_tokens], table[:, self.num_class_tokens :]
        if self.position_embedding == "sincos2d":
            patches = ops.convert_to_tensor(self.sincos2d[None])
            return patches[:, :0], patches
        rows, columns = self.built_grid
        x = ops.tile(ops.convert_to_tensor(self.columns), (1, rows, 1))
        y = ops.repeat(ops.convert_to_tensor(self.rows), columns, axis=1)
        patches = ops.concatenate([x, y], axis=2)
        return ops.convert_to_tensor(self.class_rows) if self.num_class_tokens else patches[:, :0], patches

    def compute_output_shape(self, input_shape):
        return input_shape

    def save_own_variables(self, store):
        super().save_own_variables(store)
        if self.weights:
            # Tables of equal shape may belong to different grids: 4 x 4 and 2 x 8.
            store["grid"] = np.array(self.built_grid)

    def load_own_variables(self, store):
        if not self.weights or "grid" not in store.keys():
            super().load_own_variables(store)
            return
        old_grid = tuple(int(side) for side in np.asarray(store["grid"]))
        for index, variable in enumerate(self.weights):
            variable.assign(self.resized(variable, np.asarray(store[str(index)]), "align_corners", old_grid))

    def resize_from(self, other: Self, method: str = "align_corners") -> None:
        """Copy the tables from the same layer of a model for another image size.

        Args:
            other: the layer, built on its own grid.
            method: resize method, see `resize_position_embedding`.
        """
        for variable, table in zip(self.weights, other.weights, strict=True):
            variable.assign(self.resized(variable, ops.convert_to_numpy(table), method, other.built_grid))

    def resized(
        self,
        variable: keras.Variable,
        table: np.ndarray,
        method: str = "align_corners",
        old_grid: tuple[int, int] | None = None,
    ) -> np.ndarray:
        """Return a weight of this layer, resized from another grid.

        Args:
            variable: the weight of this layer.
            table: array, the same weight of the layer on the other grid.
            method: resize method, see `resize_position_embedding`.
            old_grid: (rows, columns) of the other grid; may be None for a table of rows or columns, whose length is its
                side.

        Raises:
            ValueError: if the shape of `table` does not match that grid.
        """
        rows, columns = self.built_grid
        if variable.name == "embedding":
            grid: Any = old_grid  # a table of a whole grid always has one
            return resize_position_embedding(table, grid, self.built_grid, self.num_class_tokens, method)
        if variable.name == "columns":
            return resize_position_embedding(table, (1, table.shape[1]), (1, columns), 0, method)
        if variable.name == "rows":
            return resize_position_embedding(table, (table.shape[1], 1), (rows, 1), 0, method)
        return table

    def get_config(self):
        return {
            **super().get_config(),
            "position_embedding": self.position_embedding,
            "grid_size": self.grid_size,
            "num_class_tokens": self.num_class_tokens,
            "num_registers": self.num_registers,
        }


def sincos2d_table(grid_size, dim):
    """Return the fixed 2-D table (rows * columns, dim): [sin x, cos x, sin y, cos y] of x = column, y = row.

    Frequencies are 10000^(-i / (dim / 4 - 1)) for i = 0 ... dim / 4 - 1, as in MoCo-v3 and big_vision.
    """
    if dim % 4 or dim < 8:
        raise ValueError(f"position_embedding='sincos2d' needs a width of at least 8 divisible by 4; got {dim}")
    rows, columns = np.mgrid[: grid_size[0], : grid_size[1]]
    frequencies = 10000.0 ** -(np.arange(dim // 4) / (dim // 4 - 1))
    x, y = (axis.reshape(-1, 1) * frequencies for axis in (columns, rows))
    return np.concatenate([np.sin(x), np.cos(x), np.sin(y), np.cos(y)], axis=1).astype("float32")
