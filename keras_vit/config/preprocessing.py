"""Preprocessing: what a model eats."""

import dataclasses
import math
import numbers
from collections.abc import Sequence
from typing import Self

import numpy as np
import numpy.typing as npt

from keras_vit import checks
from keras_vit.config.base import Config
from keras_vit.typing import Pair, Size

INTERPOLATIONS = ("bilinear", "bilinear_antialias", "bicubic", "area", "nearest")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Preprocessing(Config):
    """From an image to the numbers a checkpoint was trained on: the contract of checkpoint, data and serving.

    Pixels are scaled to [0, 1], resized, cropped, then mapped to `(x - mean) / std`. The default is the official one:
    a plain square resize to values in [-1, 1].

    Args:
        size: without `crop`, the exact size (height, width) the image is resized to, whatever its aspect ratio
            (one integer for a square). With `crop` and one integer, the length the shorter side is resized to,
            aspect ratio kept; with `crop` and a pair, an exact resize before the crop.
        crop: size (height, width) of the central crop after the resize, None for no crop.
        interpolation: `bilinear` (TensorFlow's, not antialiased: the official code), `bilinear_antialias` and
            `bicubic` (antialiased, as in Pillow and timm), `area` or `nearest`.
        mean, std: one number per channel on the scale [0, 1]; their length is the number of channels, 1 or 3.
        in_model: True for a model built with `include_preprocessing`, which maps by `mean` and `std` itself: what is
            prepared stays on the scale [0, 255]. A model sets it.

    Raises:
        ValueError: on a value out of range or a crop that exceeds `size`.
    """

    size: Pair = 224
    crop: Pair | None = None
    interpolation: str = "bilinear"
    mean: Sequence[float] = (0.5, 0.5, 0.5)
    std: Sequence[float] = (0.5, 0.5, 0.5)
    in_model: bool = False

    def __post_init__(self):
        checks.check_choice("interpolation", self.interpolation, INTERPOLATIONS)
        is_shorter_side = self.crop is not None and not isinstance(self.size, (tuple, list))
        resized = checks.check_pair("size", self.size)
        self._set(size=resized[0] if is_shorter_side else resized, mean=_floats("mean", self.mean))
        self._set(std=_floats("std", self.std))
        self._check(checks.check_flag, "in_model")
        if self.crop is not None:
            self._set(crop=checks.check_pair("crop", self.crop))
            if any(side > limit for side, limit in zip(self.crop, resized, strict=True)):
                raise ValueError(f"crop must not exceed size; got crop={self.crop}, size={self.size}")
        if len(self.mean) != len(self.std) or len(self.mean) not in (1, 3):
            raise ValueError(
                f"mean and std must have one number per channel, 1 or 3; got mean={self.mean}, std={self.std}"
            )
        if min(self.std) <= 0:
            raise ValueError(f"std must be above 0; got std={self.std}")

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width of the result in pixels."""
        return self.crop or self.size

    @property
    def channels(self) -> int:
        """Channels of the result: 1 (grey) or 3 (red, green, blue)."""
        return len(self.mean)

    @property
    def statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and standard deviation that the result was mapped by: those of the fields unless `in_model`."""
        if self.in_model:
            return (0.0,) * self.channels, (1 / 255,) * self.channels
        return tuple(self.mean), tuple(self.std)

    def at(self, image_size: Size) -> Self:
        """Returns the same protocol for another input size: exact resizes follow it, resize and crop keep their ratio.

        Args:
            image_size: (height, width) of the result in pixels, or one integer for both.

        Raises:
            ValueError: if that is no size.
        """
        image_size = checks.check_pair("image_size", image_size)
        if self.crop is None:
            return self.replace(size=image_size)
        if isinstance(self.size, tuple):
            sides = zip(self.size, image_size, self.crop, strict=True)
            return self.replace(size=tuple(round(s * new / old) for s, new, old in sides), crop=image_size)
        shorter = self.size * max(image_size) // max(self.crop)  # rounded down, as in DeiT's and timm's code
        return self.replace(size=shorter, crop=image_size)

    def to_images(self, inputs: npt.ArrayLike) -> np.ndarray:
        """Undoes mean and std.

        Args:
            inputs: array (..., channels) of model input.

        Returns:
            float32 array of the same shape: the images as the model sees them, cut to [0, 1].

        Raises:
            ValueError: on another number of channels.
        """
        inputs = np.asarray(inputs, "float32")
        if inputs.ndim < 1 or inputs.shape[-1] != self.channels:
            raise ValueError(f"inputs must have {self.channels} channels in the last axis; got shape {inputs.shape}")
        mean, std = (np.asarray(values, "float32") for values in self.statistics)
        return np.clip(inputs * std + mean, 0.0, 1.0)


def _floats(name, values):
    values = tuple(values) if isinstance(values, (tuple, list)) else (values,)
    if not values or not all(isinstance(v, numbers.Real) and not isinstance(v, bool) for v in values):
        raise ValueError(f"{name} must be a sequence of numbers; got {name}={values}")
    if not all(math.isfinite(v) for v in values):
        raise ValueError(f"{name} must be a sequence of finite numbers; got {name}={values}")
    return tuple(float(v) for v in values)
