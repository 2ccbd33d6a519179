"""AxialTransformerBlock: attention along rows, then columns."""

from typing import Any

import keras
from keras import ops

from keras_vit.layers.base import Layer
from keras_vit.layers.transformer_block import TransformerBlock
from keras_vit.typing import Size, Tensor


@keras.saving.register_keras_serializable(package="keras_vit")
class AxialTransformerBlock(Layer):
    """Apply attention along rows, then columns (arXiv 2010.11929, appendix D.6).

    The sub-layers `row_block` and `column_block` are `TransformerBlock`s with separate weights. The first attends
    within each row of the grid, the second within each column. On a square grid of N tokens, both together have
    2 N^1.5 attention weights per head instead of N^2, and connect every token with every other one.

    Args:
        grid_size: (rows, columns) of the patch grid, or one integer for both.
        num_heads, mlp_dim: as in `TransformerBlock`, for both blocks.
        name, dtype, trainable: as in `keras.layers.Layer`.
        **block_arguments: other arguments of `TransformerBlock`, for both blocks. With `drop_path_rate`, each row and
            each column is dropped separately.

    Shapes:
        (batch, rows * columns, dim), tokens in raster order (row by row), without class token -> the same

    Raises:
        ValueError: if a value is out of range or a choice is unknown; at build or call, if the number of tokens is not
            that of the grid.
    """

    def __init__(
        self,
        grid_size: Size,
        num_heads: int,
        mlp_dim: int,
        *,
        name: str | None = None,
        dtype: Any = None,
        trainable: bool = True,
        **block_arguments: Any,
    ) -> None:
        super().__init__(name=name, dtype=dtype, trainable=trainable)
        self.configure(grid_size=grid_size)
        self.row_block = self.sublayer(TransformerBlock, num_heads, mlp_dim, name="row_block", **block_arguments)
        self.column_block = self.sublayer(TransformerBlock, num_heads, mlp_dim, name="column_block", **block_arguments)

    def get_config(self):
        return {**self.row_block.get_config(), **super().get_config()}

    def build(self, input_shape):
        rows, columns = self._grid(input_shape)
        self.row_block.build((None, columns, input_shape[-1]))
        self.column_block.build((None, rows, input_shape[-1]))

    def call(self, tokens: Tensor, training: bool | None = None) -> Tensor:
        rows, columns = self.grid_size
        tokens = self.row_block(self._rows(tokens), training=training)
        tokens = self.column_block(_turn(tokens, rows, columns), training=training)
        return ops.reshape(_turn(tokens, columns, rows), (-1, rows * columns, tokens.shape[-1]))

    def attention_scores(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the attention weights of both blocks.

        Args:
            tokens: input of the block, (batch, rows * columns, dim).

        Returns:
            Pair of the row attention (batch, rows, heads, columns, columns) and the column attention (batch, columns,
            heads, rows, rows). The query axis comes before the key axis.
        """
        if not self.built:
            self.build(tokens.shape)
        rows, columns = self.grid_size
        tokens = self._rows(tokens)
        row_scores = self.row_block.attention_scores(tokens)
        column_scores = self.column_block.attention_scores(_turn(self.row_block(tokens), rows, columns))
        row_scores = ops.reshape(row_scores, (-1, rows, *row_scores.shape[1:]))
        return row_scores, ops.reshape(column_scores, (-1, columns, *column_scores.shape[1:]))

    def _rows(self, tokens):
        """(batch, rows * columns, dim) -> (batch * rows, columns, dim)"""
        _, columns = self._grid(tokens.shape)
        return ops.reshape(tokens, (-1, columns, tokens.shape[-1]))

    def _grid(self, shape):
        rows, columns = self.grid_size
        if len(shape) != 3 or shape[1] != rows * columns:
            raise ValueError(
                f"AxialTransformerBlock needs tokens of shape (batch, {rows * columns}, dim) for its grid_size "
                f"{self.grid_size}, without a class token; got {tuple(shape)}"
            )
        return rows, columns


def _turn(tokens, rows, columns):
    """(batch * rows, columns, dim) -> (batch * columns, rows, dim)"""
    grid = ops.reshape(tokens, (-1, rows, columns, tokens.shape[-1]))
    return ops.reshape(ops.transpose(grid, (0, 2, 1, 3)), (-1, rows, tokens.shape[-1]))
