"""A coloured map of attention over a grey image, readable on both dark and bright images."""

import numpy as np
import numpy.typing as npt

from keras_vit.analysis.overlay import as_uint8, enlarge

# Inferno by Nathaniel J. Smith and Stefan van der Walt (github.com/BIDS/colormap, CC0 1.0), at every tenth from 0 to
# 0.9. It is perceptually uniform, also for colour-blind readers; the last tenth fades to white and is not used.
_SCALE = ("000004", "160b39", "420a68", "6a176e", "932667", "bc3754", "dd513a", "f37819", "fca50a", "f6d746")
_LUMA = (0.299, 0.587, 0.114)  # of red, green and blue, ITU-R BT.601
_COLOUR = (0.55, 0.75)  # share of the colour at minimum and maximum attention; the rest is the image
_BLACK = 0.3  # black becomes this grey; white stays white


def heat_map(
    image: npt.ArrayLike, attention: npt.ArrayLike, *, smooth: bool = True, quantile: float = 0.97
) -> np.ndarray:
    """Draw attention in colours over a grey version of an image.

    The colours go from dark to violet, orange and yellow and become brighter with attention on every image: a black
    object with high attention is brighter than a white wall with low attention. The map is enlarged, blurred, clipped
    and rescaled as in `overlay`. The scale is Inferno (bids.github.io/colormap) without its last tenth.

    Args:
        image: (height, width, 1 or 3) or (height, width): uint8, or floats in [0, 1].
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
    grey = 255 * _BLACK + (1 - _BLACK) * (image @ np.array(_LUMA))
    share = np.interp(heat, (0, 1), _COLOUR)[..., None]
    return np.rint(share * _coloured(heat) + (1 - share) * grey[..., None]).astype("uint8")


def _coloured(heat):
    """Return colours (height, width, 3) from 0 to 255 for numbers (height, width) from 0 to 1."""
    anchors = np.array([list(bytes.fromhex(colour)) for colour in _SCALE])
    places = np.linspace(0, 1, len(anchors))
    return np.stack([np.interp(heat, places, anchors[:, channel]) for channel in range(3)], -1)
