"""The ResNets of the ViT hybrids and of BiT: the standardised convolution, the residual units and their stages."""

from typing import Any

import keras
from keras import ops

from keras_vit import checks
from keras_vit.config.base import one_of
from keras_vit.layers.base import Layer, build_in_sequence
from keras_vit.typing import Size, Tensor

GROUPS = 32


@keras.saving.register_keras_serializable(package="keras_vit")
class StdConv2D(Layer):
    """Convolve with a standardised kernel and no bias (arXiv 1903.10520).

    Each call subtracts from each filter its mean over height, width and input channels, and divides it by its
    population standard deviation, in at least float32 under every dtype policy. The stored kernel (height, width,
    channels, filters) is not standardised, as in checkpoints.

    Args:
        filters: number of output channels.
        kernel_size: height and width of the kernel, or one integer for both.
        strides: vertical and horizontal stride, or one integer for both.
        padding: `same` pads with zeros, so that each side of the output is ceil(side / stride); if the padding is odd,
            the extra row or column is at the bottom or the right (as in TensorFlow). `valid` does not pad.
        epsilon: avoids a division by zero.
        epsilon_form: `deviation`, w / (std + epsilon), as in the official ViT hybrids, or `variance`,
            w / sqrt(variance + epsilon), as in BiT and timm.

    Shapes:
        (batch, height, width, channels) -> (batch, rows, columns, filters)

    Raises:
        ValueError: if a value is out of range or a choice is unknown; at build, if `padding` is `valid` and the
            image is smaller than the kernel.
    """

    own_checks = {"strides": checks.check_pair, "padding": one_of(("same", "valid"))}

    def __init__(
        self,
        filters: int,
        kernel_size: Size,
        strides: Size = (1, 1),
        padding: str = "same",
        epsilon: float = 1e-5,
        epsilon_form: str = "deviation",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.configure(filters=filters, kernel_size=kernel_size, strides=strides, padding=padding)
        self.configure(epsilon=epsilon, epsilon_form=epsilon_form)
        self.input_spec = keras.InputSpec(ndim=4)

    def build(self, input_shape):
        self.compute_output_shape(input_shape)
        shape = (*self.kernel_size, input_shape[-1], self.filters)
        # no autocast, because the kernel is standardised before the cast to the compute dtype
        self.kernel = self.add_weight(shape, "lecun_normal", name="kernel", autocast=False)
        self.input_spec = keras.InputSpec(ndim=4, axes={-1: input_shape[-1]})

    def call(self, images: Tensor) -> Tensor:
        kernel = ops.cast(self.standardised_kernel(), images.dtype)
        return ops.conv(images, kernel, self.strides, self.padding, data_format="channels_last")

    def standardised_kernel(self) -> Tensor:
        """Return the standardised kernel (height, width, channels, filters).

        Its dtype is that of the variable, but at least float32."""
        kernel = ops.cast(self.kernel, keras.backend.result_type(self.variable_dtype, "float32"))
        axes = (0, 1, 2)
        kernel = kernel - ops.mean(kernel, axis=axes, keepdims=True)
        variance = ops.mean(ops.square(kernel), axis=axes, keepdims=True)
        if self.epsilon_form == "variance":
            return kernel * ops.rsqrt(variance + self.epsilon)
        # The square root has no finite gradient at 0, which is the variance of a filter with equal weights.
        return kernel / (ops.sqrt(ops.maximum(variance, 1e-30)) + self.epsilon)

    def compute_output_shape(self, input_shape):
        least = self.kernel_size if self.padding == "valid" else (1, 1)  # rows and columns for one output
        for side, kernel_side in zip(input_shape[1:3], least, strict=True):
            if side is not None and side < kernel_side:
                raise ValueError(f"kernel_size must fit into the image; got {kernel_side} for a side of {side}")
        sides = zip(input_shape[1:3], least, self.strides, strict=True)
        return (input_shape[0], *(n and (n - first) // stride + 1 for n, first, stride in sides), self.filters)


class ResidualUnit(Layer):
    """Apply a residual unit; the base class of units with `width` and `strides`.

    The output has `expansion` times `width` channels."""

    expansion: int

    def needs_projection(self, input_shape: tuple[int | None, ...]) -> bool:
        """Return whether the shortcut needs a projection because the shape changes.

        Args:
            input_shape: shape of the input, (batch, rows, columns, channels).
        """
        return self.strides != 1 or input_shape[-1] != self.expansion * self.width

    def compute_output_shape(self, input_shape):
        sides = (None if side is None else -(-side // self.strides) for side in input_shape[1:3])
        return (input_shape[0], *sides, self.expansion * self.width)


class Stage(Layer):
    """Apply `num_units` units in sequence; the base class of stages.

    The units are the sub-layers `unit_01`, `unit_02` and so on; the first has the stride.

    Shapes:
        as the units
    """

    def add_units(self, unit_class: type[ResidualUnit], **arguments: Any) -> None:
        """Create the units.

        Args:
            unit_class: class of the units.
            **arguments: their arguments except `strides`.
        """
        self.units = [
            self.sublayer(unit_class, strides=1 if index else self.strides, name=f"unit_{index + 1:02d}", **arguments)
            for index in range(self.num_units)
        ]

    def build(self, input_shape):
        build_in_sequence(input_shape, *self.units)

    def call(self, maps: Tensor, training: bool | None = None) -> Tensor:
        for unit in self.units:
            maps = unit(maps, training=training)
        return maps

    def compute_output_shape(self, input_shape):
        return self.units[0].compute_output_shape(input_shape)


class _Unit(ResidualUnit):
    """Base class of both units: three standardised convolutions, three group norms and a shortcut.

    Args:
        width, strides, gn_epsilon, std_epsilon, std_form: as in the units; the defaults are those of `BottleneckUnit`.

    Shapes:
        as in the subclasses

    Raises:
        ValueError: if a value is out of range, a choice is unknown or the groups do not divide the width.
    """

    expansion = 4
    padding = "same"
    norm3_gamma = "ones"

    def __init__(
        self,
        width: int,
        strides: int = 1,
        gn_epsilon: float = 1e-6,
        std_epsilon: float = 1e-5,
        std_form: str = "deviation",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.configure(width=width, strides=strides, gn_epsilon=gn_epsilon, std_epsilon=std_epsilon, std_form=std_form)
        if self.width % GROUPS:
            raise ValueError(f"width must be divisible by the {GROUPS} groups of GroupNorm; got width={self.width}")
        self.conv1 = self._conv(self.width, 1, "conv1")
        self.conv2 = self._conv(self.width, 3, "conv2", self.strides)
        self.conv3 = self._conv(self.width * self.expansion, 1, "conv3")
        self.norm1, self.norm2 = self._norm("norm1"), self._norm("norm2")
        self.norm3 = self._norm("norm3", self.norm3_gamma)
        self.shortcut_conv = None

    def _conv(self, filters, kernel_size, name, strides=1):
        epsilon = (self.std_epsilon, self.std_form)
        return self.sublayer(StdConv2D, filters, kernel_size, strides, self.padding, *epsilon, name=name)

    def _norm(self, name, gamma="ones"):
        norm = keras.layers.GroupNormalization
        return self.sublayer(norm, GROUPS, epsilon=self.gn_epsilon, gamma_initializer=gamma, name=name)

    def _shortcut_conv(self):
        return self._conv(self.width * self.expansion, 1, "shortcut_conv", self.strides)


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

    def build(self, input_shape):
        build_in_sequence(input_shape, self.conv1, self.norm1, self.conv2, self.norm2, self.conv3, self.norm3)
        if self.needs_projection(input_shape):
            self.shortcut_conv, self.shortcut_norm = self._shortcut_conv(), self._norm("shortcut_norm")
            build_in_sequence(input_shape, self.shortcut_conv, self.shortcut_norm)

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

    padding = "valid"

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

    def build(self, input_shape):
        # With a stride and even sides, SAME would pad only the bottom and the right.
        self.pad = self.sublayer(keras.layers.ZeroPadding2D, 1, data_format="channels_last", name="pad")
        first = (self.norm1, self.conv1, self.norm2)
        build_in_sequence(input_shape, *first, self.pad, self.conv2, self.norm3, self.conv3)
        if self.needs_projection(input_shape):
            self.shortcut_conv = self._shortcut_conv()
            self.shortcut_conv.build(input_shape)

    def call(self, images: Tensor) -> Tensor:
        activated = ops.relu(self.norm1(images))
        shortcut = images if self.shortcut_conv is None else self.shortcut_conv(activated)
        branch = ops.relu(self.norm2(self.conv1(activated)))
        branch = self.conv2(self.pad(branch))
        branch = self.conv3(ops.relu(self.norm3(branch)))
        return shortcut + branch


_UNITS = {"post_norm": BottleneckUnit, "pre_activation": PreActivationUnit}


@keras.saving.register_keras_serializable(package="keras_vit")
class ResNetStage(Stage):
    """Apply residual units in sequence; the first may have a stride.

    The stages are those of arXiv 1512.03385, Table 1. The sub-layers are `unit_01`, `unit_02` and so on.

    Args:
        order: `post_norm` for units of the ViT hybrids (`BottleneckUnit`), `pre_activation` for units of BiT
            (`PreActivationUnit`).
        width: number of inner channels of the units, divisible by the 32 groups of GroupNorm; the output has 4 times as
            many.
        num_units: number of residual units.
        strides: stride of the first unit in both directions.
        gn_epsilon: epsilon of every GroupNorm.
        std_epsilon: epsilon of the weight standardisation.
        std_form: what `std_epsilon` is added to, `deviation` or `variance`; see `StdConv2D`.

    Shapes:
        (batch, height, width, channels) -> (batch, ceil(height / strides), ceil(width / strides), 4 * width)

    Raises:
        ValueError: if a value is out of range, a choice is unknown or the groups do not divide the width.
    """

    own_checks = {"order": one_of(_UNITS)}

    def __init__(
        self,
        order: str,
        width: int,
        num_units: int,
        strides: int,
        gn_epsilon: float,
        std_epsilon: float,
        std_form: str,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.configure(order=order, width=width, num_units=num_units, strides=strides)
        self.configure(gn_epsilon=gn_epsilon, std_epsilon=std_epsilon, std_form=std_form)
        self.add_units(_UNITS[order], width=width, gn_epsilon=gn_epsilon, std_epsilon=std_epsilon, std_form=std_form)
