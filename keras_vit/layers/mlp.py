"""MlpBlock: the feed-forward part of a transformer block."""

from typing import Any

import keras

from keras_vit.compat.kernels import gelu, on_rows, project
from keras_vit.layers.base import Layer, build_in_sequence
from keras_vit.typing import Tensor


@keras.saving.register_keras_serializable(package="keras_vit")
class MlpBlock(Layer):
    """Apply two dense layers with GELU between them (arXiv 2010.11929, section 3.1).

    Dropout follows each dense layer.

    Args:
        mlp_dim: width of the hidden layer; the output has the width of the input.
        dropout_rate: dropout rate in [0, 1).
        gelu: `tanh` (approximate, the official code) or `erf` (exact; timm, Hugging Face, DeiT).

    Shapes:
        (batch, tokens, dim) -> the same

    Raises:
        ValueError: if a value is out of range or a choice is unknown.
    """

    def __init__(self, mlp_dim: int, dropout_rate: float = 0.0, gelu: str = "tanh", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.configure(mlp_dim=mlp_dim, dropout_rate=dropout_rate, gelu=gelu)

    def build(self, input_shape):
        self.dense1 = self._dense(self.mlp_dim, "dense1")
        self.dropout = self.sublayer(keras.layers.Dropout, self.dropout_rate, name="dropout")
        self.dense2 = self._dense(input_shape[-1], "dense2")
        build_in_sequence(input_shape, self.dense1, self.dropout, self.dense2)

    def _dense(self, units, name):
        return self.dense(units, name, bias_initializer=keras.initializers.RandomNormal(stddev=1e-6))

    def call(self, x: Tensor, training: bool | None = None) -> Tensor:
        return on_rows(lambda rows: self._both_layers(rows, training), x)

    def _both_layers(self, x, training):
        x = project(self.dense1, x)
        x = gelu(x, self.gelu == "tanh", training)
        x = self.dropout(x, training=training)
        x = project(self.dense2, x)
        return self.dropout(x, training=training)
