"""The layers of Swin Transformers: SwinBlock, its attention inside windows, and PatchMerging between stages."""

import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit import checks
from keras_vit.layers.attend import softmax_at_least_float32
from keras_vit.layers.base import Layer, head_width, known_map
from keras_vit.layers.forms import LayerNorm, on_rows
from keras_vit.layers.grid_attention import from_windows, to_windows
from keras_vit.layers.position_bias import RelativePositionBias, initial_values
from keras_vit.layers.transformer_block import ResidualBlock
from keras_vit.typing import Size, Tensor

# Added to the logits between tokens of different regions, as in the authors' code.
_MASKED = -100.0


@keras.saving.register_keras_serializable(package="keras_vit")
class SwinBlock(ResidualBlock):
    """Apply one block of a Swin Transformer (arXiv 2103.14030, Eq. 3).

    The block splits the map into square windows. If the shorter side of the map is at most `window_size`, that side
    becomes the side of the window, and windows are not shifted (the authors' rule). If the windows do not divide the
    map, the map is padded after the norm with zeros at the bottom and the right; tokens attend to the padding, which is
    then cut off. A shifted block rolls the padded map half a window up and left, and masks attention between tokens
    that are neighbours only because of the roll. The table of position biases has the size of the actual window,
    `built_window`; a table for another window size is resized when it is loaded.

    Args:
        num_heads: attention heads; they must divide the width of the input.
        mlp_dim: width of the hidden layer of the MLP.
        window_size: side of a window in tokens.
        shifted: whether the windows are shifted by `window_size // 2`.
        dropout_rate: dropout rate after the attention output and both MLP layers, in [0, 1).
        drop_path_rate: share of samples whose residual branches are dropped in training, in [0, 1).
        qkv_bias: whether the query, key and value projections have biases.
        gelu: `erf` (the authors' code) or `tanh`.
        epsilon: epsilon of the layer norms.

    Shapes:
        (batch, rows, columns, dim) -> the same

    Raises:
        ValueError: if a value is out of range or a choice is unknown; at build, if the size of the map is unknown or
            `num_heads` does not divide the width.
    """

    def __init__(
        self,
        num_heads: int,
        mlp_dim: int,
        window_size: int,
        shifted: bool = False,
        dropout_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        qkv_bias: bool = True,
        gelu: str = "erf",
        epsilon: float = 1e-5,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.configure(num_heads=num_heads, mlp_dim=mlp_dim, window_size=window_size, shifted=shifted, gelu=gelu)
        self.configure(epsilon=epsilon, qkv_bias=qkv_bias, dropout_rate=dropout_rate, drop_path_rate=drop_path_rate)
        self.norm1 = self.make_norm(self.block.norm, self.epsilon, "norm1")
        self.make_parts()

    def build(self, input_shape):
        rows, columns, dim = known_map(self, input_shape)
        is_one_window = min(rows, columns) <= self.window_size
        self.built_window = window = min(rows, columns, self.window_size)
        self.built_shift = self.window_size // 2 if self.shifted and not is_one_window else 0
        self.padded_size = tuple(-(-side // window) * window for side in (rows, columns))
        self.regions = _regions(self.padded_size, window, self.built_shift) if self.built_shift else None
        self.num_windows = math.prod(self.padded_size) // window**2
        windows_shape = (input_shape[0], self.num_windows, window**2, dim)
        attention = window, self.num_heads, self.qkv_bias
        self.attention = self.sublayer(WindowAttention, *attention, name="attention", shape=windows_shape)
        self.build_parts((input_shape[0], rows * columns, dim))

    def call(self, maps: Tensor, training: bool | None = None) -> Tensor:
        _, rows, columns, dim = maps.shape
        map_shape, token_shape = (-1, rows, columns, dim), (-1, rows * columns, dim)
        tokens = ops.reshape(maps, token_shape)
        # z' = (S)W-MSA(LN(z)) + z
        windows = self._to_windows(ops.reshape(self.norm1(tokens), map_shape))
        branch = self._from_windows(self.attention(windows, self.regions))[:, :rows, :columns]
        tokens = self.add_attention(tokens, ops.reshape(branch, token_shape), training)
        return ops.reshape(self.add_mlp(tokens, training, norm=self.norm2), map_shape)

    def _to_windows(self, maps):
        """(batch, rows, columns, dim) -> (batch, windows, window * window, dim)."""
        _, rows, columns, dim = maps.shape
        window, padded = self.built_window, self.padded_size
        if padded != (rows, columns):
            maps = ops.pad(maps, ((0, 0), (0, padded[0] - rows), (0, padded[1] - columns), (0, 0)))
        if self.built_shift:
            maps = _roll(maps, -self.built_shift)
        return to_windows(maps, window, self.num_windows)

    def _from_windows(self, windows):
        """(batch, windows, window * window, dim) -> (batch, padded rows, padded columns, dim)."""
        maps = from_windows(windows, self.padded_size, self.built_window)
        return _roll(maps, self.built_shift) if self.built_shift else maps

    def attention_scores(self, maps: Tensor) -> Tensor:
        """Return the attention weights after softmax.

        Args:
            maps: input of the block, (batch, rows, columns, dim).

        Returns:
            (batch, windows, heads, query tokens, key tokens). Windows, and the tokens inside them, are in raster order
            of the map after padding to `padded_size` and rolling by `built_shift` tokens up and left. In a window whose
            upper left corner is (y, x), token (i, j) is the map's token (y + i + shift, x + j + shift) modulo
            `padded_size`.
        """
        _, rows, columns, dim = maps.shape
        tokens = self.norm1(ops.reshape(maps, (-1, rows * columns, dim)))  # the norm is built for this shape
        windows = self._to_windows(ops.reshape(tokens, (-1, rows, columns, dim)))
        return self.attention(windows, self.regions, return_attention_scores=True)[1]


def _roll(maps, shift):
    """Roll rows and columns as `ops.roll` does, with operations that LiteRT supports."""
    rows, columns = (-shift % side for side in maps.shape[1:3])
    maps = ops.concatenate([maps[:, rows:], maps[:, :rows]], axis=1)
    return ops.concatenate([maps[:, :, columns:], maps[:, :, :columns]], axis=2)


def _regions(size, window, shift):
    """Number the tokens of each window by whether the roll moved their row and their column across the border.

    Return integers (windows, window * window).
    """
    rows, columns = (np.arange(side) >= side - shift for side in size)
    return cut_into_windows(2 * rows[:, None].astype("int32") + columns, window)


def cut_into_windows(numbers, window):
    """Return the windows of an array (rows, columns), in raster order: (windows, window * window)."""
    cut = numbers.reshape(numbers.shape[0] // window, window, numbers.shape[1] // window, window)
    return cut.transpose(0, 2, 1, 3).reshape(-1, window * window)


@keras.saving.register_keras_serializable(package="keras_vit")
class WindowAttention(Layer):
    """Apply multi-head self-attention inside windows (arXiv 2103.14030, section 3.2).

    This is W-MSA, and SW-MSA with `regions`. One dense layer computes [query, key, value], each as [head 0, head 1,
    ...].

    Args:
        window_size: rows and columns of a window in tokens, or one integer for both.
        num_heads: number of heads; it must divide the width of the input.
        qkv_bias: whether the fused projection has a bias.

    Shapes:
        (batch, windows, window rows * window columns, dim) -> the same. The optional input `regions` has integers
        (windows, window rows * window columns): a token attends only to tokens of its window with the same integer.
        With `return_attention_scores=True` the output is a pair with the attention weights after softmax, (batch,
        windows, heads, query tokens, key tokens).

    Raises:
        ValueError: if a value is out of range; at build, if `num_heads` does not divide the width or the windows have
            another size.
    """

    own_checks = {"window_size": checks.check_pair}

    def __init__(self, window_size: Size, num_heads: int, qkv_bias: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.configure(window_size=window_size, num_heads=num_heads, qkv_bias=qkv_bias)

    def build(self, windows_shape, regions_shape=None):
        length, dim = windows_shape[-2:]
        head_width(self.num_heads, dim)
        if length != math.prod(self.window_size):
            raise ValueError(
                f"WindowAttention needs {math.prod(self.window_size)} tokens per window of window_size="
                f"{self.window_size}; got input shape {windows_shape}"
            )
        self.qkv = self.dense(3 * dim, "qkv", initial_values(), windows_shape, use_bias=self.qkv_bias)
        logits_shape = (*windows_shape[:2], self.num_heads, length, length)
        self.relative_position_bias = self.sublayer(
            RelativePositionBias, self.window_size, self.num_heads, name="relative_position_bias", shape=logits_shape
        )
        self.proj = self.dense(dim, "proj", initial_values(), windows_shape)

    def call(self, windows: Tensor, regions: Tensor = None, *, return_attention_scores: bool = False) -> Tensor:
        _, count, length, dim = windows.shape
        fused = on_rows(self.qkv, windows)
        fused = ops.reshape(fused, (-1, count, length, 3, self.num_heads, dim // self.num_heads))
        query, key, value = ops.unstack(ops.transpose(fused, (3, 0, 1, 4, 2, 5)), 3)
        # softmax(Q K^T / sqrt(d) + B), Eq. 4; scaling the query first avoids overflow in float16
        scaled = query * (1.0 / math.sqrt(dim // self.num_heads))
        logits = self.relative_position_bias(ops.matmul(scaled, ops.transpose(key, (0, 1, 2, 4, 3))))
        if regions is not None:
            regions = ops.convert_to_tensor(regions)
            is_foreign = ops.not_equal(regions[:, :, None], regions[:, None, :])  # (windows, query, key)
            logits = logits + ops.cast(is_foreign, logits.dtype)[:, None] * _MASKED
        weights = softmax_at_least_float32(logits)
        heads = ops.matmul(ops.cast(weights, value.dtype), value)
        heads = ops.transpose(heads, (0, 1, 3, 2, 4))  # (batch, windows, tokens, heads, head_dim)
        output = on_rows(self.proj, ops.reshape(heads, (-1, count, length, dim)))
        return (output, weights) if return_attention_scores else output


@keras.saving.register_keras_serializable(package="keras_vit")
class PatchMerging(Layer):
    """Merge each group of 2 x 2 tokens into one (arXiv 2103.14030, section 3.1).

    The layer concatenates the four tokens, normalises the result and projects it linearly to twice the width. The order
    of the four is upper left, lower left, upper right, lower right. Odd sides are padded with zeros at the bottom and
    the right.

    Args:
        epsilon: epsilon of the layer norm.

    Shapes:
        (batch, rows, columns, dim) -> (batch, rows / 2, columns / 2, 2 * dim), sides rounded up

    Raises:
        ValueError: if a value is out of range; at build, if the size of the map is unknown.
    """

    def __init__(self, epsilon: float = 1e-5, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.configure(epsilon=epsilon)
        self.norm = self.sublayer(LayerNorm, epsilon=self.epsilon, name="norm")

    def build(self, input_shape):
        *size, width = self.compute_output_shape(input_shape)
        joined_shape = (*size, 2 * width)
        self.norm.build(joined_shape)
        self.reduction = self.dense(width, "reduction", initial_values(), joined_shape, use_bias=False)

    def call(self, maps: Tensor) -> Tensor:
        _, rows, columns, dim = maps.shape
        if rows % 2 or columns % 2:
            maps = ops.pad(maps, ((0, 0), (0, rows % 2), (0, columns % 2), (0, 0)))
        rows, columns = (rows + 1) // 2, (columns + 1) // 2
        joined = ops.transpose(ops.reshape(maps, (-1, rows, 2, columns, 2, dim)), (0, 1, 3, 4, 2, 5))
        return on_rows(self.reduction, self.norm(ops.reshape(joined, (-1, rows, columns, 4 * dim))))

    def compute_output_shape(self, input_shape):
        rows, columns, dim = known_map(self, input_shape)
        return (input_shape[0], (rows + 1) // 2, (columns + 1) // 2, 2 * dim)
