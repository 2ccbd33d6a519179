"""PatchPrediction: a dense layer on the tokens of selected patches, the head of masked patch prediction."""

import math

import keras
from keras import ops

from keras_vit import checks
from keras_vit.layers.patch_corruption import take_tokens


@keras.saving.register_keras_serializable(package="keras_vit")
class PatchPrediction(keras.layers.Layer):
    """Predict a value for each of some patches from its token.

    The projection starts at zero, as classification heads do.

    Args:
        prediction_shape: shape of the prediction for one patch.
        num_prefix_tokens: number of class, distillation and register tokens at the start of the sequence.

    Shapes:
        (batch, num_prefix_tokens + patches, dim), and the indices of the patches (batch, places) -> (batch, places,
        *prediction_shape)
    """

    def __init__(self, prediction_shape, num_prefix_tokens=0, **kwargs):
        super().__init__(**kwargs)
        self.prediction_shape = tuple(prediction_shape)
        self.num_prefix_tokens = checks.check_integer("num_prefix_tokens", num_prefix_tokens, minimum=0)
        units = math.prod(self.prediction_shape)
        self.projection = keras.layers.Dense(
            units, kernel_initializer="zeros", dtype=self.dtype_policy, name="projection"
        )

    def build(self, tokens_shape, places_shape):
        self.projection.build((places_shape[0], places_shape[1], tokens_shape[-1]))
        self.built = True

    def call(self, tokens, places):
        outputs = self.projection(take_tokens(tokens[:, self.num_prefix_tokens :], places))
        return ops.reshape(outputs, (-1, places.shape[1], *self.prediction_shape))

    def compute_output_shape(self, tokens_shape, places_shape):
        return (places_shape[0], places_shape[1], *self.prediction_shape)

    def get_config(self):
        return {
            **super().get_config(),
            "prediction_shape": self.prediction_shape,
            "num_prefix_tokens": self.num_prefix_tokens,
        }
