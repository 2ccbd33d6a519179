"""Masks of SAM: its input of one image, prompts in pixels of this input, and masks in pixels of the image."""

from typing import Any

import numpy as np
import numpy.typing as npt

from keras_vit import checks
from keras_vit.analysis.overlay import as_uint8
from keras_vit.layers.position_grid import resize_matrix
from keras_vit.tasks.drawing import check_array
from keras_vit.typing import Size


def prompt_input_size(size: Size, longest: int = 1024) -> tuple[int, int]:
    """Return the size to which an image is resized for SAM, before it is padded to a square.

    Args:
        size: (height, width) of the image, or one integer for both.
        longest: length of the longer side afterwards.

    Returns:
        (height, width); halves are rounded up.

    Raises:
        ValueError: if a value is out of range.
    """
    size = checks.check_pair("size", size)
    scale = checks.check_integer("longest", longest) / max(size)
    height, width = (max(int(side * scale + 0.5), 1) for side in size)
    return height, width


def prompt_input(
    image: npt.ArrayLike,
    longest: int = 1024,
    mean: Any = (0.485, 0.456, 0.406),
    std: Any = (0.229, 0.224, 0.225),
) -> np.ndarray:
    """Return the input of SAM for one image: resized (bilinear, antialiased), normalised, and padded with zeros.

    Args:
        image: (height, width, 1 or 3) or (height, width): uint8, or floats in [0, 1].
        longest: side of the square.
        mean, std: of the pixels in [0, 1], one number per channel.

    Returns:
        float32 (longest, longest, 3); the image is at the top left.

    Raises:
        ValueError: if the image is none, or a value is out of range.
    """
    pixels = as_uint8("image", image)
    size = prompt_input_size(pixels.shape[:2], longest)
    mean, std = check_array("mean", mean, (3,)), check_array("std", std, (3,))
    # as Pillow does: the columns first, each axis rounded to integers
    resized = np.einsum("xc,rcd->rxd", resize_matrix("bilinear_antialias", pixels.shape[1], size[1]), pixels)
    resized = np.einsum("yr,rxd->yxd", resize_matrix("bilinear_antialias", pixels.shape[0], size[0]), _bytes(resized))
    padded = np.zeros((longest, longest, 3), "float32")
    padded[: size[0], : size[1]] = (_bytes(resized) / 255 - mean) / std
    return padded


def _bytes(values):
    return np.floor(np.clip(values, 0, 255) + 0.5)


def to_prompt_pixels(coordinates: npt.ArrayLike, size: Size, longest: int = 1024) -> np.ndarray:
    """Convert points or boxes from pixels of an image to pixels of the input of SAM.

    Args:
        coordinates: (..., 2) points x, y, or (..., 4) boxes x0, y0, x1, y1.
        size: (height, width) of the image, or one integer for both.
        longest: as in `prompt_input_size`.

    Returns:
        Array of the same shape. No half pixel is added: the model does so.

    Raises:
        ValueError: on another shape, or if a value is out of range.
    """
    values, size = np.asarray(coordinates), checks.check_pair("size", size)
    if values.ndim == 0 or values.shape[-1] not in (2, 4):
        raise ValueError(f"coordinates must be of shape (..., 2) or (..., 4); got coordinates of shape {values.shape}")
    values = check_array("coordinates", values, values.shape)
    height, width = (new / old for new, old in zip(prompt_input_size(size, longest), size, strict=True))
    return values * np.tile([width, height], values.shape[-1] // 2)


def masks_to_pixels(logits: npt.ArrayLike, size: Size, longest: int = 1024) -> np.ndarray:
    """Resize masks of SAM to their image; a mask is where the result is above 0.

    The maps are resized bilinearly (half-pixel centres, without antialiasing) to the square input, cut to the image
    without padding, and resized bilinearly to the image.

    Args:
        logits: (..., rows, columns), outputs of the model for one image.
        size: (height, width) of the image, or one integer for both.
        longest: as in `prompt_input_size`: side of the square input.

    Returns:
        float32 (..., height, width), logits.

    Raises:
        ValueError: on another shape, or if a value is out of range.
    """
    values, size = np.asarray(logits), checks.check_pair("size", size)
    if values.ndim < 2:
        raise ValueError(f"logits must be of shape (..., rows, columns); got logits of shape {values.shape}")
    values = check_array("logits", values, (*values.shape[:-2], "rows", "columns"))
    sides = zip(values.shape[-2:], prompt_input_size(size, longest), size, strict=True)
    vertical, horizontal = (
        resize_matrix("bilinear", cut, new) @ resize_matrix("bilinear", old, longest)[:cut] for old, cut, new in sides
    )
    return np.einsum("yr,xc,...rc->...yx", vertical, horizontal, values, optimize=True).astype("float32")


def mask_stability(logits: npt.ArrayLike, offset: float = 1.0, threshold: float = 0.0) -> np.ndarray:
    """Return how little masks depend on their threshold.

    Args:
        logits: (..., rows, columns).
        offset: distance of the two thresholds from `threshold`.
        threshold: logits above it belong to the mask.

    Returns:
        (...): area above `threshold + offset` as a share of that above `threshold - offset`; 0 for an empty mask.

    Raises:
        ValueError: on another shape, or if a value is out of range.
    """
    values, offset = np.asarray(logits), checks.check_positive("offset", offset)
    if values.ndim < 2:
        raise ValueError(f"logits must be of shape (..., rows, columns); got logits of shape {values.shape}")
    values = check_array("logits", values, (*values.shape[:-2], "rows", "columns"))
    threshold = checks.check_number("threshold", threshold, "finite number", lambda number: True)
    inner, outer = ((values > threshold + sign * offset).sum((-2, -1), dtype="int64") for sign in (1, -1))
    return (inner / np.maximum(outer, 1)).astype("float32")


def mask_boxes(masks: npt.ArrayLike) -> np.ndarray:
    """Return the box of each mask: its extreme pixels, inclusive.

    Args:
        masks: bool (..., height, width).

    Returns:
        Integers (..., 4) as x0, y0, x1, y1; zeros for an empty mask.

    Raises:
        ValueError: on another shape or type.
    """
    masks = np.asarray(masks)
    if masks.ndim < 2 or 0 in masks.shape[-2:] or masks.dtype != bool:
        raise ValueError(f"masks must be bool of shape (..., height, width); got {masks.dtype} of shape {masks.shape}")
    (y0, y1), (x0, x1) = (_ends(masks.any(axis)) for axis in (-1, -2))
    return np.where(np.asarray(masks.any((-2, -1)))[..., None], np.stack([x0, y0, x1, y1], axis=-1), 0)


def _ends(taken):
    """Return the first and the last true index along the last axis."""
    return taken.argmax(-1), taken.shape[-1] - 1 - taken[..., ::-1].argmax(-1)
