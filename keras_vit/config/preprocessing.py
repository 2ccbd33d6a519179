"""Preprocessing: how images become the input of a model."""

import dataclasses
from collections.abc import Sequence
from functools import partial
from types import ModuleType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from keras_vit import checks
from keras_vit.config.base import Config, ImageConfig, one_of, optional
from keras_vit.config.sizes import RULES, padded
from keras_vit.typing import Pair, Size

INTERPOLATIONS = ("bilinear", "bilinear_antialias", "bicubic", "area", "nearest")
ROUNDINGS = ("big_vision", "torchvision", "transformers")
_WITH_MULTIPLE = ("stretch", "nearest", "lower_bound", "shortest", "center_padding")


def _check_size(name, value):
    """Return a pair as `check_pair` does, and a single integer unchanged."""
    pair = checks.check_pair(name, value)
    return pair if isinstance(value, (tuple, list)) else pair[0]


def _check_numbers(name, values):
    values = values if isinstance(values, (tuple, list)) else (values,)
    check = partial(checks.check_number, kind="finite number from -1e6 to 1e6", is_valid=lambda x: abs(x) <= 1e6)
    return checks.check_sequence(name, values, "numbers", check)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Preprocessing(Config):
    """Describe how an image becomes the input of a model.

    Pixels are scaled to [0, 1], resized, cropped, then normalised as `(x - mean) / std`. The default is the official
    ViT preprocessing: a resize to the exact size, and values in [-1, 1].

    Args:
        size: without `crop`, the image is resized to exactly this (height, width), whatever its aspect ratio; one
            integer means a square. With `crop` and one integer, the shorter side is resized to this length and the
            aspect ratio is kept. With `crop` and a pair, the image is resized to exactly this size before the crop.
        crop: (height, width) of the central crop after the resize; None for no crop.
        pad: whether the aspect ratio is kept without a crop: the image is resized to the largest size inside `size`,
            and padded at the bottom and the right with `mean`, so with zeros after normalising (SAM).
        interpolation: `bilinear` (TensorFlow's, without antialiasing, as in the official code), `bilinear_antialias`
            or `bicubic` (with antialiasing, as in Pillow and timm), `area` or `nearest`.
        rounding: library whose integers are used with `crop`. `big_vision` rounds the longer side after the resize, and
            starts the crop at half the surplus, rounded down. `torchvision` (also timm, OpenCLIP and the code of most
            PyTorch models) truncates the longer side, and rounds half the surplus, halves to even. `transformers`
            truncates both. Without `crop`, it has no effect and is `big_vision`. Files written before this field
            existed are read as `big_vision`, which was then the only one.
        mean, std: one number per channel, for pixel values in [0, 1].
        patch_size, max_tokens: for models of native aspect ratios, see `keras_vit.resize`: the image keeps its aspect
            ratio, is resized to the largest size whose patches of `patch_size` pixels are at most `max_tokens`, and is
            cut into these patches; `size` is ignored. None for other models.
        sizing: for task models, the rule by which the size of the input follows from that of the image; no part of the
            image is lost. None is the exact `size`, or the rule of `crop`, `pad` or `max_tokens`.
            `stretch`: each side becomes that of `size`, and, like those of all rules with `multiple`, a multiple of it.
            `nearest`: both sides are scaled by one factor, that of `size` which is nearer to 1 (DPT and Depth Anything
            in transformers). `lower_bound`: by the larger factor, so that no side is below `size` (the Depth Anything
            authors). `shortest`: the shorter side becomes that of `size`, unless the longer one would exceed `longest`
            (YOLOS). `longest`: the longer side becomes that of `size`, and the rest of a square is black (EoMT).
            `windows`: as `shortest`; the model gets squares spread along the longer side (EoMT). `square`: the image is
            padded with black to a square at the bottom and the right, filtered and resized (OWLv2). `box`: the model
            gets the region around a box, in the aspect ratio of `size` (ViTPose). `center_padding`: the image keeps its
            size, and half of what is missing to a multiple is added at each side, with `mean`; the answer for the whole
            input is resized to the image, as in the authors' code (DPT on DINOv2).
        longest: maximum length of the longer side in pixels with `sizing="shortest"`, or None.
        multiple: both sides are multiples of it with `stretch`, `nearest`, `lower_bound`, `shortest` and
            `center_padding`, such as the patch size. `shortest` cuts off the rest; the first three round.
        in_model: True for a model built with `include_preprocessing`, which applies `mean` and `std` itself; prepared
            images then keep values in [0, 255]. The model sets this field.

    Raises:
        ValueError: if a value is out of range, `crop` exceeds `size`, both `crop` and `pad` are given, only one of
            `patch_size` and `max_tokens` is given, or both with `crop`, `pad` or `in_model`, or `sizing` is given with
            one of these, or `longest` or `multiple` without a rule that has them.
    """

    own_checks = {
        "size": _check_size,
        "interpolation": one_of(INTERPOLATIONS),
        "rounding": one_of(ROUNDINGS),
        "mean": _check_numbers,
        "std": _check_numbers,
        "sizing": optional(one_of(RULES)),
        "longest": optional(checks.check_integer),
        "multiple": checks.check_integer,
    }

    size: Pair = 224
    crop: Pair | None = None
    pad: bool = False
    interpolation: str = "bilinear"
    rounding: str = "big_vision"
    mean: Sequence[float] = (0.5, 0.5, 0.5)
    std: Sequence[float] = (0.5, 0.5, 0.5)
    patch_size: Pair | None = None
    max_tokens: int | None = None
    sizing: str | None = None
    longest: int | None = None
    multiple: int = 1
    in_model: bool = False

    def __post_init__(self):
        super().__post_init__()
        resized = checks.check_pair("size", self.size)
        has_other = self.crop is not None or self.pad or self.in_model
        self._refuse(
            {
                "{pad}=True keeps the whole image, so {crop} must be None": self.pad and self.crop,
                "{patch_size} and {max_tokens} must be given together, without {crop}, {pad} and {in_model}": (
                    (self.patch_size is None) != (self.max_tokens is None) or (self.max_tokens and has_other)
                ),
                "{sizing} keeps the whole image, so {crop}, {pad}, {max_tokens} and {in_model} must not be set": (
                    self.sizing and (has_other or self.max_tokens)
                ),
                "{longest} needs {sizing}='shortest'": self.longest and self.sizing != "shortest",
                "{multiple} needs another {sizing}": self.multiple > 1 and self.sizing not in _WITH_MULTIPLE,
                "{crop} must not exceed {size}": self.crop and any(np.greater(self.crop, resized)),
                "{mean} and {std} must have one number per channel": not 0 < len(self.mean) == len(self.std),
                "{std} must be above 0, at least 1e-6": any(number < 1e-6 for number in self.std),
            }
        )
        if self.crop is None:
            self._set(size=resized, rounding=ROUNDINGS[0])

    @property
    def image_size(self) -> tuple[int, int]:
        """Return the height and width of the prepared image in pixels.

        With `max_tokens`, each image has its own.
        """
        return self.crop or self.size

    def resized(self, size: Size) -> tuple[int, int]:
        """Return the (height, width) to which an image is resized, before padding.

        There is no crop.

        Args:
            size: (height, width) of the upright image in pixels, or one integer for both.

        Raises:
            ValueError: if `size` is not a valid size.
        """
        size = checks.check_pair("size", size)
        if self.pad:
            return padded(size, self.image_size)
        height, width = self.apply_rule(np, np.array(size, "float64"))
        return int(height), int(width)

    def apply_rule(self, xp: ModuleType, size: Any) -> Any:
        """Return the (height, width) that the rule of `sizing` gives, float64.

        Args:
            xp: NumPy, or TensorFlow if `size` is a tensor.
            size: (height, width) of the upright image in pixels, float64.
        """
        target = np.array(self.image_size, "float64")
        return RULES[self.sizing or "stretch"](xp, size, target, self.longest, self.multiple)

    @property
    def channels(self) -> int:
        """Return the number of channels: 1 (grey), 3 (red, green, blue) or others."""
        return len(self.mean)

    @property
    def statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return the (mean, std) that normalised the prepared image.

        With `in_model` the image keeps pixel values in [0, 255], so they are mean 0 and std 1 / 255.
        """
        if self.in_model:
            return (0.0,) * self.channels, (1 / 255,) * self.channels
        return tuple(self.mean), tuple(self.std)

    def at(self, image_size: Size) -> Self:
        """Return the same preprocessing with another fixed image size.

        Without `crop`, `size` becomes the new size. With `crop`, the ratio of `size` to `crop` stays the same. A rule
        of `sizing` with inputs of several sizes is dropped.

        Args:
            image_size: (height, width) of the prepared image in pixels, or one integer for both.

        Raises:
            ValueError: if `image_size` is not a valid size.
        """
        image_size = checks.check_pair("image_size", image_size)
        if self.sizing in _WITH_MULTIPLE:
            return self.replace(size=image_size, sizing=None, longest=None, multiple=1)
        if self.max_tokens is not None:
            return self.replace(size=image_size, patch_size=None, max_tokens=None)
        if self.crop is None:
            return self.replace(size=image_size)
        if isinstance(self.size, tuple):
            sides = zip(self.size, image_size, self.crop, strict=True)
            return self.replace(size=tuple(round(s * new / old) for s, new, old in sides), crop=image_size)
        shorter = self.size * max(image_size) // max(self.crop)  # rounded down, as in the DeiT and timm code
        return self.replace(size=shorter, crop=image_size)

    def grey(self) -> Self:
        """Return the same preprocessing for grey images.

        `mean` and `std` are the averages over the channels.
        """
        mean, std = (sum(values) / len(values) for values in (self.mean, self.std))
        return self.replace(mean=(mean,), std=(std,))

    def native(self, patch_size: Size, max_tokens: int = 256) -> Self:
        """Return the same preprocessing for images in their own aspect ratios.

        It has neither `crop` nor `pad`.

        Args:
            patch_size: (height, width) of a patch in pixels, or one integer for both.
            max_tokens: largest number of patches of an image.

        Raises:
            ValueError: if a value is out of range.
        """
        others = {"crop": None, "pad": False, "sizing": None, "longest": None, "multiple": 1}
        return self.replace(patch_size=patch_size, max_tokens=max_tokens, size=self.image_size, **others)

    def to_images(self, inputs: npt.ArrayLike) -> np.ndarray:
        """Convert prepared images back to pixel values in [0, 1].

        Args:
            inputs: array (..., channels) of model inputs.

        Returns:
            float32 array of the same shape, with mean and std undone, clipped to [0, 1].

        Raises:
            ValueError: if the number of channels differs.
        """
        inputs = np.asarray(inputs, "float32")
        if inputs.ndim < 1 or inputs.shape[-1] != self.channels:
            raise ValueError(f"inputs must have {self.channels} channels in the last axis; got shape {inputs.shape}")
        mean, std = (np.asarray(values, "float32") for values in self.statistics)
        return np.clip(inputs * std + mean, 0.0, 1.0)


def suited(config: ImageConfig, *protocols: Preprocessing | None) -> Preprocessing | None:
    """Return the first preprocessing that can have a config's channels, at its image size; None if there is none.

    Args:
        config: config of a model.
        *protocols: `Preprocessing` or None.
    """
    known = (p for p in protocols if p is not None and config.channels in (1, p.channels))
    known = (p.grey() if config.channels == 1 else p for p in known)
    return next((p.at(config.image_size) if config.fixed_size else p for p in known), None)
