"""Neck: the convolutions of SAM between its blocks and its output."""

from typing import Any

import keras

from keras_vit.layers.base import Layer, build_in_sequence
from keras_vit.layers.forms import LayerNorm
from keras_vit.typing import Tensor


@keras.saving.register_keras_serializable(package="keras_vit")
class Neck(Layer):
    """Apply two convolutions, each with a norm, to a map.

    This is the neck of SAM (arXiv 2304.02643, appendix A): a 1 x 1 convolution, a norm over the channels, a 3 x 3
    convolution with padding by zeros, and a norm; the convolutions have no biases.

    Args:
        filters: number of output channels.
        epsilon: epsilon of the norms.

    Shapes:
        (batch, rows, columns, dim) -> (batch, rows, columns, filters)

    Raises:
        ValueError: if a value is out of range.
    """

    def __init__(self, filters: int = 256, epsilon: float = 1e-6, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.configure(filters=filters, epsilon=epsilon)
        self.conv1 = self.conv(filters, 1, "conv1", "glorot_uniform", use_bias=False, padding="same")
        self.norm1 = self.sublayer(LayerNorm, epsilon=epsilon, name="norm1")
        self.conv2 = self.conv(filters, 3, "conv2", "glorot_uniform", use_bias=False, padding="same")
        self.norm2 = self.sublayer(LayerNorm, epsilon=epsilon, name="norm2")

    def build(self, input_shape):
        build_in_sequence(input_shape, self.conv1, self.norm1, self.conv2, self.norm2)

    def call(self, maps: Tensor) -> Tensor:
        return self.norm2(self.conv2(self.norm1(self.conv1(maps))))

    def compute_output_shape(self, input_shape):
        return (*input_shape[:-1], self.filters)
