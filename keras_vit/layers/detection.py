"""Detection tokens after the patches, and their positions (YOLOS, arXiv 2106.00666)."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.layers.base import Layer
from keras_vit.layers.embedding import AddPositionEmbs
from keras_vit.typing import Tensor


@keras.saving.register_keras_serializable(package="keras_vit")
class DetectionTokens(Layer):
    """Append learned tokens to a sequence.

    Args:
        num_tokens: number of learned tokens.

    Shapes:
        (batch, tokens, dim) -> (batch, tokens + num_tokens, dim)

    Raises:
        ValueError: if a value is out of range.
    """

    def __init__(self, num_tokens: int = 100, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.configure(num_tokens=num_tokens)

    def build(self, input_shape):
        self.tokens = self.normal_weight("tokens", (1, self.num_tokens, input_shape[-1]))

    def call(self, tokens: Tensor) -> Tensor:
        return ops.concatenate([tokens, ops.zeros_like(tokens[:, :1]) + ops.cast(self.tokens, tokens.dtype)], axis=1)

    def compute_output_shape(self, input_shape):
        batch, tokens, dim = input_shape
        return (batch, tokens and tokens + self.num_tokens, dim)


@keras.saving.register_keras_serializable(package="keras_vit")
class DetectionPositions(AddPositionEmbs):
    """Add learned positions to a sequence that ends in detection tokens.

    The table has a row for the class token, for each place of the grid, and for each detection token. The rows of the
    grid are resized in every call; the others are kept.

    Args:
        num_tokens: number of detection tokens at the end.
        grid_size: (rows, columns) of the table.
        **kwargs: other arguments of `AddPositionEmbs`.

    Shapes:
        (batch, 1 + patches + num_tokens, dim), and integers (1, patches, 4) from `PatchCoordinates` -> the first

    Raises:
        ValueError: if a value is out of range.
    """

    def __init__(self, num_tokens: int, grid_size: Any, **kwargs: Any) -> None:
        super().__init__(grid_size=grid_size, **kwargs)
        self.configure(num_tokens=num_tokens)

    def build(self, tokens_shape, coordinates_shape=None):
        self.built_grid = rows, columns = self.grid_size
        length = self.num_class_tokens + rows * columns + self.num_tokens
        self.embedding = self.normal_weight("embedding", (1, length, tokens_shape[-1]))

    def _patches(self, coordinates):
        """Return the positions of the patches and of the detection tokens."""
        table = ops.convert_to_tensor(self.embedding)
        return ops.concatenate([super()._patches(coordinates), table[:, -self.num_tokens :]], axis=1)

    def _grid_rows(self):
        return self.embedding[:, self.num_class_tokens : self.embedding.shape[1] - self.num_tokens]

    def resized(self, variable: Any, table: np.ndarray, method: str, old_size: Any = None) -> np.ndarray:
        before, last = np.split(table, [table.shape[1] - self.num_tokens], axis=1)
        return np.concatenate([super().resized(variable, before, method, old_size), last], axis=1)
