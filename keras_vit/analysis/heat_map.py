"""A map of attention in colours, with its image in grey below, for images too dark or too bright for an overlay."""

import numpy as np
import numpy.typing as npt

from keras_vit.analysis.overlay import as_uint8, enlarge

# Inferno by Nathaniel J. Smith and Stefan van der Walt (github.com/BIDS/colormap, CC0 1.0), at every tenth from 0 to
# 0.9. Equal steps look equally large, to the colour-blind too; the tenth that is left fades to white and is not used.
_SCALE = ("000004", "160b39", "420a68", "6a176e", "932667", "bc3754", "dd513a", "f37819", "fca50a", "f6d746")
_LUMA = (0.299, 0.587, 0.114)  # of red, green and blue, ITU-R BT.601
_COLOUR = (0.55, 0.75)  # share of the colours where attention is least and most; the rest is the image
_BLACK = 0.3  # the grey that black becomes; white stays white


def heat_map(
    image: npt.ArrayLike, attention: npt.ArrayLike, *, smooth: bool = True, quantile: float = 0.97
) -> np.ndarray:
    """Show attention in colours over an image in grey.

    The colours go from dark over violet and orange to yellow and grow brighter on their way, on images of any colour:
    a black object that is attended to is brighter than a white wall that is not. The map is enlarged, blurred, cut and
    stretched as for `overlay`; the scale is Inferno (bids.github.io/colormap) without its last tenth.

    Args:
        image: (height, width, 1 or 3) or (height, width): uint8, or floats in [0, 1].
        attention: (rows, columns), finite numbers from 0, of the patches of this image, such as a map of
            `attention_rollout`. An even map has the colour of the most attention everywhere.
        smooth: False enlarges every cell to a plain rectangle instead.
        quantile: in (0, 1]: where attention is cut, as in `overlay`.

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
    """Colours (height, width, 3) from 0 to 255 of numbers (height, width) from 0 to 1."""
    anchors = np.array([list(bytes.fromhex(colour)) for colour in _SCALE])
    places = np.linspace(0, 1, len(anchors))
    return np.stack([np.interp(heat, places, anchors[:, channel]) for channel in range(3)], -1)
