"""PatchMerging: halves the rows and columns of a map and doubles its width."""

from typing import Any

import keras
from keras import ops

from keras_vit import checks
from keras_vit.compat.kernels import on_rows
from keras_vit.layers.layer_norm import LayerNorm
from keras_vit.typing import Tensor


@keras.saving.register_keras_serializable(package="keras_vit")
class PatchMerging(keras.layers.Layer):
    """Merge each 2 x 2 tokens into one (arXiv 2103.14030, section 3.1).

    The layer concatenates the four tokens, normalises the result and projects it linearly to twice the width. The order
    of the four is upper left, lower left, upper right, lower right. Odd sides are padded with zeros at the bottom and
    the right.

    Args:
        epsilon: epsilon of the layer norm.

    Shapes:
        (batch, rows, columns, dim) -> (batch, rows / 2, columns / 2, 2 * dim), sides rounded up

    Raises:
        ValueError: if a value is out of range; at build, if the size of the map is unknown.
    """

    def __init__(self, epsilon: float = 1e-5, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.epsilon = checks.check_positive("epsilon", epsilon)
        self.norm = LayerNorm(epsilon=epsilon, dtype=self.dtype_policy, name="norm")

    def build(self, input_shape):
        *size, width = self.compute_output_shape(input_shape)
        joined_shape = (*size, 2 * width)
        self.norm.build(joined_shape)
        self.reduction = keras.layers.Dense(
            width,
            use_bias=False,
            kernel_initializer=keras.initializers.TruncatedNormal(stddev=0.02),
            dtype=self.dtype_policy,
            name="reduction",
        )
        self.reduction.build(joined_shape)
        self.built = True

    def call(self, maps: Tensor) -> Tensor:
        _, rows, columns, dim = maps.shape
        if rows % 2 or columns % 2:
            maps = ops.pad(maps, ((0, 0), (0, rows % 2), (0, columns % 2), (0, 0)))
        rows, columns = (rows + 1) // 2, (columns + 1) // 2
        joined = ops.transpose(ops.reshape(maps, (-1, rows, 2, columns, 2, dim)), (0, 1, 3, 4, 2, 5))
        return on_rows(self.reduction, self.norm(ops.reshape(joined, (-1, rows, columns, 4 * dim))))

    def compute_output_shape(self, input_shape):
        if len(input_shape) != 4 or None in input_shape[1:]:
            raise ValueError(
                f"PatchMerging needs maps of shape (batch, rows, columns, dim) with known size; got {input_shape}"
            )
        batch, rows, columns, dim = input_shape
        return (batch, (rows + 1) // 2, (columns + 1) // 2, 2 * dim)

    def get_config(self):
        return {**super().get_config(), "epsilon": self.epsilon}
