"""Upscale: transposed convolutions that double a map, as in EoMT (arXiv 2503.19108)."""

from typing import Any

import keras

from keras_vit.config.base import one_of
from keras_vit.layers.base import Layer, build_in_sequence
from keras_vit.layers.forms import LayerNorm
from keras_vit.layers.perceptron import ACTIVATIONS
from keras_vit.typing import Tensor

_EPSILON = 1e-6  # of the norm, as in the authors' code


@keras.saving.register_keras_serializable(package="keras_vit")
class Upscale(Layer):
    """Double a map: a transposed convolution with stride 2, an activation, a depthwise 3 x 3 convolution and a norm.

    The depthwise convolution has no bias; the norm is over the channels (epsilon 1e-6).

    Args:
        activation: as in `Perceptron`.

    Shapes:
        (batch, rows, columns, dim) -> (batch, 2 * rows, 2 * columns, dim)

    Raises:
        ValueError: if the activation is unknown.
    """

    own_checks = {"activation": one_of(tuple(ACTIVATIONS))}

    def __init__(self, activation: str = "gelu", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.configure(activation=activation)

    def build(self, input_shape):
        own, dim = {"data_format": "channels_last"}, input_shape[-1]
        self.conv1 = self.sublayer(keras.layers.Conv2DTranspose, dim, 2, 2, name="conv1", **own)
        self.conv2 = self.sublayer(keras.layers.DepthwiseConv2D, 3, padding="same", use_bias=False, name="conv2", **own)
        self.norm = self.sublayer(LayerNorm, epsilon=_EPSILON, name="norm")
        build_in_sequence(input_shape, self.conv1, self.conv2, self.norm)

    def call(self, maps: Tensor) -> Tensor:
        return self.norm(self.conv2(ACTIVATIONS[self.activation](self.conv1(maps))))

    def compute_output_shape(self, input_shape):
        batch, rows, columns, dim = input_shape
        return (batch, rows and 2 * rows, columns and 2 * columns, dim)
