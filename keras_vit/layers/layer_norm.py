"""LayerNorm: Keras's layer norm over the last axis, as one fused operation on TensorFlow."""

import keras

from keras_vit.compat.kernels import layer_norm


@keras.saving.register_keras_serializable(package="keras_vit")
class LayerNorm(keras.layers.LayerNormalization):
    """Normalise each token over its channels (arXiv 1607.06450, section 3).

    The arguments and results are those of `keras.layers.LayerNormalization`; `predict`, `evaluate` and exported models
    use one fused operation.

    Shapes:
        (..., dim) -> the same
    """

    def call(self, x):
        if self.gamma is None or self.beta is None:
            return super().call(x)
        return layer_norm(x, self.gamma, self.beta, self.epsilon, otherwise=super().call)
