"""AxialBottleneck and AxialStage: the residual unit of the AxialResNet and its stages."""

from typing import Any

import keras
from keras import ops

from keras_vit import checks
from keras_vit.layers.axial_attention import AxialAttention, batch_norm
from keras_vit.typing import Tensor

STRIDES = (1, 2)
EXPANSION = 2  # output channels per attention channel: `AxialBlock.expansion` in axialnet.py
HE_NORMAL = {"scale": 2.0, "mode": "fan_out", "distribution": "untruncated_normal"}


@keras.saving.register_keras_serializable(package="keras_vit")
class AxialBottleneck(keras.layers.Layer):
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

    def __init__(self, width: int, strides: int = 1, num_heads: int = 8, epsilon: float = 1e-5, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.width = checks.check_integer("width", width)
        self.strides = checks.check_choice("strides", strides, STRIDES)
        self.num_heads = check_heads(num_heads, self.width)
        self.epsilon = checks.check_positive("epsilon", epsilon)
        common = {"dtype": self.dtype_policy}
        norms = {"epsilon": self.epsilon, **common}
        self.down = _dense(self.width, name="down", **common)
        self.down_norm = batch_norm(name="down_norm", **norms)
        self.height_attention = AxialAttention("height", num_heads, name="height_attention", **norms)
        self.width_attention = AxialAttention("width", num_heads, name="width_attention", **norms)
        self.pool = keras.layers.AveragePooling2D(
            self.strides, padding="same", data_format="channels_last", name="pool", **common
        )
        self.up = _dense(EXPANSION * self.width, name="up", **common)
        self.up_norm = batch_norm(name="up_norm", gamma_initializer="zeros", **norms)

    def build(self, input_shape):
        inner = (*input_shape[:3], self.width)
        output = self.compute_output_shape(input_shape)
        pooled = (*output[:3], self.width)
        steps = [(self.down, input_shape), (self.down_norm, inner), (self.height_attention, inner)]
        steps += [(self.width_attention, inner), (self.pool, inner), (self.up, pooled), (self.up_norm, output)]
        self.has_projection = self.strides != 1 or input_shape[-1] != output[-1]
        if self.has_projection:
            common = {"dtype": self.dtype_policy}
            self.shortcut = keras.layers.Conv2D(
                output[-1],
                1,
                strides=self.strides,
                use_bias=False,
                data_format="channels_last",
                kernel_initializer=keras.initializers.VarianceScaling(**HE_NORMAL),
                name="shortcut",
                **common,
            )
            self.shortcut_norm = batch_norm(name="shortcut_norm", epsilon=self.epsilon, **common)
            steps += [(self.shortcut, input_shape), (self.shortcut_norm, output)]
        for layer, shape in steps:
            layer.build(shape)
        self.built = True

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

    def compute_output_shape(self, input_shape):
        batch, *sides, _ = input_shape
        sides = [side if side is None else -(-side // self.strides) for side in sides]
        return (batch, *sides, EXPANSION * self.width)

    def get_config(self):
        return {
            **super().get_config(),
            "width": self.width,
            "strides": self.strides,
            "num_heads": self.num_heads,
            "epsilon": self.epsilon,
        }


@keras.saving.register_keras_serializable(package="keras_vit")
class AxialStage(keras.layers.Layer):
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
        self.num_units = checks.check_integer("num_units", num_units)
        self.width = checks.check_integer("width", width)
        self.strides = checks.check_choice("strides", strides, STRIDES)
        self.num_heads = check_heads(num_heads, self.width)
        self.epsilon = checks.check_positive("epsilon", epsilon)
        self.units = [
            AxialBottleneck(
                width,
                strides if index == 1 else 1,
                num_heads,
                epsilon,
                dtype=self.dtype_policy,
                name=f"unit_{index:02d}",
            )
            for index in range(1, self.num_units + 1)
        ]

    def build(self, input_shape):
        for unit in self.units:
            unit.build(input_shape)
            input_shape = unit.compute_output_shape(input_shape)
        self.built = True

    def call(self, maps: Tensor, training: bool | None = None) -> Tensor:
        for unit in self.units:
            maps = unit(maps, training=training)
        return maps

    def compute_output_shape(self, input_shape):
        return self.units[0].compute_output_shape(input_shape)

    def get_config(self):
        return {
            **super().get_config(),
            "num_units": self.num_units,
            "width": self.width,
            "strides": self.strides,
            "num_heads": self.num_heads,
            "epsilon": self.epsilon,
        }


def check_heads(num_heads, width):
    """Return `num_heads` if that many heads divide the keys, which have half of `width`."""
    checks.check_integer("num_heads", num_heads)
    if width % (2 * num_heads):
        raise ValueError(f"width must be divisible by twice num_heads; got width={width}, num_heads={num_heads}")
    return num_heads


def _dense(units, **kwargs):
    """Return a 1 x 1 convolution as a dense layer, which LoRA and quantisation support."""
    initializer = keras.initializers.VarianceScaling(**HE_NORMAL)
    return keras.layers.Dense(units, use_bias=False, kernel_initializer=initializer, **kwargs)
