"""LayerNorm: Keras's layer norm over the last axis, as one operation where TensorFlow has it."""

import keras

from keras_vit.compat import layer_norm


@keras.saving.register_keras_serializable(package="keras_vit")
class LayerNorm(keras.layers.LayerNormalization):
    """Normalises each token over its channels (arXiv 1607.06450, section 3).

    The same as `keras.layers.LayerNormalization`, which see for the arguments; in `predict`, `evaluate` and exported
    SavedModels TensorFlow computes it in one pass.

    Shapes:
        (..., dim) -> the same
    """

    def call(self, x):
        if layer_norm.is_fused() and self.gamma is not None and self.beta is not None and len(x.shape) in (2, 3):
            return layer_norm.layer_norm(x, self.gamma, self.beta, self.epsilon)
        return super().call(x)
