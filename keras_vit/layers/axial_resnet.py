"""The layers of the AxialResNet: attention along one axis of a map, the residual unit that contains it, its stages."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.config.base import one_of
from keras_vit.layers.attend import softmax_at_least_float32
from keras_vit.layers.base import build_in_sequence, known_map
from keras_vit.layers.bottleneck import ResidualUnit, Stage
from keras_vit.layers.position_grid import ResizedTables
from keras_vit.typing import Tensor

AXES = ("height", "width")
STRIDES = (1, 2)


@keras.saving.register_keras_serializable(package="keras_vit")
class AxialAttention(ResizedTables):
    """Apply position-sensitive axial attention (arXiv 2003.07853, Eq. 4).

    The layer attends along the columns or the rows of a map. As in csrhddlam/axial-deeplab (`axialnet.py`), keys have
    half the channels of values, and each product is batch-normalised instead of scaled. One table of relative
    positions, shared by the heads, gives the positional terms of query, key and value. The table depends on the length
    K of the axis. When the layer loads a table for another length, it resizes it linearly; offset 0 and both ends stay
    aligned.

    Args:
        axis: `height` attends within each column, `width` within each row.
        num_heads: number of attention heads; twice this number must divide the channels.
        epsilon: epsilon of the batch normalisations.

    Shapes:
        (batch, rows, columns, channels), rows and columns known -> the same

    Raises:
        ValueError: if a value is out of range or a choice is unknown; at build, if the map has an unknown size or
            twice `num_heads` does not divide its channels.
    """

    own_checks = {"axis": one_of(AXES)}

    def __init__(self, axis: str, num_heads: int = 8, epsilon: float = 1e-5, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.configure(axis=axis, num_heads=num_heads, epsilon=epsilon)
        self.qkv_norm = self._norm("qkv_norm")
        self.product_norm = self._norm("product_norm", axis=1)
        self.query_position_norm = self._norm("query_position_norm", axis=1)
        self.key_position_norm = self._norm("key_position_norm", axis=1)
        self.value_norm = self._norm("value_norm")
        self.value_position_norm = self._norm("value_position_norm")

    def _norm(self, name, axis=-1):
        return self.sublayer(batch_norm, axis=axis, epsilon=self.epsilon, name=name)

    def build(self, input_shape):
        *sides, channels = known_map(self, input_shape)
        if channels % (2 * self.num_heads):
            raise ValueError(
                "twice num_heads must divide the channels of the input, as keys have half the channels of values; "
                f"got num_heads={self.num_heads} and {channels} channels"
            )
        length = sides[AXES.index(self.axis)]
        head_dim = channels // self.num_heads
        # Both initial standard deviations are those of axialnet.py.
        initializer = keras.initializers.RandomNormal(stddev=channels**-0.5)
        self.qkv = self.dense(2 * channels, "qkv", initializer, (None, length, channels), use_bias=False)
        self.qkv_norm.build((None, length, 2 * channels))
        shape = (2 * length - 1, 2 * head_dim)
        self.relative_positions = self.normal_weight("relative_positions", shape, head_dim**-0.5)
        for norm in (self.product_norm, self.query_position_norm, self.key_position_norm):
            norm.build((None, self.num_heads, length, length))
        for norm in (self.value_norm, self.value_position_norm):
            norm.build((None, length, channels))

    def call(self, maps: Tensor, training: bool | None = None) -> Tensor:
        if self.axis == "width":
            return self._attend(maps, training)
        turned = self._attend(ops.transpose(maps, (0, 2, 1, 3)), training)
        return ops.transpose(turned, (0, 2, 1, 3))

    def _attend(self, maps, training):
        """Attend along the third axis; the second axis joins the batch."""
        _, others, length, channels = maps.shape
        sequences = ops.reshape(maps, (-1, length, channels))
        query, key, value = self._project(sequences, training)
        query_positions, key_positions, value_positions = self._positions(length)
        # BN(q k) + BN(q r^q) + BN(k r^k), each normalised per head
        logits = (
            self.product_norm(ops.einsum("nhqc,nhkc->nhqk", query, key), training=training)
            + self.query_position_norm(ops.einsum("nhqc,qkc->nhqk", query, query_positions), training=training)
            + self.key_position_norm(ops.einsum("nhkc,kqc->nhqk", key, key_positions), training=training)
        )
        weights = ops.cast(softmax_at_least_float32(logits), value.dtype)
        # BN(A v) + BN(A r^v), each normalised per channel
        shape = (-1, length, channels)
        outputs = ops.reshape(ops.einsum("nhqk,nhkc->nqhc", weights, value), shape)
        positions = ops.reshape(ops.einsum("nhqk,qkc->nqhc", weights, value_positions), shape)
        outputs = self.value_norm(outputs, training=training) + self.value_position_norm(positions, training=training)
        return ops.reshape(outputs, (-1, others, length, channels))

    def _project(self, sequences, training):
        """(n, length, channels) -> query, key (n, heads, length, head_dim / 2), value (n, heads, length, head_dim)"""
        length, channels = sequences.shape[1:]
        fused = self.qkv_norm(self.qkv(sequences), training=training)
        fused = ops.reshape(fused, (-1, length, self.num_heads, 2 * channels // self.num_heads))
        return self._split(ops.transpose(fused, (0, 2, 1, 3)))

    def _positions(self, length):
        """Return r^q, r^k (length, length, head_dim / 2) and r^v (length, length, head_dim).

        Element [i, j] is the table's row for the offset i - j. In r^q and r^v, i is the query and j the key; in r^k,
        i is the key and j the query.
        """
        places = np.arange(length)
        offsets = places[:, None] - places + length - 1
        table = ops.cast(ops.convert_to_tensor(self.relative_positions), self.compute_dtype)
        return [ops.take(part, offsets, axis=0) for part in self._split(table)]

    def _split(self, fused):
        """Split the last axis into query, key and value: a quarter, a quarter and a half."""
        quarter = fused.shape[-1] // 4
        return ops.split(fused, (quarter, 2 * quarter), axis=-1)

    @property
    def tables(self) -> list[keras.Variable]:
        """Return the variables to resize, without those of the sub-layers."""
        return [self.relative_positions]


def batch_norm(name, epsilon, dtype, axis=-1, gamma_initializer="ones"):
    """Return a batch normalisation whose momentum, 0.9, is PyTorch's 0.1."""
    return keras.layers.BatchNormalization(
        axis, momentum=0.9, epsilon=epsilon, gamma_initializer=gamma_initializer, dtype=dtype, name=name
    )


@keras.saving.register_keras_serializable(package="keras_vit")
class AxialBottleneck(ResidualUnit):
    """Apply a bottleneck unit with axial attention (arXiv 2003.07853, section 3.3).

    The unit is 1 x 1 convolution down, BN, ReLU, height attention, width attention, ReLU, 1 x 1 convolution up, BN, add
    the shortcut, ReLU, as in csrhddlam/axial-deeplab (`axialnet.py`). With a stride, the attention output is
    average-pooled; at the end of an odd side the pool covers a single row or column. If the shape changes, the shortcut
    is a 1 x 1 convolution of the same stride with BN. The scale of the last BN starts at 0, so the unit initially
    passes on the shortcut only.

    Args:
        width: number of attention channels; the output has twice as many.
        strides: 1, or 2 to halve the sides of the map, rounding up.
        num_heads: number of attention heads; twice this number must divide `width`.
        epsilon: epsilon of every batch normalisation.

    Shapes:
        (batch, rows, columns, channels), rows and columns known ->
        (batch, ceil(rows / strides), ceil(columns / strides), 2 * width)

    Raises:
        ValueError: if a value is out of range or twice `num_heads` does not divide `width`; at build, if the size of
            the map is unknown.
    """

    expansion = 2  # `AxialBlock.expansion` in axialnet.py
    own_checks = {"strides": one_of(STRIDES)}

    def __init__(self, width: int, strides: int = 1, num_heads: int = 8, epsilon: float = 1e-5, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.configure(width=width, strides=strides, num_heads=num_heads, epsilon=epsilon)
        if self.width % (2 * self.num_heads):  # keys have half of the attention channels
            raise ValueError(f"width must be divisible by twice num_heads; got {width=}, {num_heads=}")
        # Dense layers are 1 x 1 convolutions that LoRA and quantisation support.
        self.down = self.dense(self.width, "down", he_normal(), use_bias=False)
        self.down_norm = self._norm("down_norm")
        self.height_attention = self.sublayer(AxialAttention, "height", num_heads, epsilon, name="height_attention")
        self.width_attention = self.sublayer(AxialAttention, "width", num_heads, epsilon, name="width_attention")
        self.pool = self.sublayer(keras.layers.AveragePooling2D, strides, None, "same", "channels_last", name="pool")
        self.up = self.dense(self.expansion * self.width, "up", he_normal(), use_bias=False)
        self.up_norm = self._norm("up_norm", "zeros")

    def _norm(self, name, gamma_initializer="ones"):
        return self.sublayer(batch_norm, name=name, epsilon=self.epsilon, gamma_initializer=gamma_initializer)

    def build(self, input_shape):
        self.has_projection = self.needs_projection(input_shape)
        if self.has_projection:
            filters = self.expansion * self.width
            self.shortcut = self.conv(filters, 1, "shortcut", he_normal(), strides=self.strides, use_bias=False)
            self.shortcut_norm = self._norm("shortcut_norm")
        attention = (self.down, self.down_norm, self.height_attention, self.width_attention, self.pool)
        build_in_sequence(input_shape, *attention, self.up, self.up_norm)
        if self.has_projection:
            build_in_sequence(input_shape, self.shortcut, self.shortcut_norm)

    def call(self, maps: Tensor, training: bool | None = None) -> Tensor:
        branch = ops.relu(self.down_norm(self.down(maps), training=training))
        branch = self.height_attention(branch, training=training)
        branch = self.width_attention(branch, training=training)
        if self.strides != 1:
            branch = self.pool(branch)
        branch = self.up_norm(self.up(ops.relu(branch)), training=training)
        if self.has_projection:
            maps = self.shortcut_norm(self.shortcut(maps), training=training)
        return ops.relu(branch + maps)


@keras.saving.register_keras_serializable(package="keras_vit")
class AxialStage(Stage):
    """Apply residual units in sequence; the first has the stride.

    The sub-layers are `unit_01`, `unit_02` and so on.

    Args:
        num_units: number of units.
        width: number of attention channels; the output has twice as many.
        strides: stride of the first unit.
        num_heads, epsilon: as in `AxialBottleneck`.

    Shapes:
        as `AxialBottleneck`

    Raises:
        ValueError: as `AxialBottleneck`.
    """

    def __init__(
        self, num_units: int, width: int, strides: int = 1, num_heads: int = 8, epsilon: float = 1e-5, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.configure(num_units=num_units, width=width, strides=strides, num_heads=num_heads, epsilon=epsilon)
        self.add_units(AxialBottleneck, width=self.width, num_heads=self.num_heads, epsilon=self.epsilon)


def he_normal():
    """Return a new initializer of the convolutions of axialnet.py."""
    return keras.initializers.VarianceScaling(2.0, "fan_out", "untruncated_normal")
