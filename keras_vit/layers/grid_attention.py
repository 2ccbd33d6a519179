"""GridSelfAttention: attention on a grid of tokens, inside windows or global, with decomposed relative positions."""

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.config import WindowConfig
from keras_vit.config.base import one_config_of
from keras_vit.layers.attend import check_positions
from keras_vit.layers.position_grid import ResizedTables, array_module, patch_coordinates, resize_weights
from keras_vit.layers.self_attention import MultiHeadSelfAttention
from keras_vit.typing import Size, Tensor


@keras.saving.register_keras_serializable(package="keras_vit")
class GridSelfAttention(MultiHeadSelfAttention):
    """Apply multi-head self-attention inside the windows of a grid.

    A global block attends to the whole grid instead (ViTDet, arXiv 2203.16527). The grid is padded with zeros at the
    bottom and the right to a multiple of the window. Tokens attend to the padding, which is then cut off. With relative
    positions, the sub-layer `relative_positions` has a learned key per offset of rows and one per offset of columns,
    within the window or the grid; the products of the query, which is not scaled, with both are added to the attention
    logits (arXiv 2112.01526, section 4.1; SAM, arXiv 2304.02643).

    Args:
        grid_size: (rows, columns) of the tokens, or one integer for both. If `positions` has a `grid`, it is the
            size of the tables of a global block.
        window: `WindowConfig`; its `size`, None for the whole grid, and `relative_positions` apply here.
        *args, **kwargs: the arguments of `MultiHeadSelfAttention`.

    Shapes:
        (batch, rows * columns, dim) -> the same. With `grid` (batch, rows, columns, any) in `positions`, of which only
        the size is read, the tokens may form any grid, and the tables of global blocks are resized in every call.
        With `return_attention_scores=True` the output is a pair with the attention weights after softmax: (batch,
        heads, tokens, tokens), or (batch, windows, heads, tokens, tokens) of the windows in raster order, with padding.

    Raises:
        ValueError: if a value is out of range; at build, if `num_heads` does not divide the width; in a call, if
            `positions` has other names.
    """

    own_checks = {"window": one_config_of(WindowConfig)}

    def __init__(self, grid_size: Size, window: WindowConfig, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.configure(grid_size=grid_size, window=window)

    def build(self, tokens_shape):
        side = self.window.size
        length = tokens_shape[1] if side is None else side**2
        super().build((None, length, tokens_shape[-1]))
        if self.window.relative_positions:
            size = self.grid_size if side is None else (side, side)
            shape = (None, self.num_heads, length, tokens_shape[-1] // self.num_heads)
            self.relative_positions = self.sublayer(
                DecomposedPositions, size, side is not None, name="relative_positions", shape=shape
            )

    def call(  # type: ignore[override] # windows return no keys
        self,
        tokens: Tensor,
        positions: Mapping[str, Any] | None = None,
        training: bool | None = None,
        *,
        return_attention_scores: bool = False,
        norm: keras.layers.Layer | None = None,
    ) -> Tensor:
        grid, side = check_positions(positions, ("grid",)).get("grid"), self.window.size
        size = self.grid_size if grid is None else ops.shape(grid)[1:3]
        options: dict[str, Any] = {"training": training, "return_attention_scores": return_attention_scores}
        if side is None:
            return super().call(tokens, self._offsets(size), norm=norm, **options)
        length, dim = ops.shape(tokens)[1:]
        maps = ops.reshape(tokens if norm is None else norm(tokens), (-1, *size, dim))  # the padding is not normalised
        outputs = super().call(to_windows(_padded(maps, size, side), side), self._offsets((side, side)), **options)
        output, *scores = outputs if return_attention_scores else (outputs,)
        counts = _counts(size, side)
        maps = from_windows(output, [side * count for count in counts], side)[:, : size[0], : size[1]]
        output = ops.reshape(maps, (-1, length, dim))
        scores = [ops.reshape(x, (-1, math.prod(counts), *x.shape[1:])) for x in scores]
        return (output, *scores) if scores else output

    def _offsets(self, size):
        """Return the positions inside a grid or a window of this size."""
        return {"extend": partial(self.relative_positions.extend, size=size)} if self.window.relative_positions else {}

    def _with_positions(self, query, key, positions):
        return positions["extend"](query, key) if "extend" in positions else (query, key)


def _counts(size, side):
    """Return the number of windows down and across a grid."""
    return tuple(-(-count // side) for count in size)


def _padded(maps, size, side):
    bottom, right = (side * windows - count for windows, count in zip(_counts(size, side), size, strict=True))
    return ops.pad(maps, ((0, 0), (0, bottom), (0, right), (0, 0)))


def to_windows(maps, side, *count):
    """(batch, rows, columns, dim) -> (batch * windows, side * side, dim), windows in raster order

    With a `count` of windows, (batch, count, side * side, dim).
    """
    _, rows, columns, dim = ops.shape(maps)
    cut = ops.reshape(maps, (-1, rows // side, side, columns // side, side, dim))
    return ops.reshape(ops.transpose(cut, (0, 1, 3, 2, 4, 5)), (-1, *count, side**2, dim))


def from_windows(windows, size, side):
    """(..., side * side, dim) -> (batch, rows, columns, dim), maps of this size"""
    (rows, columns), dim = size, windows.shape[-1]
    cut = ops.reshape(windows, (-1, rows // side, columns // side, side, side, dim))
    return ops.reshape(ops.transpose(cut, (0, 1, 3, 2, 4, 5)), (-1, rows, columns, dim))


@keras.saving.register_keras_serializable(package="keras_vit")
class DecomposedPositions(ResizedTables):
    """Hold the tables of decomposed relative positions: a key per offset of rows, and one per offset of columns.

    Tables of another size are resized linearly when they are loaded, whatever the method for other tables, as the
    authors and the other libraries do.

    Args:
        grid_size: (rows, columns) of the tables, or one integer for both.
        is_window: whether they are those of a window, whose size does not depend on that of the images.

    Shapes:
        `extend` describes them

    Raises:
        ValueError: if a value is out of range; when tables of another size are loaded, if they are those of a window.
    """

    usual_method = "bilinear"

    def __init__(self, grid_size, is_window=False, **kwargs):
        super().__init__(**kwargs)
        self.configure(grid_size=grid_size, is_window=is_window)

    def build(self, input_shape):
        rows, columns = (2 * side - 1 for side in self.grid_size)
        self.rows = self.add_weight((rows, input_shape[-1]), "zeros", name="rows", autocast=False)
        self.columns = self.add_weight((columns, input_shape[-1]), "zeros", name="columns", autocast=False)

    def extend(self, query: Tensor, key: Tensor, size: Any) -> tuple[Tensor, Tensor]:
        """Add channels to queries and keys, so that their product also has the logits of the relative positions.

        A query of row y and column x gets its products with the keys of the offsets y - k of each row k, and x - k of
        each column k; a key gets a one for its row and its column. The logits therefore stay one product.

        Args:
            query: (batch, heads, rows * columns, head_dim).
            key: (batch, heads, rows * columns, head_dim).
            size: (rows, columns) of the tokens, integers or tensors; the tables are resized to it.

        Returns:
            Both, with head_dim + rows + columns channels.
        """
        rows, columns = size
        _, heads, length, width = ops.shape(query)
        tables = [  # times the root, by which the logits are divided
            ops.cast(_keys_of_pairs(ops.convert_to_tensor(table), side) * math.sqrt(width), query.dtype)
            for table, side in zip((self.rows, self.columns), size, strict=True)
        ]
        grid = ops.reshape(query, (-1, heads, rows, columns, width))
        products = [
            ops.reshape(ops.einsum(rule, grid, table), (-1, heads, length, side))
            for rule, table, side in zip(("bhyxc,cyk->bhyxk", "bhyxc,cxk->bhyxk"), tables, size, strict=True)
        ]
        places = patch_coordinates(rows, columns)[:, :2]
        xp = array_module(places)
        ones = [ops.cast(xp.equal(places[:, i, None], xp.arange(side)), key.dtype) for i, side in enumerate(size)]
        ones = ops.zeros_like(key[..., :1]) + ops.concatenate(ones, axis=-1)
        return ops.concatenate([query, *products], axis=-1), ops.concatenate([key, ones], axis=-1)

    def resized(self, variable, table, method, old_size=None):
        if self.is_window and table.shape != tuple(variable.shape):
            raise ValueError(f"windows have tables of shape {tuple(variable.shape)}; got {table.shape}")
        return super().resized(variable, table, self.usual_method, old_size)


def _keys_of_pairs(table, side):
    """Return the key of each pair of a query row and a key row: (offsets, width) -> (width, side, side)."""
    count, xp = 2 * side - 1, np if isinstance(side, int) else ops
    if xp is ops or table.shape[0] != count:
        places = xp.arange(count) if xp is np else ops.cast(ops.arange(count), "float32")
        weights = resize_weights("bilinear", places, table.shape[0], count if xp is np else ops.cast(count, "float32"))
        table = ops.matmul(ops.cast(weights, table.dtype), table)
    offsets = xp.arange(side)[:, None] - xp.arange(side) + side - 1
    # transposed first, because TensorFlow's gradient of a `take` along the first axis is sparse
    pairs = ops.take(ops.transpose(table), xp.reshape(offsets, (-1,)), axis=1)
    return ops.reshape(pairs, (table.shape[1], side, side))
