"""FeaturePyramid and Enlarge: maps of other resolutions than the one of a plain Vision Transformer."""

import functools
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_vit import checks
from keras_vit.layers.base import Layer, build_in_sequence, known_map
from keras_vit.layers.forms import LayerNorm
from keras_vit.layers.neck import Neck
from keras_vit.typing import Size, Tensor


@keras.saving.register_keras_serializable(package="keras_vit")
class FeaturePyramid(Layer):
    """Build maps of four resolutions from one map.

    This is the simple feature pyramid of ViTDet (arXiv 2203.16527, section 3): transposed convolutions with stride 2
    enlarge the map twice and four times, max pooling halves it, and each of the four maps passes a `Neck`. Between the
    two transposed convolutions of the largest map are a norm and an exact GELU.

    Args:
        filters: number of output channels.
        epsilon: epsilon of the norms.

    Shapes:
        (batch, rows, columns, dim) -> list of four maps (batch, side, side, filters), whose sides are 4, 2, 1 and 1/2
        times those of the input, rounded down; for patches of 16 pixels these are the strides 4, 8, 16 and 32

    Raises:
        ValueError: if a value is out of range; at build, if 4 does not divide the width.
    """

    def __init__(self, filters: int = 256, epsilon: float = 1e-6, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.configure(filters=filters, epsilon=epsilon)

    def build(self, input_shape):
        dim = input_shape[-1]
        if dim % 4:
            raise ValueError(f"FeaturePyramid needs a width that 4 divides; got {dim}")
        norm = self.sublayer(LayerNorm, epsilon=self.epsilon, name="norm")
        gelu = self.sublayer(keras.layers.Activation, "gelu", name="gelu")
        halve = self.sublayer(keras.layers.MaxPooling2D, data_format="channels_last", name="halve")
        # Keras 3.12 does not save the layers of lists in lists
        self.steps = [self._enlarge(dim // 2, "enlarge_4a"), norm, gelu, self._enlarge(dim // 4, "enlarge_4b")]
        self.steps += [self._enlarge(dim // 2, "enlarge_2"), halve]
        names = ("neck_4", "neck_2", "neck_1", "neck_half")
        self.necks = [self.sublayer(Neck, self.filters, self.epsilon, name=name) for name in names]
        for branch in self._branches():
            build_in_sequence(input_shape, *branch)

    def _branches(self):
        """Return the layers of each map, in the order in which they are called."""
        parts = (slice(0, 4), slice(4, 5), slice(0), slice(5, 6))
        return [[*self.steps[part], neck] for part, neck in zip(parts, self.necks, strict=True)]

    def _enlarge(self, filters, name):
        return self.sublayer(keras.layers.Conv2DTranspose, filters, 2, 2, data_format="channels_last", name=name)

    def call(self, maps: Tensor) -> list[Tensor]:
        return [functools.reduce(lambda x, layer: layer(x), branch, maps) for branch in self._branches()]

    def compute_output_shape(self, input_shape):
        batch, *sides, _ = input_shape
        scales = (lambda n: 4 * n, lambda n: 2 * n, lambda n: n, lambda n: n // 2)
        return [(batch, *(n and scale(n) for n in sides), self.filters) for scale in scales]


@keras.saving.register_keras_serializable(package="keras_vit")
class Enlarge(Layer):
    """Enlarge maps bilinearly, also those whose size is only known in a call.

    `keras.layers.UpSampling2D` gives the same values, but in a graph of TensorFlow it needs a known size.

    Args:
        factor: by how much rows and columns are multiplied, or one integer for both.

    Shapes:
        (batch, rows, columns, dim) -> (batch, factor * rows, factor * columns, dim), with half-pixel centres

    Raises:
        ValueError: if a value is out of range; at build, if the input is no map.
    """

    own_checks = {"factor": checks.check_pair}

    def __init__(self, factor: Size, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.configure(factor=factor)

    def build(self, input_shape):
        known_map(self, input_shape, sides=False)

    def call(self, maps: Tensor) -> Tensor:
        for factor in self.factor:
            maps = ops.transpose(_enlarge_rows(maps, factor), (0, 2, 1, 3))  # twice: rows are rows again
        return maps

    def compute_output_shape(self, input_shape):
        batch, *sides, dim = input_shape
        return (batch, *(side and side * factor for side, factor in zip(sides, self.factor, strict=True)), dim)


def _enlarge_rows(maps, factor):
    """(batch, rows, columns, dim) -> (batch, factor * rows, columns, dim)"""
    _, rows, columns, dim = ops.shape(maps)
    before = ops.concatenate([maps[:, :1], maps[:, :-1]], axis=1)
    after = ops.concatenate([maps[:, 1:], maps[:, -1:]], axis=1)
    places = np.reshape((np.arange(factor) + 0.5) / factor - 0.5, (-1, 1, 1))  # of the new rows, from the old centre
    shares = np.maximum(-places, 0), 1 - np.abs(places), np.maximum(places, 0)
    parts = zip((before, maps, after), shares, strict=True)
    mixed = sum(part[:, :, None] * ops.cast(share, maps.dtype) for part, share in parts)
    return ops.reshape(mixed, (-1, rows * factor, columns, dim))
