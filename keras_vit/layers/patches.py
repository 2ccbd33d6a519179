"""Patches of images: cutting, their kernels, their places in the grid; and sequences of patches of several images.

PatchCoordinates and PatchMap are for images of any size, PatchPlaces and RepeatedPrefix for sequences of patches of
images in their own aspect ratios (NaViT, NaFlex).
"""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit import checks
from keras_vit.config.base import count_patches
from keras_vit.layers.base import Layer
from keras_vit.layers.forms import check_in_call
from keras_vit.layers.position_grid import array_module, patch_coordinates, resize_matrix
from keras_vit.typing import Size, Tensor

PADDING = (0, 0, 1, 1, -1)  # the coordinates of a place without patch
_MAX_SIDE = 65_536  # rows or columns of a grid


def cut_patches(images, grid_size):
    """Cut images (batch, height, width, channels) -> (batch, patches, height, width, channels), row by row."""
    height, width, channels = images.shape[1:]
    rows, columns = grid_size
    down, across = height // rows, width // columns
    cells = ops.transpose(ops.reshape(images, (-1, rows, down, columns, across, channels)), (0, 1, 3, 2, 4, 5))
    return ops.reshape(cells, (-1, rows * columns, down, across, channels))


def resize_patch_kernel(kernel: Tensor, size: Size) -> Tensor:
    """Resize the kernel of a patch projection, so that resized patches give the tokens of the original ones.

    This is PI-resize of FlexiViT (arXiv 2212.08013, section 3.4): with the matrix B that resizes a patch bilinearly
    (half-pixel centres, no antialiasing), the new kernel is the pseudo-inverse of the transposed B times the old one.

    Args:
        kernel: (height, width, channels, dim), a tensor or NumPy array.
        size: (height, width) of the new kernel, or one integer for both.

    Returns:
        Array (new height, new width, channels, dim) of the kind and dtype of `kernel`.

    Raises:
        ValueError: if a size is not a positive integer.
    """
    xp, dtype = array_module(kernel), keras.backend.standardize_dtype(kernel.dtype)
    sides = zip(kernel.shape[:2], checks.check_pair("size", size), strict=True)
    vertical, horizontal = (patch_resizing(old, new).astype(dtype) for old, new in sides)
    # The B of a patch is the Kronecker product of those of its axes, and so is its pseudo-inverse.
    return xp.einsum("xw,ywcd->yxcd", horizontal, xp.einsum("yh,hwcd->ywcd", vertical, kernel))


def patch_resizing(old, new):
    """Return the pseudo-inverse of the transposed B of one axis, (new, old), see `resize_patch_kernel`.

    Its transpose resizes patches of `new` pixels to `old` pixels, such that the old kernel gives the same tokens.
    """
    return np.linalg.pinv(resize_matrix("bilinear", old, new).T)


class _OfGrid(Layer):
    """A layer that reads the size of images, of which `patch_size` and `pad` make a grid of patches."""

    def __init__(self, patch_size: Size, pad: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.configure(patch_size=patch_size, pad=pad)

    def _grid(self, shape):
        return count_patches(shape[1:3], self.patch_size, self.pad)


@keras.saving.register_keras_serializable(package="keras_vit")
class PatchCoordinates(_OfGrid):
    """Return the place of each patch in the grid, for the position layers of a model for images of any size.

    Args:
        patch_size: height and width of a patch in pixels, or one integer for both.
        pad: whether a part of a patch counts as one.

    Shapes:
        (batch, height, width, channels) -> (1, patches, 4), integers: row, column, and the rows and columns of the grid

    Raises:
        ValueError: if a value is out of range.
    """

    def call(self, images: Tensor) -> Tensor:
        return ops.cast(patch_coordinates(*self._grid(ops.shape(images))), "int32")[None]

    def compute_output_spec(self, images):
        rows, columns = self._grid(images.shape)
        return keras.KerasTensor((1, rows and columns and rows * columns, 4), "int32")


@keras.saving.register_keras_serializable(package="keras_vit")
class PatchMap(_OfGrid):
    """Return the patch tokens of a model for images of any size as a map, without the tokens before them.

    Args:
        patch_size: height and width of a patch in pixels, or one integer for both.
        pad: whether a part of a patch counts as one.

    Shapes:
        tokens (batch, prefix + patches, dim) and the images (batch, height, width, channels), of which only the size is
        read -> (batch, rows, columns, dim)

    Raises:
        ValueError: if a value is out of range.
    """

    def call(self, tokens: Tensor, images: Tensor) -> Tensor:
        rows, columns = self._grid(ops.shape(images))
        patches = tokens[:, ops.shape(tokens)[1] - rows * columns :]
        return ops.reshape(patches, (-1, rows, columns, tokens.shape[-1]))

    def compute_output_shape(self, tokens_shape, images_shape):
        return (tokens_shape[0], *self._grid(images_shape), tokens_shape[-1])


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
