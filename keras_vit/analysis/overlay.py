"""Show attention on an image: darken the image (Fig. 6 of arXiv 2010.11929), or draw a heat map over it."""

import numpy as np
import numpy.typing as npt
from PIL import Image

from keras_vit import checks
from keras_vit.models import ImageModel
from keras_vit.tasks.drawing import as_uint8, scale_colours

_DARKEST = 0.2  # brightness at minimum attention
_LEAST_CUT = 0.2  # attention is never clipped below this share of its maximum


def overlay(
    image: npt.ArrayLike, attention: npt.ArrayLike, *, smooth: bool = True, quantile: float = 0.97
) -> np.ndarray:
    """Darken an image where attention is low.

    As in Fig. 6 of the authors (google-research/vision_transformer, issue 27), the map is enlarged with a Lanczos
    filter, blurred with a Gaussian whose deviation is one patch, rescaled to [0, 1] and multiplied with the image.
    Unlike in that figure, the minimum brightness is a fifth instead of 0, and the highest values are clipped.

    Args:
        image: (height, width, 1 or 3) or (height, width): uint8, or floats in [0, 1]; the map covers all of it, see
            `seen_images`.
        attention: (rows, columns), finite numbers of at least 0, for the patches of this image, such as a map of
            `attention_rollout`.
        smooth: False enlarges every cell to a plain rectangle.
        quantile: in (0, 1]: attention is clipped at this quantile of the map, but never below a fifth of its maximum,
            so that a few outlier patches (arXiv 2309.16588) do not darken the rest; 1 does not clip, as in the paper.

    Returns:
        uint8 array (height, width, 3).

    Raises:
        ValueError: on another shape or range.
    """
    image = as_uint8("image", image)
    shown = enlarge(attention, image.shape[:2], smooth=smooth, quantile=quantile)
    return np.rint(image * (_DARKEST + (1 - _DARKEST) * shown[..., None])).astype("uint8")


def heat_map(
    image: npt.ArrayLike, attention: npt.ArrayLike, *, smooth: bool = True, quantile: float = 0.97
) -> np.ndarray:
    """Draw attention in colours over a grey version of an image.

    The colours go from dark to violet, orange and yellow and become brighter with attention on every image: a black
    object with high attention is brighter than a white wall with low attention. The map is enlarged, blurred, clipped
    and rescaled as in `overlay`. The scale is Inferno (bids.github.io/colormap) without its last tenth.

    Args:
        image: (height, width, 1 or 3) or (height, width): uint8, or floats in [0, 1]; the map covers all of it, see
            `seen_images`.
        attention: (rows, columns), finite numbers of at least 0, for the patches of this image, such as a map of
            `attention_rollout`. A uniform map has the colour of maximum attention everywhere.
        smooth: False enlarges every cell to a plain rectangle.
        quantile: in (0, 1]: where attention is clipped, as in `overlay`.

    Returns:
        uint8 array (height, width, 3).

    Raises:
        ValueError: on another shape or range.
    """
    image = as_uint8("image", image)
    heat = enlarge(attention, image.shape[:2], smooth=smooth, quantile=quantile)
    return scale_colours(heat, image)


def seen_images(model: ImageModel, images: npt.ArrayLike) -> np.ndarray:
    """Return the part of prepared images that the patches of a model cover.

    A map of attention belongs to this part. If the patch size does not divide the image, the rows and columns of pixels
    that fill no patch are cut off, or, for a model that pads, those that it adds are there.

    Args:
        model: a model of this package.
        images: (images, height, width, channels), prepared for the model.

    Returns:
        float32 array (images, height, width, channels) of pixel values in [0, 1].

    Raises:
        ValueError: if the images have another shape.
    """
    config, images = model.config, np.asarray(images)
    sides = images.shape[1:3]
    if hasattr(config, "covered_size"):
        sides = config.replace(image_size=config.fixed_size or sides).covered_size
    missing = [(0, max(side - had, 0)) for side, had in zip(sides, images.shape[1:3], strict=True)]
    return model.preprocessing.to_images(np.pad(images, [(0, 0), *missing, (0, 0)])[:, : sides[0], : sides[1]])


def enlarge(attention, size, *, smooth=True, quantile=0.97):
    """Enlarge a map to the size of its image and rescale it to [0, 1].

    Args:
        attention, smooth, quantile: as in `overlay`.
        size: (height, width).

    Returns:
        float64 array (height, width) in [0, 1]; ones for a uniform map.
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
        attention = attention / attention.max()  # avoids values outside the range of float32
        large = Image.fromarray(attention.astype("float32")).resize((width, height), Image.Resampling.LANCZOS)
        down, across = (_blur(side, side / count) for side, count in zip(size, attention.shape, strict=True))
        large = down @ np.asarray(large, "float64") @ across.T
    else:
        rows, columns = (np.arange(side) * count // side for side, count in zip(size, attention.shape, strict=True))
        large = attention[rows][:, columns]
    return (large - large.min()) / np.ptp(large)


def _blur(side, deviation):
    """Return the matrix (side, side) of a Gaussian blur; at the edges the remaining weights are renormalised."""
    apart = np.subtract.outer(np.arange(side), np.arange(side))
    weights = np.exp(-0.5 * (apart / deviation) ** 2)
    return weights / weights.sum(1, keepdims=True)
