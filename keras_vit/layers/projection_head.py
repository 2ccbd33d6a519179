"""ProjectionHead: the head of self-distillation (DINO), from pooled features to prototypes."""

from typing import Any

import keras
from keras import ops

from keras_vit.layers.base import Layer, build_in_sequence
from keras_vit.layers.forms import gelu
from keras_vit.typing import Tensor

_EPSILON = 1e-12  # smallest norm that a bottleneck is divided by, as in torch's `normalize`


@keras.saving.register_keras_serializable(package="keras_vit")
class ProjectionHead(Layer):
    """Convert features to scores of the prototypes of self-distillation.

    This is the head of DINO (arXiv 2104.14294, section 3.1 and appendix C). Dense layers with exact GELUs between them
    lead to a bottleneck x. It is divided by max(||x||, 1e-12). The last layer has no bias and normalised weights:
    column k of its kernel is `scale[k] * kernel[:, k] / ||kernel[:, k]||`. Initial values are those of
    facebookresearch/dino: N(0, 0.02) and zeros in the dense layers, U(-b, b) with b = 1 / sqrt(bottleneck_dim) in the
    last layer, and a scale of 1.

    Args:
        out_dim: number of prototypes K; 65,536 in the paper.
        hidden_dim: width of the hidden layers.
        bottleneck_dim: width of the bottleneck.
        num_layers: number of dense layers before the last layer.
        norm_last_layer: whether the scale of the last layer stays 1; False trains it.

    Shapes:
        (..., dim) -> (..., out_dim); `bottleneck` gives (..., bottleneck_dim)

    Raises:
        ValueError: if a value is out of range.
    """

    def __init__(
        self,
        out_dim: int = 65536,
        hidden_dim: int = 2048,
        bottleneck_dim: int = 256,
        num_layers: int = 3,
        norm_last_layer: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.configure(out_dim=out_dim, hidden_dim=hidden_dim, bottleneck_dim=bottleneck_dim, num_layers=num_layers)
        self.configure(norm_last_layer=norm_last_layer)
        widths = [self.hidden_dim] * (self.num_layers - 1) + [self.bottleneck_dim]
        normal = keras.initializers.RandomNormal(stddev=0.02)
        self.mlp = [self.dense(width, f"dense_{n}", normal.clone()) for n, width in enumerate(widths)]

    def build(self, input_shape):
        build_in_sequence(input_shape, *self.mlp)
        shape, limit = (self.bottleneck_dim, self.out_dim), self.bottleneck_dim**-0.5
        uniform = keras.initializers.RandomUniform(-limit, limit)
        self.kernel = self.add_weight(name="kernel", shape=shape, initializer=uniform)
        trained = not self.norm_last_layer
        self.scale = self.add_weight(name="scale", shape=shape[1:], initializer="ones", trainable=trained)

    def call(self, features: Tensor) -> Tensor:
        kernel = ops.cast(self.kernel, "float32")
        scales = ops.cast(self.scale, "float32") / ops.sqrt(ops.sum(ops.square(kernel), axis=0))
        return ops.matmul(self.bottleneck(features), ops.cast(kernel * scales, self.compute_dtype))

    def bottleneck(self, features: Tensor) -> Tensor:
        """Return the bottleneck, divided by its norm.

        Args:
            features: (..., dim).
        """
        x = self.mlp[0](features)
        for dense in self.mlp[1:]:
            x = dense(gelu(x, False))
        x = ops.cast(x, "float32")
        squares = ops.sum(ops.square(x), axis=-1, keepdims=True)
        return ops.cast(x * ops.rsqrt(ops.maximum(squares, _EPSILON**2)), self.compute_dtype)

    def compute_output_shape(self, input_shape):
        return (*input_shape[:-1], self.out_dim)
