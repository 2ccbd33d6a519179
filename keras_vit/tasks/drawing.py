"""Helpers that the answers of task models share: checks of arrays, resizing of maps, colours and run lengths."""

import colorsys
from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_vit.layers.position_grid import resize_matrix

# Inferno by Nathaniel J. Smith and Stefan van der Walt (github.com/BIDS/colormap, CC0 1.0), at every tenth from 0 to
# 0.9. It is perceptually uniform, also for colour-blind readers; the last tenth fades to white and is not used.
SCALE = ("000004", "160b39", "420a68", "6a176e", "932667", "bc3754", "dd513a", "f37819", "fca50a", "f6d746")
_LUMA = (0.299, 0.587, 0.114)  # of red, green and blue, ITU-R BT.601
_COLOUR = (0.55, 0.75)  # share of the colour at 0 and at 1; the rest is the image
_BLACK = 0.3  # black becomes this grey; white stays white
_HUE, _SATURATION, _VALUE = 0.618034, 0.65, 0.95  # steps of the golden ratio keep the hues of few labels apart
_SHARE = 0.55  # of the colour of a label over an image


def check_array(name: str, value: Any, shape: Sequence[int | str]) -> np.ndarray:
    """Return a finite float array of a shape.

    Args:
        name: name of the argument.
        value: numbers.
        shape: a side for each axis: an integer, or a word if any positive size is valid.

    Raises:
        ValueError: on another shape, or if a number is not finite.
    """
    array = np.asarray(value)
    array = array if array.dtype == np.float64 or array.dtype.kind not in "fiu" else array.astype("float32")
    fits = array.ndim == len(shape) and all(
        side == wanted if isinstance(wanted, int) else side > 0 for side, wanted in zip(array.shape, shape, strict=True)
    )
    if not fits or array.dtype.kind != "f":
        wanted = ", ".join(map(str, shape))
        raise ValueError(f"{name} must be numbers of shape ({wanted}); got {array.dtype} of shape {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite; got {np.count_nonzero(~np.isfinite(array))} numbers that are not")
    return array


def check_names(name: str, names: Any, count: int) -> tuple[str, ...] | None:
    """Return `names`, a sequence of `count` strings, as a tuple; None stays None."""
    if names is None:
        return None
    if not isinstance(names, (tuple, list)) or len(names) < count or not all(isinstance(one, str) for one in names):
        raise ValueError(f"{name} must be None or a sequence of at least {count} strings; got {name}={names!r}")
    return tuple(names)


def resize_map(maps: np.ndarray, size: tuple[int, int], method: str = "bilinear") -> np.ndarray:
    """Resize maps (height, width, ...) to `size`; see `resize_position_embedding` for the methods."""
    vertical, horizontal = (resize_matrix(method, old, new) for old, new in zip(maps.shape[:2], size, strict=True))
    return np.einsum("yr,xc,rc...->yx...", vertical, horizontal, maps, optimize=True)


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return the softmax over the last axis."""
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Return the sigmoid of each number, without overflow."""
    return 0.5 * (1 + np.tanh(0.5 * logits))


def as_uint8(name: str, image: Any) -> np.ndarray:
    """Return an image as uint8 (height, width, 3); raise a `ValueError` for another shape or range."""
    image = np.asarray(image)
    image = image[..., None] if image.ndim == 2 else image
    if image.ndim != 3 or image.shape[-1] not in (1, 3):
        raise ValueError(f"{name} must have shape (height, width, 1 or 3); got {image.shape}")
    if image.dtype != np.uint8:
        if image.dtype.kind != "f" or not np.isfinite(image).all() or image.min() < -1e-3 or image.max() > 1.001:
            found = f"{image.dtype} from {image.min()} to {image.max()}"
            raise ValueError(f"{name} must be uint8, or floats in [0, 1]; got {found}")
        image = np.rint(255 * np.clip(image, 0, 1)).astype("uint8")
    return np.broadcast_to(image, (*image.shape[:2], 3))


def scale_colours(values: np.ndarray, image: np.ndarray | None = None) -> np.ndarray:
    """Return the colours of the package's scale for values in [0, 1], over a grey version of an image if one is given.

    Args:
        values: numbers (height, width).
        image: uint8 (height, width, 3).

    Returns:
        uint8 (height, width, 3)
    """
    anchors = np.array([list(bytes.fromhex(colour)) for colour in SCALE])
    places = np.linspace(0, 1, len(anchors))
    colours = np.stack([np.interp(values, places, channel) for channel in anchors.T], -1)
    if image is not None:
        grey = 255 * _BLACK + (1 - _BLACK) * (image @ np.array(_LUMA))
        share = np.interp(values, (0, 1), _COLOUR)[..., None]
        colours = share * colours + (1 - share) * grey[..., None]
    return np.rint(colours).astype("uint8")


def label_colour(label: int) -> tuple[int, int, int]:
    """Return the colour (red, green, blue) of a label, integers in [0, 255]; a negative label is black."""
    colour = colorsys.hsv_to_rgb(label * _HUE % 1, _SATURATION, _VALUE) if label >= 0 else (0, 0, 0)
    red, green, blue = (round(255 * channel) for channel in colour)
    return red, green, blue


def check_image(image: Any, size: Sequence[int]) -> np.ndarray:
    """Return an image as uint8 (height, width, 3).

    Raises:
        ValueError: unless it has the size (height, width).
    """
    pixels = as_uint8("image", image)
    if pixels.shape[:2] != tuple(size):
        raise ValueError(f"image must have the size {tuple(size)} of the answer; got {pixels.shape[:2]}")
    return pixels


def draw_labels(labels: np.ndarray, image: Any = None) -> np.ndarray:
    """Draw a label map in colours, over an image if one is given; pixels with negative labels keep the image."""
    values, where = np.unique(labels, return_inverse=True)
    colours = np.array([label_colour(int(value)) for value in values])[where.reshape(labels.shape)]
    if image is not None:
        pixels = check_image(image, labels.shape)
        share = np.where(labels >= 0, _SHARE, 0.0)[..., None]
        colours = np.rint(share * colours + (1 - share) * pixels)
    return colours.astype("uint8")


def run_lengths(labels: np.ndarray) -> list[list[int]]:
    """Return [[value, length], ...] of a map of integers in row-major order."""
    flat = labels.ravel()
    starts = np.concatenate([[0], np.flatnonzero(np.diff(flat)) + 1, [flat.size]])
    return [[int(flat[start]), int(stop - start)] for start, stop in zip(starts[:-1], starts[1:], strict=True)]
