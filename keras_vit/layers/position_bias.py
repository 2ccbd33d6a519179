"""Learned terms of attention logits for the offsets between tokens.

RelativePositionBias of Swin, AttentionBias of BEiT and RelativePositionMlp are for 2-D offsets; RelativePositions of
ViT is for 1-D offsets.
"""

import math

import keras
import numpy as np
from keras import ops

from keras_vit import checks
from keras_vit.layers.base import Layer, build_in_sequence, head_width
from keras_vit.layers.position_grid import ResizedTables, resize_position_embedding, square_grid
from keras_vit.typing import Tensor


@keras.saving.register_keras_serializable(package="keras_vit")
class RelativePositionBias(ResizedTables):
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

    own_checks = {"window_size": checks.check_pair}
    usual_method = "bicubic"
    size_name = name_in_files = "window_size"
    num_class_rows = 0  # rows at the end of the table that belong to pairs with a class token

    def __init__(self, window_size, num_heads, **kwargs):
        super().__init__(autocast=False, **kwargs)
        self.configure(window_size=window_size, num_heads=num_heads)

    def build(self, input_shape):
        shape = (math.prod(_offsets(self.window_size)) + self.num_class_rows, self.num_heads)
        self.embedding = self.add_weight(shape, initial_values(), name="embedding", autocast=False)
        self.row_of_pair = _row_of_pair(self.window_size)

    def call(self, logits):
        bias = self.bias()
        return ops.cast(logits, bias.dtype) + bias

    def bias(self) -> Tensor:
        """Return the bias of each pair of tokens, (heads, query tokens, key tokens)."""
        # The table is transposed first, because TensorFlow's gradient of a `take` along the first axis is sparse.
        table = ops.transpose(ops.cast(self.embedding, self._sum_dtype()))  # (heads, offsets)
        length = len(self.row_of_pair)
        return ops.reshape(ops.take(table, self.row_of_pair.ravel(), axis=1), (self.num_heads, length, length))

    def compute_output_spec(self, logits):
        return keras.KerasTensor(logits.shape, dtype=self._sum_dtype())

    def _sum_dtype(self):
        return keras.backend.result_type(self.variable_dtype, "float32")

    def resized(self, variable, table, method, old_size=None):
        count = len(table) - self.num_class_rows
        old = square_grid(count) if old_size is None else _offsets(old_size)
        if old is None:
            raise ValueError(f"table must have a row per offset of a square window; got shape {table.shape}")
        resized = resize_position_embedding(table[:count], old, _offsets(self.window_size), 0, method)
        return np.concatenate([resized, table[count:]])


@keras.saving.register_keras_serializable(package="keras_vit")
class AttentionBias(RelativePositionBias):
    """Return a learned bias per head and offset between query and key, with a class token (BEiT, arXiv 2106.08254).

    Pass it to `MultiHeadSelfAttention` or `TransformerBlock`. After the rows of the offsets between patches, the table
    has three rows: for the class token as query, as key, and as both. A table of another grid is resized when it is
    loaded; these three rows are copied.

    Args:
        window_size: (rows, columns) of the patch grid, or one integer for both.
        num_heads: number of heads.
        resize: resize method for tables of other grids, see `resize_position_embedding`.

    Shapes:
        (batch, 1 + patches, dim) -> (num_heads, 1 + patches, 1 + patches), float32, without a batch axis

    Raises:
        ValueError: if a value is out of range.
    """

    usual_method = "geometric_cubic"
    num_class_rows = 3

    def __init__(self, window_size, num_heads, resize=None, **kwargs):
        super().__init__(window_size, num_heads, **kwargs)
        self.configure(resize=resize)

    def build(self, input_shape):
        super().build(input_shape)
        patches, count = self.row_of_pair, math.prod(_offsets(self.window_size))
        self.row_of_pair = np.pad(patches, ((1, 0), (1, 0)), constant_values=((count, 0), (count + 1, 0)))
        self.row_of_pair[0, 1:], self.row_of_pair[0, 0] = count, count + 2

    def call(self, tokens):
        return self.bias()

    def compute_output_spec(self, tokens):
        length = 1 + math.prod(self.window_size)
        return keras.KerasTensor((self.num_heads, length, length), dtype=self._sum_dtype())


@keras.saving.register_keras_serializable(package="keras_vit")
class RelativePositionMlp(Layer):
    """Return a bias per head and 2-D offset between query and key, which an MLP computes from the offset.

    The MLP has one hidden layer with ReLU. Its input is sign(d) log(1 + |d|) for the offset d of rows and that of
    columns, in patches (arXiv 2111.09883, Eq. 4), so that its weights fit any grid. The pairs of class tokens and
    registers have a bias of 0. Pass it to `MultiHeadSelfAttention` or `TransformerBlock`.

    Args:
        window_size: (rows, columns) of the patch grid, or one integer for both.
        num_heads: number of heads.
        mlp_dim: width of the hidden layer.
        num_prefix_tokens: number of class and register tokens at the start of the sequence.

    Shapes:
        (batch, num_prefix_tokens + patches, dim) -> (num_heads, tokens, tokens), float32, without a batch axis

    Raises:
        ValueError: if a value is out of range.
    """

    own_checks = {"window_size": checks.check_pair}

    def __init__(self, window_size, num_heads, mlp_dim=128, num_prefix_tokens=0, **kwargs):
        super().__init__(autocast=False, **kwargs)
        self.configure(window_size=window_size, num_heads=num_heads, mlp_dim=mlp_dim)
        self.configure(num_prefix_tokens=num_prefix_tokens)
        own = {"dtype": keras.backend.result_type(self.variable_dtype, "float32")}
        self.dense1 = keras.layers.Dense(self.mlp_dim, "relu", name="dense1", **own)
        self.dense2 = keras.layers.Dense(self.num_heads, name="dense2", **own)

    def build(self, input_shape):
        sides = [np.arange(1 - side, side) for side in self.window_size]
        offsets = np.stack(np.meshgrid(*sides, indexing="ij"), axis=-1).reshape(-1, 2)
        self.logarithms = (np.sign(offsets) * np.log1p(np.abs(offsets))).astype("float32")
        self.row_of_pair = _row_of_pair(self.window_size)
        build_in_sequence(self.logarithms.shape, self.dense1, self.dense2)

    def call(self, tokens):
        table = ops.transpose(self.dense2(self.dense1(ops.convert_to_tensor(self.logarithms))))  # (heads, offsets)
        patches, prefix = len(self.row_of_pair), self.num_prefix_tokens
        bias = ops.reshape(ops.take(table, self.row_of_pair.ravel(), axis=1), (self.num_heads, patches, patches))
        return ops.pad(bias, ((0, 0), (prefix, 0), (prefix, 0)))

    def compute_output_spec(self, tokens):
        length = self.num_prefix_tokens + math.prod(self.window_size)
        return keras.KerasTensor((self.num_heads, length, length), dtype=self.dense2.compute_dtype)


@keras.saving.register_keras_serializable(package="keras_vit")
class RelativePositions(ResizedTables):
    """Return one learned key per 1-D offset p_q - p_k between patches.

    This follows arXiv 2010.11929, appendix D.4. Pass the keys to `MultiHeadSelfAttention` or `TransformerBlock`, which
    adds the product of each query with the key of its offset to the attention logit. Patches are in raster order, and
    all heads share the keys. The paper defines offsets only between patches, so class tokens and registers get no such
    logits. If the head reads the class token only, the keys of the last block therefore receive no gradient.

    Args:
        num_heads: number of heads of the attention that uses the keys; they must divide the width of the input.
        num_prefix_tokens: number of class and register tokens at the start of the sequence.

    Shapes:
        (batch, num_prefix_tokens + patches, dim) -> keys (2 * patches - 1, dim / num_heads); row i belongs to the
        offset i - (patches - 1), and there is no batch axis

    Raises:
        ValueError: if a value is out of range; at build, if `num_heads` does not divide the width or the number of
            tokens is unknown.
    """

    def __init__(self, num_heads, num_prefix_tokens=0, **kwargs):
        super().__init__(**kwargs)
        self.configure(num_heads=num_heads, num_prefix_tokens=num_prefix_tokens)

    def build(self, input_shape):
        self.embedding = self.normal_weight("embedding", self.compute_output_shape(input_shape))

    def call(self, tokens):
        return ops.cast(self.embedding, tokens.dtype)

    def compute_output_shape(self, input_shape):
        _, tokens, dim = input_shape
        if tokens is None or tokens <= self.num_prefix_tokens:
            raise ValueError(
                f"RelativePositions needs a known number of tokens above num_prefix_tokens={self.num_prefix_tokens}; "
                f"got input shape {input_shape}"
            )
        return (2 * (tokens - self.num_prefix_tokens) - 1, head_width(self.num_heads, dim))


def initial_values():
    """Return a new initializer with the authors' distribution; a shared one would give the layers equal values."""
    return keras.initializers.TruncatedNormal(stddev=0.02)


def _offsets(window_size):
    """Return the number of offsets between two rows and between two columns of a window."""
    return tuple(2 * side - 1 for side in window_size)


def _row_of_pair(window_size):
    """Return the table row of each (query, key): (dy + rows - 1) * (2 * columns - 1) + dx + columns - 1."""
    positions = np.indices(window_size).reshape(2, -1)  # (2, tokens)
    offsets = positions[:, :, None] - positions[:, None, :] + np.reshape(window_size, (2, 1, 1)) - 1
    return np.ravel_multi_index(tuple(offsets), _offsets(window_size)).astype("int32")


def relative_logits(query, keys):
    """Return the product of each query with the key of its offset p_q - p_k, for all pairs of tokens.

    Args:
        query: (batch, heads, tokens, head_dim); the last (offsets + 1) / 2 tokens are patches.
        keys: (offsets, head_dim), from `RelativePositions`.

    Returns:
        (batch, heads, query tokens, key tokens); 0 unless both tokens are patches.
    """
    offsets = keys.shape[0]
    patches = (offsets + 1) // 2
    prefix = query.shape[2] - patches
    # The keys are reversed, so the product of query q and key k is in column (patches - 1) - q + k of row q, one column
    # further left in each row. Cutting the flattened products into rows that are one shorter aligns the columns.
    products = ops.einsum("bhqd,od->bhqo", query[:, :, prefix:], ops.flip(keys, axis=0))
    heads = products.shape[1]
    flat = ops.reshape(ops.pad(products, ((0, 0), (0, 0), (0, 0), (0, 1))), (-1, heads, patches * 2 * patches))
    flat = flat[:, :, patches - 1 : patches - 1 + patches * offsets]
    logits = ops.reshape(flat, (-1, heads, patches, offsets))[..., :patches]
    return ops.pad(logits, ((0, 0), (0, 0), (prefix, 0), (prefix, 0)))
