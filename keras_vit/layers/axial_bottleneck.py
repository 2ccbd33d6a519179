"""AxialBottleneck and AxialStage: the residual unit of the AxialResNet and its stages."""

from typing import Any

import keras
from keras import ops

from keras_vit.config.arguments import one_of
from keras_vit.layers.axial_attention import AxialAttention, batch_norm
from keras_vit.layers.base import build_in_sequence
from keras_vit.layers.bottleneck import ResidualUnit, Stage
from keras_vit.typing import Tensor

STRIDES = (1, 2)

HE_NORMAL = {"scale": 2.0, "mode": "fan_out", "distribution": "untruncated_normal"}


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
        ValueError: if a value is out of range or the heads do not divide the width; at build, if the size of the map is
            unknown.
    """

    expansion = 2  # `AxialBlock.expansion` in axialnet.py
    own_checks = {"strides": one_of(STRIDES)}

    def __init__(self, width: int, strides: int = 1, num_heads: int = 8, epsilon: float = 1e-5, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.configure(width=width, strides=strides, num_heads=num_heads, epsilon=epsilon)
        if self.width % (2 * self.num_heads):  # keys have half of the attention channels
            raise ValueError(f"width must be divisible by twice num_heads; got {width=}, {num_heads=}")
        # Dense layers are 1 x 1 convolutions that LoRA and quantisation support.
        self.down = self.dense(self.width, "down", _he_normal(), use_bias=False)
        self.down_norm = self._norm("down_norm")
        self.height_attention, self.width_attention = (
            self.sublayer(AxialAttention, axis, self.num_heads, self.epsilon, name=f"{axis}_attention")
            for axis in ("height", "width")
        )
        self.pool = self.sublayer(
            keras.layers.AveragePooling2D, strides, padding="same", data_format="channels_last", name="pool"
        )
        self.up = self.dense(self.expansion * self.width, "up", _he_normal(), use_bias=False)
        self.up_norm = self._norm("up_norm", "zeros")

    def _norm(self, name, gamma_initializer="ones"):
        return self.sublayer(batch_norm, name=name, epsilon=self.epsilon, gamma_initializer=gamma_initializer)

    def build(self, input_shape):
        self.has_projection = self.needs_projection(input_shape)
        if self.has_projection:
            filters = self.expansion * self.width
            self.shortcut = self.conv(filters, 1, "shortcut", _he_normal(), strides=self.strides, use_bias=False)
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

    own_checks = {"strides": one_of(STRIDES)}

    def __init__(
        self, num_units: int, width: int, strides: int = 1, num_heads: int = 8, epsilon: float = 1e-5, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.configure(num_units=num_units, width=width, strides=strides, num_heads=num_heads, epsilon=epsilon)
        self.add_units(AxialBottleneck, width=self.width, num_heads=self.num_heads, epsilon=self.epsilon)


def _he_normal():
    return keras.initializers.VarianceScaling(**HE_NORMAL)
