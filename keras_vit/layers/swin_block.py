"""SwinBlock: attention inside windows and an MLP, each on a residual branch."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit import checks
from keras_vit.layers.drop_path import DropPath
from keras_vit.layers.layer_norm import LayerNorm
from keras_vit.layers.mlp import MlpBlock
from keras_vit.layers.window_attention import WindowAttention
from keras_vit.typing import Tensor


@keras.saving.register_keras_serializable(package="keras_vit")
class SwinBlock(keras.layers.Layer):
    """Apply one block of a Swin Transformer (arXiv 2103.14030, Eq. 3).

    The block splits the map into square windows. If the shorter side of the map is at most `window_size`, the window
    takes that side in both directions and is not shifted (the authors' rule). If the windows do not divide the map, the
    map is padded after the norm with zeros at the bottom and the right; tokens attend to the padding, which is then cut
    off. A shifted block rolls the padded map half a window up and left, and masks attention between tokens that are
    neighbours only because of the roll. The table of position biases belongs to the actual window, `built_window`; the
    layer resizes the table of another window when it loads it.

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
        self.num_heads = checks.check_integer("num_heads", num_heads)
        self.window_size = checks.check_integer("window_size", window_size)
        self.shifted = checks.check_flag("shifted", shifted)
        self.dropout_rate = checks.check_rate("dropout_rate", dropout_rate)
        self.drop_path_rate = checks.check_rate("drop_path_rate", drop_path_rate)
        self.qkv_bias = checks.check_flag("qkv_bias", qkv_bias)
        self.epsilon = checks.check_positive("epsilon", epsilon)
        common = {"dtype": self.dtype_policy}
        self.norm1 = LayerNorm(epsilon=epsilon, name="norm1", **common)
        self.dropout = keras.layers.Dropout(dropout_rate, name="dropout", **common)
        self.norm2 = LayerNorm(epsilon=epsilon, name="norm2", **common)
        self.mlp = MlpBlock(mlp_dim, dropout_rate, gelu, name="mlp", **common)
        self.drop_path = DropPath(drop_path_rate, name="drop_path", **common)

    def build(self, input_shape):
        if len(input_shape) != 4 or None in input_shape[1:]:
            raise ValueError(
                f"SwinBlock needs maps of shape (batch, rows, columns, dim) with known size; got {input_shape}"
            )
        batch, rows, columns, dim = input_shape
        is_one_window = min(rows, columns) <= self.window_size
        self.built_window = window = min(rows, columns, self.window_size)
        self.built_shift = self.window_size // 2 if self.shifted and not is_one_window else 0
        self.padded_size = tuple(-(-side // window) * window for side in (rows, columns))
        self.regions = _regions(self.padded_size, window, self.built_shift) if self.built_shift else None
        self.attention = WindowAttention(
            window, self.num_heads, self.qkv_bias, dtype=self.dtype_policy, name="attention"
        )
        self.attention.build((batch, self._num_windows(), window**2, dim))
        for layer in (self.norm1, self.dropout, self.norm2, self.mlp, self.drop_path):
            layer.build((batch, rows * columns, dim))
        self.built = True

    def call(self, maps: Tensor, training: bool | None = None) -> Tensor:
        _, rows, columns, dim = maps.shape
        map_shape, token_shape = (-1, rows, columns, dim), (-1, rows * columns, dim)
        tokens = ops.reshape(maps, token_shape)
        # z' = (S)W-MSA(LN(z)) + z
        windows = self._to_windows(ops.reshape(self.norm1(tokens), map_shape))
        branch = self._from_windows(self.attention(windows, self.regions))[:, :rows, :columns]
        branch = self.dropout(ops.reshape(branch, token_shape), training=training)
        tokens = tokens + self.drop_path(branch, training=training)
        # z = MLP(LN(z')) + z'
        branch = self.mlp(self.norm2(tokens), training=training)
        return ops.reshape(tokens + self.drop_path(branch, training=training), map_shape)

    def _to_windows(self, maps):
        """(batch, rows, columns, dim) -> (batch, windows, window * window, dim)."""
        _, rows, columns, dim = maps.shape
        window, padded = self.built_window, self.padded_size
        if padded != (rows, columns):
            maps = ops.pad(maps, ((0, 0), (0, padded[0] - rows), (0, padded[1] - columns), (0, 0)))
        if self.built_shift:
            maps = _roll(maps, -self.built_shift)
        cut = ops.reshape(maps, (-1, padded[0] // window, window, padded[1] // window, window, dim))
        return ops.reshape(ops.transpose(cut, (0, 1, 3, 2, 4, 5)), (-1, self._num_windows(), window**2, dim))

    def _from_windows(self, windows):
        """(batch, windows, window * window, dim) -> (batch, padded rows, padded columns, dim)."""
        window, padded, dim = self.built_window, self.padded_size, windows.shape[-1]
        cut = ops.reshape(windows, (-1, padded[0] // window, padded[1] // window, window, window, dim))
        maps = ops.reshape(ops.transpose(cut, (0, 1, 3, 2, 4, 5)), (-1, *padded, dim))
        return _roll(maps, self.built_shift) if self.built_shift else maps

    def _num_windows(self):
        return self.padded_size[0] * self.padded_size[1] // self.built_window**2

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
        tokens = self.norm1(ops.reshape(maps, (-1, rows * columns, dim)))  # the shape that it is built for
        windows = self._to_windows(ops.reshape(tokens, (-1, rows, columns, dim)))
        return self.attention.attention_scores(windows, self.regions)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {
            **super().get_config(),
            "num_heads": self.num_heads,
            "mlp_dim": self.mlp.mlp_dim,
            "window_size": self.window_size,
            "shifted": self.shifted,
            "dropout_rate": self.dropout_rate,
            "drop_path_rate": self.drop_path_rate,
            "qkv_bias": self.qkv_bias,
            "gelu": self.mlp.gelu,
            "epsilon": self.epsilon,
        }


def _roll(maps, shift):
    """Roll rows and columns as `ops.roll` does, with operations that LiteRT supports."""
    rows, columns = (-shift % side for side in maps.shape[1:3])
    maps = ops.concatenate([maps[:, rows:], maps[:, :rows]], axis=1)
    return ops.concatenate([maps[:, :, columns:], maps[:, :, :columns]], axis=2)


def _regions(size, window, shift):
    """Number the tokens of each window by whether the roll wrapped their row and their column.

    Return integers (windows, window * window).
    """
    rows, columns = (np.arange(side) >= side - shift for side in size)
    regions = 2 * rows[:, None].astype("int32") + columns
    cut = regions.reshape(size[0] // window, window, size[1] // window, window)
    return cut.transpose(0, 2, 1, 3).reshape(-1, window * window)
