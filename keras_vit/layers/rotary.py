"""Rotary position embeddings: RotaryEmbedding computes the angles of a grid, `rotate` applies them."""

import math

import keras
import numpy as np
from keras import ops

from keras_vit.config import RotaryConfig
from keras_vit.config.base import one_config_of
from keras_vit.layers.base import Layer, head_width


@keras.saving.register_keras_serializable(package="keras_vit")
class RotaryEmbedding(Layer):
    """Return the cosines and sines by which queries and keys are rotated (arXiv 2104.09864).

    Pass them to `MultiHeadSelfAttention` or `TransformerBlock`. They depend only on the grid, so a model has one such
    layer for all blocks. Class tokens and registers are not rotated: their angles are 0.

    Args:
        rotary: `RotaryConfig`, which states the coordinates and frequencies of each kind.
        num_heads: number of heads of the attention; they must divide the width of the input.
        grid_size: (rows, columns) of the patch grid.
        num_class_tokens: number of class tokens at the start of the sequence.
        num_registers: number of register tokens after them.

    Shapes:
        (batch, num_class_tokens + num_registers + rows * columns, dim) -> (2, tokens, dim / num_heads): cosines and
        sines, without a batch axis

    Raises:
        ValueError: if a value is out of range; at build, if the width of a head is not divisible by 4.
    """

    own_checks = {"rotary": one_config_of(RotaryConfig)}

    def __init__(self, rotary, num_heads, grid_size, num_class_tokens=1, num_registers=0, **kwargs):
        super().__init__(**kwargs)
        self.configure(rotary=rotary, num_heads=num_heads, grid_size=grid_size)
        self.configure(num_class_tokens=num_class_tokens, num_registers=num_registers)

    def build(self, input_shape):
        head_dim = head_width(self.num_heads, input_shape[-1])
        if head_dim % 4:
            raise ValueError(f"rotary positions need a width of each head that is divisible by 4; got {head_dim}")
        angles = rotary_angles(self.rotary, self.grid_size, head_dim, offset=int(self.num_class_tokens > 0))
        prefix = self.num_class_tokens + self.num_registers
        angles = np.pad(angles, ((prefix, 0), (0, 0)))
        self.table = np.stack([np.cos(angles), np.sin(angles)]).astype("float32")

    def call(self, tokens):
        return ops.cast(ops.convert_to_tensor(self.table), tokens.dtype)

    def compute_output_shape(self, input_shape):
        tokens = self.num_class_tokens + self.num_registers + math.prod(self.grid_size)
        return (2, tokens, input_shape[-1] // self.num_heads)


def rotary_angles(rotary, grid_size, head_dim, offset=0):
    """Return the angle of each channel of each patch, (rows * columns, head_dim), patches in raster order.

    Args:
        rotary: `RotaryConfig`.
        grid_size: (rows, columns).
        head_dim: width of a head, divisible by 4.
        offset: coordinate of the first row and column of kind `pe`.
    """
    frequencies = rotary.theta ** -(np.arange(head_dim // 4) * 4 / head_dim)
    if rotary.kind == "dinov3":
        axes = [2 * math.pi * (2 * (np.arange(side) + 0.5) / side - 1) for side in grid_size]
    else:
        reference = rotary.reference_grid or grid_size
        axes = [np.arange(side) / side * wanted for side, wanted in zip(grid_size, reference, strict=True)]
    y, x = np.meshgrid(*axes, indexing="ij")
    order = (x + offset, y + offset) if rotary.kind == "pe" else (y, x)
    angles = np.concatenate([axis.reshape(-1, 1) * frequencies for axis in order], axis=1)  # (patches, head_dim / 2)
    return np.tile(angles, 2) if rotary.kind == "dinov3" else np.repeat(angles, 2, axis=1)


def rotate(x, table, rotary):
    """Return queries or keys (batch, heads, tokens, head_dim), rotated by the output of `RotaryEmbedding`."""
    cosines, sines = ops.unstack(ops.cast(table, x.dtype), 2)
    if rotary.kind == "dinov3":  # channel i belongs to channel i + head_dim / 2
        first, second = ops.split(x, 2, axis=-1)
        turned = ops.concatenate([-second, first], axis=-1)
    else:  # channel 2 i belongs to channel 2 i + 1
        _, heads, tokens, width = x.shape
        pairs = ops.reshape(x, (-1, heads, tokens, width // 2, 2))
        turned = ops.reshape(ops.stack([-pairs[..., 1], pairs[..., 0]], axis=-1), (-1, heads, tokens, width))
    return x * cosines + turned * sines
