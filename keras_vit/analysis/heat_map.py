"""A map of attention in colours, with its picture in grey below, for pictures too dark or too bright for an overlay."""

import numpy as np
import numpy.typing as npt

from keras_vit.analysis.overlay import as_uint8, enlarge

# Inferno by Nathaniel J. Smith and Stefan van der Walt (github.com/BIDS/colormap, CC0 1.0), at every tenth from 0 to
# 0.9. Its steps look equally large to the colour-blind, too; the tenth that is left fades to white and is not used.
_SCALE = ("000004", "160b39", "420a68", "6a176e", "932667", "bc3754", "dd513a", "f37819", "fca50a", "f6d746")
_LUMA = (0.299, 0.587, 0.114)  # of red, green and blue, ITU-R BT.601
_COLOUR = 0.65  # share of the colours; the rest is the picture
_PALEST = 0.3  # grey of a black picture; white stays white


def heat_map(
    picture: npt.ArrayLike, attention: npt.ArrayLike, *, smooth: bool = True, quantile: float = 0.97
) -> np.ndarray:
    """Shows attention in colours over a picture in grey.

    From dark over violet and orange to yellow, a scale that is as even in brightness as to the eye. Where the most
    attention lies is brighter than where the least lies, even if the picture is black there and white here.

    Args:
        picture: (height, width, 1 or 3) or (height, width): uint8, or floats in [0, 1].
        attention: (rows, columns), finite numbers from 0, of the patches of this picture, such as a map of
            `attention_rollout`. An even map has the colour of the most attention everywhere.
        smooth: False enlarges every cell to a plain rectangle instead.
        quantile: in (0, 1]: where attention is cut, as in `overlay`.

    Returns:
        uint8 array (height, width, 3).

    Raises:
        ValueError: on another shape or range.
    """
    picture = as_uint8("picture", picture)
    colours = _coloured(enlarge(attention, picture.shape[:2], smooth=smooth, quantile=quantile))
    grey = 255 * _PALEST + (1 - _PALEST) * (picture @ np.array(_LUMA))
    return np.rint(_COLOUR * colours + (1 - _COLOUR) * grey[..., None]).astype("uint8")


def _coloured(heat):
    """Colours (height, width, 3) from 0 to 255 of numbers (height, width) from 0 to 1."""
    anchors = np.array([list(bytes.fromhex(colour)) for colour in _SCALE])
    places = np.linspace(0, 1, len(anchors))
    return np.stack([np.interp(heat, places, anchors[:, channel]) for channel in range(3)], -1)
