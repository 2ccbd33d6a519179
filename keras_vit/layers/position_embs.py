"""AddPositionEmbs: adds position embeddings and resizes them when it loads those of another patch grid."""

import math

import keras
import numpy as np
from keras import ops

from keras_vit import checks
from keras_vit.config import POSITION_EMBEDDINGS
from keras_vit.layers.position_grid import resize_position_embedding, square_grid


@keras.saving.register_keras_serializable(package="keras_vit")
class AddPositionEmbs(keras.layers.Layer):
    """Adds E_pos of Eq. 1 in arXiv 2010.11929 to class, register and patch tokens.

    Class tokens have rows of their own in a learned table. Registers have no position: theirs are rows of zeros. When
    the layer loads a table of another grid (`.keras`, `.weights.h5` or a checkpoint), it resizes it as the official
    code does, for square and other grids.

    Args:
        position_embedding: `learned`, a table that starts at N(0, 0.02); `sincos2d`, fixed sines and cosines in the
            form of MoCo-v3 (arXiv 2104.02057) with zeros for class tokens; `none`.
        grid_size: (rows, columns) of the patch grid; None takes the square grid that the tokens form.
        num_class_tokens: class tokens at the head of the sequence.
        num_registers: register tokens after them.

    Shapes:
        (batch, num_class_tokens + num_registers + rows * columns, dim) -> the same

    Raises:
        ValueError: when built on tokens that are not such a grid, or with `sincos2d` on a width not divisible by 4.
    """

    def __init__(
        self, position_embedding="learned", grid_size=None, num_class_tokens=1, num_registers=0, **kwargs
    ):
        super().__init__(**kwargs)
        checks.check_choice("position_embedding", position_embedding, POSITION_EMBEDDINGS)
        self.position_embedding = position_embedding
        self.grid_size = None if grid_size is None else checks.check_pair("grid_size", grid_size)
        self.num_class_tokens = checks.check_integer("num_class_tokens", num_class_tokens, minimum=0)
        self.num_registers = checks.check_integer("num_registers", num_registers, minimum=0)

    def build(self, input_shape):
        rows = self.num_class_tokens + math.prod(self._grid(input_shape))
        self.built_grid = self._grid(input_shape)
        if self.position_embedding == "learned":
            self.embedding = self.add_weight(
                name="embedding",
                shape=(1, rows, input_shape[-1]),
                initializer=keras.initializers.RandomNormal(stddev=0.02),
            )
        elif self.position_embedding == "sincos2d":
            self.sincos2d = sincos2d_table(self.built_grid, input_shape[-1])
        self.built = True

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

    def call(self, tokens):
        if self.position_embedding == "none":
            return tokens
        return tokens + ops.cast(self._positions(), tokens.dtype)

    def _positions(self):
        """The rows to add, (1, tokens, dim)."""
        if self.position_embedding == "sincos2d":
            num_zeros = self.num_class_tokens + self.num_registers
            return ops.pad(self.sincos2d[None], ((0, 0), (num_zeros, 0), (0, 0)))
        table = ops.convert_to_tensor(self.embedding)
        if not self.num_registers:
            return table
        class_rows, grid_rows = table[:, : self.num_class_tokens], table[:, self.num_class_tokens :]
        return ops.concatenate([class_rows, ops.pad(grid_rows, ((0, 0), (self.num_registers, 0), (0, 0)))], axis=1)

    def compute_output_shape(self, input_shape):
        return input_shape

    def save_own_variables(self, store):
        super().save_own_variables(store)
        if self.position_embedding == "learned":
            # Tables of equal shape may belong to different grids: 4 x 4 and 2 x 8.
            store["grid"] = np.array(self.built_grid)

    def load_own_variables(self, store):
        if self.position_embedding != "learned" or "grid" not in store.keys():
            super().load_own_variables(store)
            return
        old_grid = tuple(int(side) for side in np.asarray(store["grid"]))
        self.load_table(np.asarray(store["0"]), old_grid)

    def load_table(self, table, grid_size, method="align_corners"):
        """Sets the learned table from one of another grid.

        Args:
            table: array (1, num_class_tokens + rows * columns, dim).
            grid_size: its (rows, columns).
            method: how to resize it, see `resize_position_embedding`.
        """
        table = resize_position_embedding(table, grid_size, self.built_grid, self.num_class_tokens, method)
        self.embedding.assign(table)

    def get_config(self):
        return {
            **super().get_config(),
            "position_embedding": self.position_embedding,
            "grid_size": self.grid_size,
            "num_class_tokens": self.num_class_tokens,
            "num_registers": self.num_registers,
        }


def sincos2d_table(grid_size, dim):
    """Returns the fixed 2-D table (rows * columns, dim): [sin x, cos x, sin y, cos y] of x = column, y = row.

    Frequencies are 10000^(-i / (dim / 4 - 1)) for i = 0 ... dim / 4 - 1, as in MoCo-v3 and big_vision.
    """
    if dim % 4 or dim < 8:
        raise ValueError(f"position_embedding='sincos2d' needs a width of at least 8 divisible by 4; got {dim}")
    rows, columns = np.mgrid[: grid_size[0], : grid_size[1]]
    frequencies = 10000.0 ** -(np.arange(dim // 4) / (dim // 4 - 1))
    x, y = (axis.reshape(-1, 1) * frequencies for axis in (columns, rows))
    return np.concatenate([np.sin(x), np.cos(x), np.sin(y), np.cos(y)], axis=1).astype("float32")
