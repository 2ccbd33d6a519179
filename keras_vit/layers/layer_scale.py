"""LayerScale: a learned factor per channel on a residual branch."""

from typing import Any

import keras

from keras_vit import checks
from keras_vit.typing import Tensor


@keras.saving.register_keras_serializable(package="keras_vit")
class LayerScale(keras.layers.Layer):
    """Multiply each channel by a learned factor (arXiv 2103.17239, Eq. 4).

    Args:
        init: initial value of every factor, above 0 (DeiT-III: 1e-4).

    Shapes:
        (..., dim) -> the same

    Raises:
        ValueError: if a value is out of range.
    """

    def __init__(self, init: float = 1e-4, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.init = checks.check_positive("init", init)

    def build(self, input_shape):
        initializer = keras.initializers.Constant(self.init)
        self.gamma = self.add_weight(name="gamma", shape=(input_shape[-1],), initializer=initializer)
        self.built = True

    def call(self, x: Tensor) -> Tensor:
        return x * keras.ops.cast(self.gamma, x.dtype)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {**super().get_config(), "init": self.init}
