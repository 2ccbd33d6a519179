"""WindowAttention: attention between the tokens of each window, with relative position biases."""

import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit import checks
from keras_vit.compat.kernels import on_rows
from keras_vit.layers.position_grid import resize_position_embedding, square_grid
from keras_vit.layers.self_attention import softmax_at_least_float32
from keras_vit.typing import Size, Tensor

# Added to the logits between tokens of different regions, as in the authors' code.
_MASKED = -100.0


@keras.saving.register_keras_serializable(package="keras_vit")
class WindowAttention(keras.layers.Layer):
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

    Raises:
        ValueError: if a value is out of range; at build, if `num_heads` does not divide the width or the windows have
            another size.
    """

    def __init__(self, window_size: Size, num_heads: int, qkv_bias: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.window_size = checks.check_pair("window_size", window_size)
        self.num_heads = checks.check_integer("num_heads", num_heads)
        self.qkv_bias = checks.check_flag("qkv_bias", qkv_bias)

    def build(self, windows_shape, regions_shape=None):
        length, dim = windows_shape[-2:]
        if dim % self.num_heads:
            raise ValueError(f"num_heads must divide the width of the input; got {self.num_heads} and {dim}")
        if length != math.prod(self.window_size):
            raise ValueError(
                f"WindowAttention needs {math.prod(self.window_size)} tokens per window of window_size="
                f"{self.window_size}; got input shape {windows_shape}"
            )
        self.qkv = self._dense(3 * dim, self.qkv_bias, "qkv", windows_shape)
        self.relative_position_bias = RelativePositionBias(
            self.window_size, self.num_heads, dtype=self.dtype_policy, name="relative_position_bias"
        )
        self.relative_position_bias.build((*windows_shape[:2], self.num_heads, length, length))
        self.proj = self._dense(dim, True, "proj", windows_shape)
        self.built = True

    def _dense(self, units, use_bias, name, input_shape):
        dense = keras.layers.Dense(
            units,
            use_bias=use_bias,
            kernel_initializer=keras.initializers.TruncatedNormal(stddev=0.02),
            dtype=self.dtype_policy,
            name=name,
        )
        dense.build(input_shape)
        return dense

    def call(self, windows: Tensor, regions: Tensor = None) -> Tensor:
        query, key, value = self._split(windows)
        weights = ops.cast(self._weights(query, key, regions), value.dtype)
        heads = ops.transpose(ops.matmul(weights, value), (0, 1, 3, 2, 4))  # (batch, windows, tokens, heads, head_dim)
        return on_rows(self.proj, ops.reshape(heads, (-1, *windows.shape[1:])))

    def _split(self, windows):
        """Return query, key and value, each (batch, windows, heads, tokens, head_dim)."""
        _, count, length, dim = windows.shape
        fused = on_rows(self.qkv, windows)
        fused = ops.reshape(fused, (-1, count, length, 3, self.num_heads, dim // self.num_heads))
        return ops.unstack(ops.transpose(fused, (3, 0, 1, 4, 2, 5)), 3)

    def _weights(self, query, key, regions):
        """Return softmax(Q K^T / sqrt(d) + B), Eq. 4; scaling the query first avoids overflow in float16."""
        scaled = query * (1.0 / math.sqrt(query.shape[-1]))
        logits = self.relative_position_bias(ops.matmul(scaled, ops.transpose(key, (0, 1, 2, 4, 3))))
        if regions is not None:
            regions = ops.convert_to_tensor(regions)
            is_foreign = ops.not_equal(regions[:, :, None], regions[:, None, :])  # (windows, query, key)
            logits = logits + ops.cast(is_foreign, logits.dtype)[:, None] * _MASKED
        return softmax_at_least_float32(logits)

    def attention_scores(self, windows: Tensor, regions: Tensor = None) -> Tensor:
        """Return the attention weights after softmax.

        Args:
            windows: (batch, windows, window rows * window columns, dim).
            regions: integers (windows, window rows * window columns), as in a call, or None.

        Returns:
            (batch, windows, heads, query tokens, key tokens).
        """
        query, key, _ = self._split(ops.convert_to_tensor(windows))
        return self._weights(query, key, regions)

    def compute_output_shape(self, windows_shape, regions_shape=None):
        return windows_shape

    def own_macs(self, windows_shape: tuple[int, ...], regions_shape: tuple[int, ...] | None = None) -> int:
        """Return the multiply-accumulates of the attention, without sub-layers.

        Args:
            windows_shape: (batch, windows, window rows * window columns, dim).
            regions_shape: shape of `regions`, which need none.
        """
        batch, windows, length, dim = windows_shape
        return 2 * batch * windows * length**2 * dim

    def get_config(self):
        return {
            **super().get_config(),
            "window_size": self.window_size,
            "num_heads": self.num_heads,
            "qkv_bias": self.qkv_bias,
        }


@keras.saving.register_keras_serializable(package="keras_vit")
class RelativePositionBias(keras.layers.Layer):
    """Add a learned bias per head and offset between query and key.

    This is B of Eq. 4 in arXiv 2103.14030. The table has one row per offset (rows, columns), in raster order from
    (1 - window rows, 1 - window columns). When the layer loads the table of another window, it resizes it bicubically,
    as the authors do.

    Args:
        window_size: rows and columns of a window in tokens, or one integer for both.
        num_heads: number of heads.

    Shapes:
        logits (..., num_heads, query tokens, key tokens), tokens of a window in raster order -> the same; 16-bit
        logits give float32 sums under every dtype policy.
    """

    def __init__(self, window_size, num_heads, **kwargs):
        super().__init__(autocast=False, **kwargs)
        self.window_size = checks.check_pair("window_size", window_size)
        self.num_heads = checks.check_integer("num_heads", num_heads)

    def build(self, input_shape):
        self.embedding = self.add_weight(
            name="embedding",
            shape=(math.prod(_offsets(self.window_size)), self.num_heads),
            initializer=keras.initializers.TruncatedNormal(stddev=0.02),
            autocast=False,
        )
        self.row_of_pair = _row_of_pair(self.window_size)
        self.built = True

    def call(self, logits):
        # The table is transposed first, as TensorFlow's gradient of a `take` along the first axis is sparse.
        table = ops.transpose(ops.cast(self.embedding, self._sum_dtype()))  # (heads, offsets)
        length = len(self.row_of_pair)
        bias = ops.reshape(ops.take(table, self.row_of_pair.ravel(), axis=1), (self.num_heads, length, length))
        return ops.cast(logits, bias.dtype) + bias

    def compute_output_spec(self, logits):
        return keras.KerasTensor(logits.shape, dtype=self._sum_dtype())

    def _sum_dtype(self):
        return keras.backend.result_type(self.variable_dtype, "float32")

    def save_own_variables(self, store):
        super().save_own_variables(store)
        # Tables of equal shape may belong to different windows: 2 x 3 and 3 x 2.
        store["window_size"] = np.array(self.window_size)

    def load_own_variables(self, store):
        if "window_size" not in store.keys():
            super().load_own_variables(store)
            return
        window_size = tuple(int(side) for side in np.asarray(store["window_size"]))
        self.embedding.assign(self.resized(self.embedding, np.asarray(store["0"]), window_size=window_size))

    def resize_from(self, other, method="bicubic"):
        """Copy the table from the same layer of a model for another image size, see `resized`."""
        table = ops.convert_to_numpy(other.embedding)
        self.embedding.assign(self.resized(self.embedding, table, method, other.window_size))

    def resized(self, variable, table, method="bicubic", window_size=None):
        """Return the table of this layer's window, resized from another window.

        Args:
            variable: the layer's one weight.
            table: array ((2 * rows - 1) * (2 * columns - 1), num_heads).
            method: resize method, see `resize_position_embedding`.
            window_size: (rows, columns) of the other window; None means a square window, whose side the table shows.

        Raises:
            ValueError: if the shape of `table` does not match that window.
        """
        old = square_grid(len(table)) if window_size is None else _offsets(window_size)
        if old is None:
            raise ValueError(f"table must have a row per offset of a square window; got shape {table.shape}")
        return resize_position_embedding(table, old, _offsets(self.window_size), 0, method)

    def get_config(self):
        return {**super().get_config(), "window_size": self.window_size, "num_heads": self.num_heads}


def _offsets(window_size):
    """Return the number of offsets between two rows and between two columns of a window."""
    return tuple(2 * side - 1 for side in window_size)


def _row_of_pair(window_size):
    """Return the table row of each (query, key): (dy + rows - 1) * (2 * columns - 1) + dx + columns - 1."""
    positions = np.indices(window_size).reshape(2, -1)  # (2, tokens)
    offsets = positions[:, :, None] - positions[:, None, :] + np.reshape(window_size, (2, 1, 1)) - 1
    return np.ravel_multi_index(tuple(offsets), _offsets(window_size)).astype("int32")
