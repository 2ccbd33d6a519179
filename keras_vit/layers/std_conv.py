"""StdConv2D: convolution with weight standardisation."""

from typing import Any

import keras
from keras import ops

from keras_vit import checks
from keras_vit.config.arguments import one_of
from keras_vit.layers.base import Layer
from keras_vit.typing import Size, Tensor


@keras.saving.register_keras_serializable(package="keras_vit")
class StdConv2D(Layer):
    """Convolve with a standardised kernel and no bias (arXiv 1903.10520).

    Each call subtracts from each filter its mean over height, width and input channels, and divides it by its
    population standard deviation, in float32 under every dtype policy. The stored kernel (height, width, channels,
    filters) is not standardised, as in checkpoints.

    Args:
        filters: number of output channels.
        kernel_size: height and width of the kernel, or one integer for both.
        strides: vertical and horizontal stride, or one integer for both.
        padding: `same` pads with zeros to ceil(side / stride) outputs, any odd zero at the bottom and the right (as
            in TensorFlow); `valid` does not pad.
        epsilon: avoids a division by zero.
        epsilon_form: `deviation`, w / (std + epsilon), as in the official ViT hybrids, or `variance`,
            w / sqrt(variance + epsilon), as in BiT and timm.

    Shapes:
        (batch, height, width, channels) -> (batch, rows, columns, filters)

    Raises:
        ValueError: if a value is out of range or a choice is unknown; at build, if `valid` padding meets an image
            smaller than the kernel.
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
        """Return the standardised kernel (height, width, channels, filters), in float32."""
        kernel = ops.cast(self.kernel, keras.backend.result_type(self.variable_dtype, "float32"))
        axes = (0, 1, 2)
        kernel = kernel - ops.mean(kernel, axis=axes, keepdims=True)
        variance = ops.mean(ops.square(kernel), axis=axes, keepdims=True)
        if self.epsilon_form == "variance":
            return kernel * ops.rsqrt(variance + self.epsilon)
        # The square root has no gradient at 0, the variance of a filter with equal weights.
        return kernel / (ops.sqrt(ops.maximum(variance, 1e-30)) + self.epsilon)

    def compute_output_shape(self, input_shape):
        sides = zip(input_shape[1:3], self.kernel_size, self.strides, strict=True)
        return (input_shape[0], *(self._output_side(*side) for side in sides), self.filters)

    def _output_side(self, side, kernel_side, stride):
        if side is None:
            return None
        if self.padding == "same":
            return -(-side // stride)
        if side < kernel_side:
            raise ValueError(f"kernel_size must fit into the image; got {kernel_side} for a side of {side}")
        return (side - kernel_side) // stride + 1
