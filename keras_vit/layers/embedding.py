"""The input of the first block, Eq. 1 of arXiv 2010.11929: PatchEncoder, ClassToken and AddPositionEmbs."""

import functools
import math
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit import checks
from keras_vit.config.base import count_patches, one_of, optional
from keras_vit.layers.base import Layer, known_map
from keras_vit.layers.forms import check_in_call, is_on_gpu
from keras_vit.layers.patches import cut_patches, resize_patch_kernel
from keras_vit.layers.position_grid import (
    SINCOS_FORMS,
    ResizedTables,
    resize_position_embedding,
    resize_weights,
    sincos,
    sincos2d_table,
    square_grid,
)
from keras_vit.typing import Size, Tensor

# position embeddings with one table per axis -> number of tables that share the width
_PER_AXIS = {"learned_2d": 2, "factorized": 1}


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
        patch_padding: pixels of zeros at each side of the image before the projection, which leave the grid as it is.

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
        patch_padding: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.configure(patch_size=patch_size, hidden_dim=hidden_dim, use_bias=use_bias)
        self.configure(pad=pad, kernel_size=kernel_size, whole_patches=whole_patches, patch_padding=patch_padding)
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
            self.grid_size(input_shape)  # raises for other sizes
            channels = input_shape[3]
        self.built_sides = tuple(input_shape[1:3])
        self.projection.build((input_shape[0], None, None, channels))

    def call(self, images: Tensor, training: bool | None = None) -> Tensor:
        if len(images.shape) == 3:
            return self._of_cut(images)
        images = self._fitting(images)
        # TensorFlow's convolution of 0 images has other rows and columns
        rows, columns = (side // step for side, step in zip(ops.shape(images)[1:3], self.patch_size, strict=True))
        if self.patch_padding:  # those at the bottom and at the right are in no patch
            height, width = (count * step for count, step in zip((rows, columns), self.patch_size, strict=True))
            before = (self.patch_padding, 0)
            images = ops.pad(images, ((0, 0), before, before, (0, 0)))[:, :height, :width]
        if is_on_gpu() and not training and self.kernel_size in (None, self.patch_size):
            # Faster than cuDNN's convolution. Not in training, where XLA would then store the batch axis of all tokens
            # last, and transpose them in every block.
            height, width = (count * step for count, step in zip((rows, columns), self.patch_size, strict=True))
            cells = cut_patches(images[:, :height, :width], (rows, columns))
            return self._of_cut(ops.reshape(cells, (-1, rows * columns, math.prod(cells.shape[2:]))))
        return ops.reshape(self._project(images), (-1, rows * columns, self.hidden_dim))

    def _of_cut(self, patches):
        return self._tokens_of(patches, ops.matmul, ops.reshape(self.projection.kernel, (-1, self.hidden_dim)))

    def _fitting(self, images):
        """Return the images, padded if `pad`; other images than those of `build` are checked."""
        sides = ops.shape(images)[1:3]
        if tuple(images.shape[1:3]) != self.built_sides:
            self.grid_size(images.shape)  # raises for other sizes
        if self.pad:
            bottom, right = (-side % step for side, step in zip(sides, self.patch_size, strict=True))
            return ops.pad(images, ((0, 0), (0, bottom), (0, right), (0, 0)))
        if None not in images.shape[1:3]:
            return images
        word, wrong = ("divisible by", ops.mod) if self.whole_patches else ("at least", ops.less)
        message = f"image_size must be {word} patch_size {self.patch_size} (or embedding.pad=True)"
        is_right = lambda: ops.equal(ops.cast(wrong(sides, self.patch_size), "int32"), 0)  # noqa: E731
        return check_in_call(images, message, is_right, lambda: ops.stack(sides))

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


@keras.saving.register_keras_serializable(package="keras_vit")
class AddPositionEmbs(ResizedTables):
    """Add position embeddings to the tokens: E_pos of Eq. 1 in arXiv 2010.11929.

    In a learned table, class tokens have their own rows. Registers have no position: their rows are zeros. When the
    layer loads a table of another grid (`.keras`, `.weights.h5` or a checkpoint), it resizes the table as the official
    code does, for square and other grids.

    Args:
        position_embedding: `learned`, a table that starts at N(0, 0.02); `learned_2d`, one such table for columns and
            one for rows, each of half the width, concatenated as [column, row] (appendix D.4); `factorized`, two such
            tables of the whole width, added (NaViT, arXiv 2307.06304); `sincos2d`, fixed sines and cosines in the form
            of MoCo-v3 (arXiv 2104.02057) with zeros for class tokens; `sincos2d_mae`, in the form of MAE (arXiv
            2111.06377); `none`.
        grid_size: (rows, columns) of the patch grid; None means a square grid.
        num_class_tokens: number of class tokens at the start of the sequence.
        num_registers: number of the tokens after them that have no position: registers, mostly.
        resize: resize method for tables of other grids, see `resize_position_embedding`; None means `align_corners`.
        square_positions: whether `coordinates` are places in a square grid, whose side is the longer side of their
            grid.
        position_init: initial values of a `learned` table: `normal`, N(0, 0.02), or `sincos2d_mae`, those of that form.

    Shapes:
        (batch, num_class_tokens + num_registers + rows * columns, dim) -> the same. With the optional input
        `coordinates`, integers (batch or 1, patches, 4) from `PatchCoordinates`, the patches may form any grid: the
        table has `grid_size` rows and columns and is resized in every call.

    Raises:
        ValueError: if a value is out of range or a choice is unknown; at build, if the tokens do not form such a grid,
            `coordinates` are given without `grid_size`, or the width is not divisible by 4 (`sincos2d`) or 2
            (`learned_2d`).
    """

    own_checks = {
        "position_embedding": one_of(("learned", *_PER_AXIS, "sincos2d", "sincos2d_mae", "none")),
        "grid_size": optional(checks.check_pair),
    }
    size_name, name_in_files = "built_grid", "grid"

    def __init__(
        self,
        position_embedding: str = "learned",
        grid_size: Size | None = None,
        num_class_tokens: int = 1,
        num_registers: int = 0,
        resize: str | None = None,
        square_positions: bool = False,
        position_init: str = "normal",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.configure(position_embedding=position_embedding, grid_size=grid_size, resize=resize)
        self.configure(square_positions=square_positions, position_init=position_init)
        self.configure(num_class_tokens=num_class_tokens, num_registers=num_registers)

    def build(self, tokens_shape, coordinates_shape=None):
        is_open = coordinates_shape is not None and self.grid_size is not None
        self.built_grid = rows, columns = self.grid_size if is_open else self._grid(tokens_shape)
        dim, num_class = tokens_shape[-1], self.num_class_tokens
        if self.position_embedding == "learned":
            shape = (1, num_class + rows * columns, dim)
            if self.position_init == "normal":
                self.embedding = self.normal_weight("embedding", shape)
            else:
                table = sincos2d_table(self.built_grid, dim, self.position_init)
                table = np.pad(table, ((num_class, 0), (0, 0)))[None]  # class tokens start without positions
                values = lambda _, dtype: ops.convert_to_tensor(table, dtype)  # noqa: E731
                self.embedding = self.add_weight(name="embedding", shape=shape, initializer=values)
        elif self.position_embedding in _PER_AXIS:
            share = _PER_AXIS[self.position_embedding]
            if dim % share:
                raise ValueError(f"position_embedding='learned_2d' needs an even width; got {dim}")
            self.columns = self.normal_weight("columns", (1, columns, dim // share))
            self.rows = self.normal_weight("rows", (1, rows, dim // share))
            if num_class:
                self.class_rows = self.normal_weight("class_rows", (1, num_class, dim))
        elif self.position_embedding in SINCOS_FORMS:
            self.sincos2d, self.built_dim = sincos2d_table(self.built_grid, dim, self.position_embedding), dim

    def _grid(self, input_shape):
        tokens, prefix = input_shape[1], self.num_class_tokens + self.num_registers
        if tokens is None:
            raise ValueError(f"AddPositionEmbs needs a known number of tokens; got input shape {input_shape}")
        grid = self.grid_size or square_grid(tokens - prefix)
        if grid is None or math.prod(grid) + prefix != tokens:
            wanted = f"{grid[0]} x {grid[1]}" if grid else "a square number of"
            raise ValueError(
                f"AddPositionEmbs needs {self.num_class_tokens} class tokens, {self.num_registers} registers and "
                f"{wanted} patch tokens (pass grid_size for a grid that is not square); got {tokens} tokens"
            )
        return grid

    def call(self, tokens: Tensor, coordinates: Tensor = None) -> Tensor:
        if self.position_embedding == "none":
            return tokens
        return tokens + ops.cast(self.table(coordinates), tokens.dtype)

    def table(self, coordinates: Tensor = None) -> Tensor:
        """Return the table to add, (1, tokens, dim): class tokens, registers, patches.

        Args:
            coordinates: as in the call; the table is then (batch or 1, tokens, dim).
        """
        if self.position_embedding == "learned" and not self.num_registers and coordinates is None:
            return ops.convert_to_tensor(self.embedding)
        class_rows, patches = self._class_rows(), self._patches(coordinates)
        num_zeros = self.num_class_tokens + self.num_registers
        if class_rows is not None:
            class_rows, num_zeros = ops.cast(class_rows, patches.dtype), num_zeros - class_rows.shape[1]
            class_rows = ops.zeros_like(patches[:, :1]) + class_rows  # as many as there are tables
        patches = ops.pad(patches, ((0, 0), (num_zeros, 0), (0, 0))) if num_zeros else patches
        return patches if class_rows is None else ops.concatenate([class_rows, patches], axis=1)

    def _class_rows(self):
        if not self.num_class_tokens or self.position_embedding in SINCOS_FORMS:
            return None
        return self.class_rows if self.position_embedding in _PER_AXIS else self.embedding[:, : self.num_class_tokens]

    def _patches(self, coordinates):
        """Return the positions of the patches, (1, patches, dim), or at these coordinates."""
        rows, columns = self.built_grid
        if coordinates is None:
            if self.position_embedding in SINCOS_FORMS:
                return ops.convert_to_tensor(self.sincos2d[None])
            if self.position_embedding == "learned":
                return ops.convert_to_tensor(self._grid_rows())
            x = ops.tile(ops.convert_to_tensor(self.columns), (1, rows, 1))
            y = ops.repeat(ops.convert_to_tensor(self.rows), columns, axis=1)
            return self._joined(x, y)
        y, x, new_rows, new_columns = ops.unstack(ops.cast(coordinates, "float32"), 4, axis=-1)
        if self.position_embedding in SINCOS_FORMS:
            return sincos(x, y, self.built_dim, self.position_embedding)
        is_same = ops.logical_and(ops.equal(new_rows, rows), ops.equal(new_columns, columns))
        if self.square_positions:
            new_rows = new_columns = ops.maximum(new_rows, new_columns)
        y = self._weights(y, rows, new_rows, is_same)  # (batch or 1, patches, rows)
        x = self._weights(x, columns, new_columns, is_same)
        if self.position_embedding in _PER_AXIS:
            tables = (ops.cast(table[0], "float32") for table in (self.columns, self.rows))
            return self._joined(*(ops.matmul(w, table) for w, table in zip((x, y), tables, strict=True)))
        weights = y[..., :, None] * x[..., None, :]
        weights = ops.reshape(weights, (*ops.shape(weights)[:2], rows * columns))
        return ops.matmul(weights, ops.cast(self._grid_rows()[0], "float32"))

    def _grid_rows(self):
        """Return the rows of a learned table for the places of the grid, (1, rows * columns, dim)."""
        return self.embedding[:, self.num_class_tokens :]

    def _joined(self, x, y):
        return x + y if self.position_embedding == "factorized" else ops.concatenate([x, y], axis=-1)

    def _weights(self, places, old, new, is_same):
        itself = ops.one_hot(ops.cast(places, "int32"), old, dtype="float32")
        return ops.where(is_same[..., None], itself, resize_weights(self.resize_method, places, old, new))

    def resized(self, variable: keras.Variable, table: np.ndarray, method: str, old_size: Any = None) -> np.ndarray:
        """Return a weight of this layer, resized from another grid.

        Args:
            variable: the weight of this layer.
            table: array, the same weight of the layer on the other grid.
            method: resize method, see `resize_position_embedding`.
            old_size: (rows, columns) of the other grid; may be None for weights other than `embedding`.

        Raises:
            ValueError: if the shape of `table` does not match that grid.
        """
        if variable.name == "embedding":
            return resize_position_embedding(table, old_size, self.built_grid, self.num_class_tokens, method)
        return table if variable.name == "class_rows" else super().resized(variable, table, method)
