"""The residual units of the ResNets: `BottleneckUnit` of the ViT hybrids and `PreActivationUnit` of BiT."""

from typing import Any

import keras
from keras import ops

from keras_vit import checks
from keras_vit.layers.std_conv import EPSILON_FORMS, StdConv2D
from keras_vit.typing import Tensor

EXPANSION = 4
GROUPS = 32


class _Unit(keras.layers.Layer):
    """Base class of both units: three standardised convolutions, three group norms and a shortcut."""

    norm3_gamma = "ones"

    def __init__(
        self, width: int, strides: int, gn_epsilon: float, std_epsilon: float, std_form: str, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.width = checks.check_integer("width", width)
        self.strides = checks.check_integer("strides", strides)
        self.gn_epsilon = checks.check_positive("gn_epsilon", gn_epsilon)
        self.std_epsilon = checks.check_positive("std_epsilon", std_epsilon)
        self.std_form = checks.check_choice("std_form", std_form, EPSILON_FORMS)
        if width % GROUPS:
            raise ValueError(f"width must be divisible by the {GROUPS} groups of GroupNorm; got width={width}")
        self.conv1 = self._conv(width, 1, "conv1")
        self.conv2 = self._conv(width, 3, "conv2", strides)
        self.conv3 = self._conv(width * EXPANSION, 1, "conv3")
        self.norm1, self.norm2 = self._norm("norm1"), self._norm("norm2")
        self.norm3 = self._norm("norm3", self.norm3_gamma)
        self.shortcut_conv = None

    def _conv(self, filters, kernel_size, name, strides=1, padding="same"):
        return StdConv2D(
            filters,
            kernel_size,
            strides,
            padding,
            self.std_epsilon,
            self.std_form,
            dtype=self.dtype_policy,
            name=name,
        )

    def _norm(self, name, gamma_initializer="ones"):
        return keras.layers.GroupNormalization(
            GROUPS, epsilon=self.gn_epsilon, gamma_initializer=gamma_initializer, dtype=self.dtype_policy, name=name
        )

    def _has_projection(self, input_shape):
        """Return whether the shortcut needs a projection because the shape changes."""
        return self.strides != 1 or input_shape[-1] != self.width * EXPANSION

    def compute_output_shape(self, input_shape):
        sides = (None if side is None else -(-side // self.strides) for side in input_shape[1:3])
        return (input_shape[0], *sides, self.width * EXPANSION)

    def get_config(self):
        return {
            **super().get_config(),
            "width": self.width,
            "strides": self.strides,
            "gn_epsilon": self.gn_epsilon,
            "std_epsilon": self.std_epsilon,
            "std_form": self.std_form,
        }


@keras.saving.register_keras_serializable(package="keras_vit")
class BottleneckUnit(_Unit):
    """Apply the residual unit of a hybrid ViT's ResNet (arXiv 1512.03385, v1.5).

    The unit is relu(GN(conv1x1)), relu(GN(conv3x3)), GN(conv1x1), add the shortcut, relu. All convolutions are weight
    standardised, and the 3 x 3 convolution has the stride. If the stride is not 1 or the channels change, the shortcut
    is a normalised 1 x 1 convolution. The scale of the last norm starts at 0, so the residual branch does too (the
    official code of arXiv 2010.11929, models_resnet.py).

    Args:
        width: number of inner channels, divisible by the 32 groups; the output has 4 times as many.
        strides: stride of the 3 x 3 convolution in both directions, with TensorFlow's SAME padding.
        gn_epsilon: epsilon of every GroupNorm.
        std_epsilon: epsilon of the weight standardisation.
        std_form: what `std_epsilon` is added to, `deviation` or `variance`; see `StdConv2D`.

    Shapes:
        (batch, height, width, channels) -> (batch, ceil(height / strides), ceil(width / strides), 4 * width)

    Raises:
        ValueError: if a value is out of range, a choice is unknown or the groups do not divide the width.
    """

    norm3_gamma = "zeros"

    def __init__(
        self,
        width: int,
        strides: int = 1,
        gn_epsilon: float = 1e-6,
        std_epsilon: float = 1e-5,
        std_form: str = "deviation",
        **kwargs: Any,
    ) -> None:
        super().__init__(width, strides, gn_epsilon, std_epsilon, std_form, **kwargs)

    def build(self, input_shape):
        shape = input_shape
        for conv, norm in ((self.conv1, self.norm1), (self.conv2, self.norm2), (self.conv3, self.norm3)):
            conv.build(shape)
            shape = conv.compute_output_shape(shape)
            norm.build(shape)
        if self._has_projection(input_shape):
            self.shortcut_conv = self._conv(self.width * EXPANSION, 1, "shortcut_conv", self.strides)
            self.shortcut_norm = self._norm("shortcut_norm")
            self.shortcut_conv.build(input_shape)
            self.shortcut_norm.build(shape)
        self.built = True

    def call(self, images: Tensor) -> Tensor:
        branch = ops.relu(self.norm1(self.conv1(images)))
        branch = ops.relu(self.norm2(self.conv2(branch)))
        branch = self.norm3(self.conv3(branch))
        shortcut = images
        if self.shortcut_conv is not None:
            shortcut = self.shortcut_norm(self.shortcut_conv(images))
        return ops.relu(shortcut + branch)


@keras.saving.register_keras_serializable(package="keras_vit")
class PreActivationUnit(_Unit):
    """Apply the pre-activation unit of BiT's ResNet-v2 (arXiv 1912.11370).

    It is unit (e) of arXiv 1603.05027, Fig. 4: conv(relu(GN)) three times, 1 x 1, 3 x 3 and 1 x 1, added to the
    shortcut. The 3 x 3 convolution has the stride and pads every side by one. If the stride is not 1 or the channels
    change, the shortcut is a 1 x 1 convolution without norm; its input is the output of the unit's first GN and ReLU.

    Args:
        width: number of inner channels, divisible by the 32 groups; the output has 4 times as many.
        strides: stride of the 3 x 3 convolution in both directions.
        gn_epsilon: epsilon of every GroupNorm.
        std_epsilon: epsilon of the weight standardisation.
        std_form: what `std_epsilon` is added to, `deviation` or `variance`; see `StdConv2D`.

    Shapes:
        (batch, height, width, channels), channels divisible by the 32 groups
        -> (batch, ceil(height / strides), ceil(width / strides), 4 * width)

    Raises:
        ValueError: if a value is out of range, a choice is unknown or the groups do not divide the width.
    """

    def __init__(
        self,
        width: int,
        strides: int = 1,
        gn_epsilon: float = 1e-5,
        std_epsilon: float = 1e-10,
        std_form: str = "variance",
        **kwargs: Any,
    ) -> None:
        super().__init__(width, strides, gn_epsilon, std_epsilon, std_form, **kwargs)

    def _conv(self, filters, kernel_size, name, strides=1, padding="valid"):
        return super()._conv(filters, kernel_size, name, strides, padding)

    def build(self, input_shape):
        inner_shape = (*input_shape[:3], self.width)
        output_shape = self.compute_output_shape(input_shape)
        self.norm1.build(input_shape)
        self.conv1.build(input_shape)
        self.norm2.build(inner_shape)
        self.conv2.build(_padded(inner_shape))
        self.norm3.build((*output_shape[:3], self.width))
        self.conv3.build((*output_shape[:3], self.width))
        if self._has_projection(input_shape):
            self.shortcut_conv = self._conv(self.width * EXPANSION, 1, "shortcut_conv", self.strides)
            self.shortcut_conv.build(input_shape)
        self.built = True

    def call(self, images: Tensor) -> Tensor:
        activated = ops.relu(self.norm1(images))
        shortcut = images if self.shortcut_conv is None else self.shortcut_conv(activated)
        branch = ops.relu(self.norm2(self.conv1(activated)))
        # With a stride and even sides, SAME would pad only the bottom and the right.
        branch = self.conv2(ops.pad(branch, ((0, 0), (1, 1), (1, 1), (0, 0))))
        branch = self.conv3(ops.relu(self.norm3(branch)))
        return shortcut + branch


def _padded(shape):
    sides = (None if side is None else side + 2 for side in shape[1:3])
    return (shape[0], *sides, shape[3])
