"""PatchPlaces and RepeatedPrefix: sequences of patches of images in their own aspect ratios (NaViT, NaFlex)."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit.layers.base import Layer
from keras_vit.layers.forms import check_in_call
from keras_vit.typing import Tensor

PADDING = (0, 0, 1, 1, -1)  # the coordinates of a place without patch
_MAX_SIDE = 65_536  # rows or columns of a grid


class _OfSequences(Layer):
    """A layer of sequences of several images, each with class tokens and registers of its own."""

    def __init__(self, images_per_sequence: int = 1, num_prefix_tokens: int = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.configure(images_per_sequence=images_per_sequence, num_prefix_tokens=num_prefix_tokens)


@keras.saving.register_keras_serializable(package="keras_vit")
class PatchPlaces(_OfSequences):
    """Split the coordinates of patches into their places in the grids and the images of all tokens.

    A sequence holds the patches of one or several images, each in its own aspect ratio (NaViT, arXiv 2307.06304). Its
    tokens are the class tokens and registers of image 0, those of image 1 and so on, then the patches.

    Args:
        images_per_sequence: number of images that a sequence may hold.
        num_prefix_tokens: number of class tokens and registers of each image.

    Shapes:
        integers (batch, patches, 5): row, column, the rows and columns of the image's grid, and the number of the image
        in the sequence, from 0; padding has 0, 0, 1, 1, -1 -> the first four of these, (batch, patches, 4), and the
        image of each token, (batch, images_per_sequence * num_prefix_tokens + patches)

    Raises:
        ValueError: if a value is out of range; in a call, if a sequence has no patch of an image, a place is outside of
            its grid or a grid has more than 65,536 rows or columns. Inside a TensorFlow graph this is a
            `tf.errors.InvalidArgumentError`; a function that JAX or XLA compiles checks nothing.
    """

    def call(self, coordinates: Tensor) -> tuple[Tensor, Tensor]:
        # A replica without rows of a batch gets a sequence of zeros, whose grids have no side.
        places, sides, ids = coordinates[..., :2], ops.maximum(coordinates[..., 2:4], 1), coordinates[..., 4]
        coordinates = ops.concatenate([places, sides, ids[..., None]], axis=-1)
        for message, is_right, found in (
            (
                f"coordinates must be inside of grids of at most {_MAX_SIDE} rows and columns",
                lambda: (places >= 0) & (places < sides) & (sides <= _MAX_SIDE),
                lambda: ops.max(ops.concatenate([places, sides], axis=-1), axis=(0, 1)),
            ),
            (
                f"coordinates must have images from 0 to {self.images_per_sequence - 1}, and -1 for padding",
                lambda: (ids >= -1) & (ids < self.images_per_sequence),
                lambda: ops.max(ids),
            ),
            (
                "coordinates must have a patch of an image in every sequence, not padding alone",
                lambda: ops.any(ids >= 0, axis=1),
                lambda: ids,
            ),
        ):
            coordinates = check_in_call(coordinates, message, is_right, found)
        of_prefix = np.repeat(np.arange(self.images_per_sequence, dtype="int32"), self.num_prefix_tokens)
        prefix = ops.zeros_like(coordinates[:, :1, 4]) + of_prefix
        return coordinates[..., :4], ops.concatenate([prefix, coordinates[..., 4]], axis=1)

    def compute_output_spec(self, coordinates):
        batch, patches, _ = coordinates.shape
        length = None if patches is None else patches + self.images_per_sequence * self.num_prefix_tokens
        return keras.KerasTensor((batch, patches, 4), "int32"), keras.KerasTensor((batch, length), "int32")


@keras.saving.register_keras_serializable(package="keras_vit")
class RepeatedPrefix(_OfSequences):
    """Repeat the class tokens and registers at the start of a sequence, so that each of its images has its own.

    Args:
        images_per_sequence: number of images that a sequence may hold.
        num_prefix_tokens: number of class tokens and registers of each image.

    Shapes:
        (batch, num_prefix_tokens + patches, dim) -> (batch, images_per_sequence * num_prefix_tokens + patches, dim)

    Raises:
        ValueError: if a value is out of range.
    """

    def call(self, tokens: Tensor) -> Tensor:
        prefix, patches = tokens[:, : self.num_prefix_tokens], tokens[:, self.num_prefix_tokens :]
        return ops.concatenate([prefix] * self.images_per_sequence + [patches], axis=1)

    def compute_output_shape(self, input_shape):
        batch, length, dim = input_shape
        return (batch, length and length + (self.images_per_sequence - 1) * self.num_prefix_tokens, dim)
