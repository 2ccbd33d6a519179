"""DropPath: stochastic depth."""

from typing import Any

import keras

from keras_vit import checks


@keras.saving.register_keras_serializable(package="keras_vit")
class DropPath(keras.layers.Dropout):
    """Drop the residual branch of random samples in training (arXiv 1603.09382).

    This is stochastic depth. The remaining branches are divided by `1 - rate`, so inference needs no scaling.

    Args:
        rate: share of samples whose branch is dropped, in [0, 1).
        seed: integer for reproducible drops.

    Shapes:
        (batch, tokens, dim) -> the same

    Raises:
        ValueError: if a value is out of range.
    """

    def __init__(self, rate: float, seed: int | None = None, **kwargs: Any) -> None:
        super().__init__(checks.check_rate("rate", rate), noise_shape=(None, 1, 1), seed=seed, **kwargs)

    def get_config(self):
        config = super().get_config()
        del config["noise_shape"]
        return config
