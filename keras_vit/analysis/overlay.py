"""An image seen through a map of attention (Fig. 6 of arXiv 2010.11929)."""

from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from keras_vit import checks

_DARKEST = 0.2  # brightness of what is attended to least
_LEAST_CUT = 0.2  # share of the largest attention below which none is cut


def overlay(
    image: npt.ArrayLike, attention: npt.ArrayLike, *, smooth: bool = True, quantile: float = 0.97
) -> np.ndarray:
    """Darken an image where it is not attended to.

    As the authors display their Fig. 6 (google-research/vision_transformer, issue 27), the map is enlarged by Lanczos's
    filter, blurred by a Gaussian whose deviation is a patch, stretched to [0, 1] and multiplied with the image. Here
    a fifth of the brightness stays where they have black, and the brightest patches are cut.

    Args:
        image: (height, width, 1 or 3) or (height, width): uint8, or floats in [0, 1].
        attention: (rows, columns), finite numbers from 0, of the patches of this image, such as a map of
            `attention_rollout`.
        smooth: False enlarges every cell to a plain rectangle instead.
        quantile: in (0, 1]: attention is cut at this quantile of the map, but never below a fifth of its largest value,
            so that a few outlying patches (arXiv 2309.16588) do not darken the rest; 1 cuts nothing, as the authors do.

    Returns:
        uint8 array (height, width, 3).

    Raises:
        ValueError: on another shape or range.
    """
    image = as_uint8("image", image)
    shown = enlarge(attention, image.shape[:2], smooth=smooth, quantile=quantile)
    return np.rint(image * (_DARKEST + (1 - _DARKEST) * shown[..., None])).astype("uint8")


def enlarge(attention, size, *, smooth=True, quantile=0.97):
    """Enlarge a map to the pixels of its image and stretches it from 0 to 1.

    Args:
        attention, smooth, quantile: as of `overlay`.
        size: (height, width).

    Returns:
        float64 array (height, width) in [0, 1]; ones of a map that is even.
    """
    attention = np.asarray(attention, "float64")
    if attention.ndim != 2 or not np.isfinite(attention).all() or attention.min() < 0:
        raise ValueError(
            f"attention must be a map (rows, columns) of finite numbers from 0; got shape {attention.shape}"
        )
    checks.check_flag("smooth", smooth)
    if not 0 < quantile <= 1:
        raise ValueError(f"quantile must be a number in (0, 1]; got quantile={quantile!r}")
    size = height, width = checks.check_pair("size", size)
    highest = np.quantile(attention, quantile, method="higher")
    attention = np.minimum(attention, max(highest, _LEAST_CUT * attention.max()))
    if np.ptp(attention) <= 1e-12 * attention.max():
        return np.ones((height, width))
    if smooth:
        attention = attention / attention.max()  # float32 holds it
        large = Image.fromarray(attention.astype("float32")).resize((width, height), Image.Resampling.LANCZOS)
        down, across = (_blur(side, side / count) for side, count in zip(size, attention.shape, strict=True))
        large = down @ np.asarray(large, "float64") @ across.T
    else:
        rows, columns = (np.arange(side) * count // side for side, count in zip(size, attention.shape, strict=True))
        large = attention[rows][:, columns]
    return (large - large.min()) / np.ptp(large)


def as_uint8(name: str, image: Any) -> np.ndarray:
    """Return an image (height, width, 3), uint8; raises a `ValueError` that says what is wrong with it."""
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


def _blur(side, deviation):
    """The matrix (side, side) of a Gaussian blur; at the edges the weights that are left add up to 1."""
    apart = np.subtract.outer(np.arange(side), np.arange(side))
    weights = np.exp(-0.5 * (apart / deviation) ** 2)
    return weights / weights.sum(1, keepdims=True)
