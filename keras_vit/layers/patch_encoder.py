"""PatchEncoder, PatchCoordinates, PatchMap and ClassToken: patches of an image, and the learned tokens before them.

`keras_vit.layers.sequences` has the layers for sequences of patches of images in their own aspect ratios.
"""

import functools
import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit import checks
from keras_vit.config.base import count_patches, optional
from keras_vit.layers.base import Layer, known_map
from keras_vit.layers.forms import check_in_call, is_on_gpu
from keras_vit.layers.position_grid import array_module, patch_coordinates, resize_matrix
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
        use_bias: whether the projection has a bias.
        pad: whether images are padded with zeros at the bottom and at the right to a multiple of the patch size; False
            does not use the last rows and columns of pixels, which fill no patch.
        kernel_size: height and width of the stored kernel, which is resized to `patch_size` in every call, see
            `resize_patch_kernel`; None stores one of `patch_size`.
        whole_patches: whether images that the patch size does not divide raise an error, unless `pad`.

    Shapes:
        (batch, height, width, channels) -> (batch, height / patch height * width / patch width, hidden_dim), with both
        quotients rounded down, or up with `pad`; height and width may be unknown until the layer is called. Patches
        that are already cut, (batch, patches, patch height * patch width * channels), in the order row, column, channel
        -> (batch, patches, hidden_dim)

    Raises:
        ValueError: if a value is out of range; at build or call, unless `pad`, if an image is smaller than a patch or,
            with `whole_patches`, not divisible by the patch size; if patches have another width than `patch_size`.
    """

    own_checks = {"kernel_size": optional(checks.check_pair)}

    def __init__(
        self,
        patch_size: Size,
        hidden_dim: int,
        use_bias: bool = True,
        pad: bool = False,
        kernel_size: Size | None = None,
        whole_patches: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.configure(patch_size=patch_size, hidden_dim=hidden_dim, use_bias=use_bias)
        self.configure(pad=pad, kernel_size=kernel_size, whole_patches=whole_patches)
        strides = {"strides": self.patch_size, "use_bias": use_bias}
        stored = self.kernel_size or self.patch_size
        self.projection = self.conv(self.hidden_dim, stored, "projection", "lecun_normal", **strides)

    def build(self, input_shape):
        if len(input_shape) == 3 and input_shape[2] is not None:
            channels, rest = divmod(input_shape[2], math.prod(self.patch_size))
            if rest or self.kernel_size not in (None, self.patch_size):
                raise ValueError(
                    "patches must have the width patch height * patch width * channels of the stored kernel; "
                    f"got {input_shape[2]} and patch_size={self.patch_size}, kernel_size={self.kernel_size}"
                )
        else:
            self.grid_size(input_shape)
            channels = input_shape[3]
        self.projection.build((input_shape[0], None, None, channels))

    def call(self, images: Tensor, training: bool | None = None) -> Tensor:
        if len(images.shape) == 3:
            return self._tokens_of(images, ops.matmul, ops.reshape(self.projection.kernel, (-1, self.hidden_dim)))
        self.grid_size(images.shape)
        sides = ops.shape(images)[1:3]
        if self.pad:
            bottom, right = (-side % step for side, step in zip(sides, self.patch_size, strict=True))
            images = ops.pad(images, ((0, 0), (0, bottom), (0, right), (0, 0)))
        elif None in images.shape[1:3]:
            word = "divisible by" if self.whole_patches else "at least"
            message = f"image_size must be {word} patch_size {self.patch_size} (or embedding.pad=True)"
            rest = lambda: ops.mod(sides, self.patch_size) if self.whole_patches else ops.less(sides, self.patch_size)  # noqa: E731
            is_right = lambda: ops.equal(ops.cast(rest(), "int32"), 0)  # noqa: E731
            images = check_in_call(images, message, is_right, lambda: ops.stack(sides))
        # TensorFlow's convolution of 0 images has other rows and columns
        rows, columns = count_patches(ops.shape(images)[1:3], self.patch_size)
        if is_on_gpu() and not training and self.kernel_size in (None, self.patch_size):
            # Faster than cuDNN's convolution. Not in training, where XLA would then store the batch axis of all tokens
            # last, and transpose them in every block.
            height, width = (count * step for count, step in zip((rows, columns), self.patch_size, strict=True))
            cells = cut_patches(images[:, :height, :width], (rows, columns))
            return self.call(ops.reshape(cells, (-1, rows * columns, math.prod(cells.shape[2:]))))
        return ops.reshape(self._project(images), (-1, rows * columns, self.hidden_dim))

    def _project(self, images):
        if self.kernel_size in (None, self.patch_size):
            return self.projection(images)
        conv = functools.partial(ops.conv, strides=self.patch_size, padding="valid", data_format="channels_last")
        kernel = resize_patch_kernel(ops.cast(self.projection.kernel, "float32"), self.patch_size)
        return self._tokens_of(images, conv, kernel)

    def _tokens_of(self, inputs, product, kernel):
        tokens = product(ops.cast(inputs, self.compute_dtype), ops.cast(kernel, self.compute_dtype))
        return tokens + ops.cast(self.projection.bias, self.compute_dtype) if self.use_bias else tokens

    def grid_size(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, int | None]:
        """Return the (rows, columns) of the patch grid, None where they are unknown.

        Args:
            input_shape: shape of the images, (batch, height, width, channels).

        Raises:
            ValueError: as the call.
        """
        known_map(self, input_shape, sides=False)
        known = [(side, step) for side, step in zip(input_shape[1:3], self.patch_size, strict=True) if side is not None]
        if not self.pad and known:
            sides, steps = zip(*known, strict=True)
            checks.check_divisible("image_size", sides, "patch_size", steps, self.whole_patches)
        return count_patches(input_shape[1:3], self.patch_size, self.pad)

    def compute_output_shape(self, input_shape):
        if len(input_shape) == 3:
            return (*input_shape[:2], self.hidden_dim)
        rows, columns = self.grid_size(input_shape)
        return (input_shape[0], rows and columns and rows * columns, self.hidden_dim)


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


@keras.saving.register_keras_serializable(package="keras_vit")
class ClassToken(Layer):
    """Prepend learned class tokens and register tokens to the patch tokens.

    The class token is x_class of Eq. 1 in arXiv 2010.11929; registers are those of arXiv 2309.16588. The order of the
    output is class tokens, registers, patch tokens. Class tokens start at zero, as in the official code. Registers
    start at N(0, 0.02), because equal registers would stay equal.

    Args:
        num_class_tokens: number of learned class tokens; 0 for a model that pools its patch tokens and only adds
            registers.
        num_registers: number of learned register tokens.

    Shapes:
        (batch, tokens, dim) -> (batch, num_class_tokens + num_registers + tokens, dim)

    Raises:
        ValueError: if both numbers are 0 or a value is out of range.
    """

    def __init__(self, num_class_tokens: int = 1, num_registers: int = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.configure(num_class_tokens=num_class_tokens, num_registers=num_registers)
        if not self.num_class_tokens + self.num_registers:
            raise ValueError("num_class_tokens + num_registers must be at least 1; got 0 + 0")

    def build(self, input_shape):
        if self.num_class_tokens:
            shape = (1, self.num_class_tokens, input_shape[-1])
            self.class_token = self.add_weight(name="class_token", shape=shape, initializer="zeros")
        if self.num_registers:
            self.registers = self.normal_weight("registers", (1, self.num_registers, input_shape[-1]))

    def call(self, tokens: Tensor) -> Tensor:
        learned = [self.class_token] if self.num_class_tokens else []
        learned += [self.registers] if self.num_registers else []
        # adding zeros broadcasts to the batch; LiteRT may lose a batch size that is computed at run time
        nothing = ops.zeros_like(tokens[:, :1])
        return ops.concatenate([*(nothing + ops.cast(token, tokens.dtype) for token in learned), tokens], axis=1)

    def compute_output_shape(self, input_shape):
        batch, tokens, dim = input_shape
        added = self.num_class_tokens + self.num_registers
        return (batch, None if tokens is None else tokens + added, dim)
