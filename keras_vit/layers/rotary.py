"""Rotary position embeddings: RotaryEmbedding computes the angles of a grid, `rotate` applies them."""

import math

import keras
import numpy as np
from keras import ops

from keras_vit import checks
from keras_vit.config import RotaryConfig
from keras_vit.config.base import one_config_of, optional
from keras_vit.layers.base import Layer, head_width
from keras_vit.layers.position_grid import array_module, patch_coordinates


@keras.saving.register_keras_serializable(package="keras_vit")
class RotaryEmbedding(Layer):
    """Return the cosines and sines by which queries and keys are rotated (arXiv 2104.09864).

    Pass them to `MultiHeadSelfAttention` or `TransformerBlock`. They depend only on the grid, so a model has one such
    layer for all blocks. Class tokens and registers are not rotated: their angles are 0.

    Args:
        rotary: `RotaryConfig`, which states the coordinates and frequencies of each kind.
        num_heads: number of heads of the attention; they must divide the width of the input.
        grid_size: (rows, columns) of the patch grid; None if each call gives `coordinates`.
        num_class_tokens: number of class tokens at the start of the sequence.
        num_registers: number of register tokens after them.

    Shapes:
        (batch, num_class_tokens + num_registers + rows * columns, dim) -> (2, tokens, dim / num_heads): cosines and
        sines, without a batch axis. With the optional input `coordinates`, integers (batch or 1, patches, 4) from
        `PatchCoordinates` -> (2, batch or 1, 1, tokens, dim / num_heads)

    Raises:
        ValueError: if a value is out of range; at build, if the width of a head is not divisible by 4.
    """

    own_checks = {"rotary": one_config_of(RotaryConfig), "grid_size": optional(checks.check_pair)}

    def __init__(self, rotary, num_heads, grid_size, num_class_tokens=1, num_registers=0, **kwargs):
        super().__init__(**kwargs)
        self.configure(rotary=rotary, num_heads=num_heads, grid_size=grid_size)
        self.configure(num_class_tokens=num_class_tokens, num_registers=num_registers)
        self._prefix = self.num_class_tokens + self.num_registers

    def build(self, tokens_shape, coordinates_shape=None):
        self.head_dim = head_width(self.num_heads, tokens_shape[-1])
        if self.head_dim % 4:
            raise ValueError(f"rotary positions need a width of each head that is divisible by 4; got {self.head_dim}")
        if coordinates_shape is None:
            self._build_for_grid()

    def _build_for_grid(self):
        coordinates = patch_coordinates(*self.grid_size).astype("float64")
        angles = np.pad(self._angles(coordinates), ((self._prefix, 0), (0, 0)))
        self.table = np.stack([np.cos(angles), np.sin(angles)]).astype("float32")

    def call(self, tokens, coordinates=None):
        if coordinates is None:
            return ops.cast(ops.convert_to_tensor(self.table), tokens.dtype)
        angles = self._angles(ops.cast(coordinates, "float32"))
        angles = ops.pad(angles, ((0, 0), (self._prefix, 0), (0, 0)))[:, None]
        return ops.cast(ops.stack([ops.cos(angles), ops.sin(angles)]), tokens.dtype)

    def _angles(self, coordinates):
        return rotary_angles(self.rotary, coordinates, self.head_dim, offset=int(self.num_class_tokens > 0))

    def compute_output_shape(self, tokens_shape, coordinates_shape=None):
        head_dim = tokens_shape[-1] // self.num_heads
        if coordinates_shape is None:
            return (2, self._prefix + math.prod(self.grid_size), head_dim)
        batch, count, _ = coordinates_shape
        return (2, batch, 1, None if count is None else self._prefix + count, head_dim)


@keras.saving.register_keras_serializable(package="keras_vit")
class MixedRotaryEmbedding(RotaryEmbedding):
    """Return the cosines and sines of each block, with learned frequencies (RoPE-Mixed, arXiv 2403.13298).

    The angle of a patch is its column times one frequency plus its row times another. Each block and head has its own
    frequencies, which start as those of `theta` in a random direction.

    Args:
        rotary, num_heads, grid_size, num_class_tokens, num_registers: as in `RotaryEmbedding`.
        num_layers: number of blocks.

    Shapes:
        (batch, num_class_tokens + num_registers + rows * columns, dim) -> (2, num_layers, num_heads, tokens, dim /
        num_heads): cosines and sines, without a batch axis

    Raises:
        ValueError: as `RotaryEmbedding`.
    """

    def __init__(self, rotary, num_heads, grid_size, num_class_tokens=1, num_registers=0, num_layers=1, **kwargs):
        super().__init__(rotary, num_heads, grid_size, num_class_tokens, num_registers, **kwargs)
        self.configure(num_layers=num_layers)

    def build(self, tokens_shape):  # Keras compares the arguments with those of `call`
        super().build(tokens_shape)

    def _build_for_grid(self):
        shape = (2, self.num_layers, self.num_heads, self.head_dim // 2)
        # angles of bfloat16 would be too coarse
        arguments = {"initializer": self._initial_frequencies, "autocast": False, "name": "frequencies"}
        self.frequencies = self.add_weight(shape=shape, **arguments)

    def _initial_frequencies(self, shape, dtype=None):
        sizes = self.rotary.theta ** -(np.arange(self.head_dim // 4) * 4 / self.head_dim)
        direction = keras.random.uniform((*shape[1:3], 1), 0.0, 2 * math.pi, dtype=dtype)
        directions = ops.concatenate([direction, direction + math.pi / 2], axis=-1)  # (layers, heads, 2)
        parts = ops.stack([ops.cos(directions), ops.sin(directions)])[..., None] * sizes.astype("float32")
        return ops.reshape(parts, shape)

    def call(self, tokens):
        places = patch_coordinates(*self.grid_size).astype("float32")
        y, x = places[:, 0, None], places[:, 1, None]
        of_columns, of_rows = ops.unstack(self.frequencies[:, :, :, None], 2)  # (layers, heads, 1, head_dim / 2)
        angles = ops.repeat(x * of_columns + y * of_rows, 2, axis=-1)
        angles = ops.pad(angles, ((0, 0), (0, 0), (self._prefix, 0), (0, 0)))
        return ops.cast(ops.stack([ops.cos(angles), ops.sin(angles)]), tokens.dtype)

    def compute_output_shape(self, tokens_shape):
        two, *of_head = super().compute_output_shape(tokens_shape)
        return (two, self.num_layers, self.num_heads, *of_head)


def rotary_angles(rotary, coordinates, head_dim, offset=0):
    """Return the angle of each channel of each patch, (..., patches, head_dim).

    Args:
        rotary: `RotaryConfig`.
        coordinates: (..., patches, 4), floats: row, column, and the rows and columns of the grid.
        head_dim: width of a head, divisible by 4.
        offset: coordinate of the first row and column of kind `pe`.
    """
    xp = array_module(coordinates)
    frequencies = rotary.theta ** -(np.arange(head_dim // 4) * 4 / head_dim)
    frequencies = frequencies if xp is np else frequencies.astype("float32")
    places, sides = coordinates[..., :2], coordinates[..., 2:]
    if rotary.kind == "dinov3":
        places = 2 * math.pi * (2 * (places + 0.5) / sides - 1)
    elif rotary.reference_grid is not None:
        places = places / sides * np.array(rotary.reference_grid, "float32")
    places = places + offset if rotary.kind == "pe" else places
    y, x = places[..., 0], places[..., 1]
    order = (x, y) if rotary.kind in ("pe", "rope_vit") else (y, x)
    angles = xp.concatenate([axis[..., None] * frequencies for axis in order], axis=-1)  # (..., head_dim / 2)
    return xp.concatenate([angles, angles], axis=-1) if rotary.kind == "dinov3" else xp.repeat(angles, 2, axis=-1)


def rotate(x, table, rotary):
    """Return queries or keys (batch, heads, tokens, head_dim), rotated by the output of `RotaryEmbedding`."""
    cosines, sines = ops.unstack(ops.cast(table, x.dtype), 2)
    if rotary.kind == "dinov3":  # channel i belongs to channel i + head_dim / 2
        first, second = ops.split(x, 2, axis=-1)
        turned = ops.concatenate([-second, first], axis=-1)
    else:  # channel 2 i belongs to channel 2 i + 1
        _, heads, tokens, width = ops.shape(x)
        pairs = ops.reshape(x, (-1, heads, tokens, width // 2, 2))
        turned = ops.reshape(ops.stack([-pairs[..., 1], pairs[..., 0]], axis=-1), (-1, heads, tokens, width))
    return x * cosines + turned * sines
