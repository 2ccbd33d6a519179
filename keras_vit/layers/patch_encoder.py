"""PatchEncoder: image -> patch tokens."""

from typing import Any

import keras
from keras import ops

from keras_vit import checks
from keras_vit.layers.base import Layer, known_map
from keras_vit.typing import Size, Tensor


@keras.saving.register_keras_serializable(package="keras_vit")
class PatchEncoder(Layer):
    """Split an image into patches and project each to a token.

    The tokens are x_p E of Eq. 1 in arXiv 2010.11929.

    The projection is a convolution with equal kernel and stride; its kernel has the official layout (height, width,
    channels, hidden_dim). Tokens are in raster order, row by row.

    Args:
        patch_size: height and width of a patch in pixels, or one integer for both.
        hidden_dim: width D of the tokens.

    Shapes:
        (batch, height, width, channels) -> (batch, height / patch height * width / patch width, hidden_dim)

    Raises:
        ValueError: if a value is out of range; at build, if the image size is unknown or not divisible by the patch
            size.
    """

    def __init__(self, patch_size: Size, hidden_dim: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.configure(patch_size=patch_size, hidden_dim=hidden_dim)
        self.projection = self.conv(
            self.hidden_dim, self.patch_size, "projection", "lecun_normal", strides=self.patch_size
        )

    def build(self, input_shape):
        self.grid_size(input_shape)
        self.projection.build(input_shape)

    def call(self, images: Tensor) -> Tensor:
        rows, columns = self.grid_size(images.shape)
        patches = self.projection(images)  # (batch, rows, columns, hidden_dim)
        return ops.reshape(patches, (-1, rows * columns, self.hidden_dim))

    def grid_size(self, input_shape: tuple[int, ...]) -> tuple[int, int]:
        """Return the (rows, columns) of the patch grid.

        Args:
            input_shape: shape of the images, (batch, height, width, channels).

        Raises:
            ValueError: if height or width is unknown or not divisible by the patch size.
        """
        size = known_map(self, input_shape)[:2]
        checks.check_divisible("image_size", size, "patch_size", self.patch_size)
        return size[0] // self.patch_size[0], size[1] // self.patch_size[1]

    def compute_output_shape(self, input_shape):
        rows, columns = self.grid_size(input_shape)
        return (input_shape[0], rows * columns, self.hidden_dim)
