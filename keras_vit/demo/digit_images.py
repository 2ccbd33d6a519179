"""digit_image: from a photo or drawing of one digit to the 8 x 8 grey values that the digits' model knows."""

import numpy as np
from PIL import Image, ImageFilter

_SIDE = 8  # pixels of an image of the data
_WORKING_SIDE = 128  # the longer side while ink is told from paper
_FINE_SIDE = 64  # height of the digit before it is averaged
_WIDEST = 48  # and its width at most: the data are 5 to 7 pixels wide
_MEAN_INK = 0.27  # the data have 0.30 to 0.32, whatever the digit
_THICKENINGS = 6
_LEAST_CONTRAST = 24  # pixel values between paper and ink
_PAPER_FILTER = 33  # pixels; wider than a stroke


def digit_image(image):
    """Prepares an image of one digit as scikit-learn's digits are: bright ink on black that fills the height.

    Ink is what differs from the paper around it, dark on light or light on dark. Its box is scaled to the full height,
    centred, thickened where the pen was thin, and averaged to 8 x 8 pixels.

    Args:
        image: uint8 (height, width, 1 or 3). One of 8 x 8 pixels is taken for an image of the data.

    Returns:
        uint8 array (8, 8, 1), 0 for paper and 255 for ink.

    Raises:
        ValueError: where nothing stands out from the paper, or the image has another shape or type.
    """
    image = np.asarray(image)
    if image.ndim != 3 or image.shape[-1] not in (1, 3) or image.dtype != np.uint8:
        raise ValueError(f"image must be uint8 (height, width, 1 or 3); got {image.dtype} of shape {image.shape}")
    grey = Image.fromarray(image[..., 0]) if image.shape[-1] == 1 else Image.fromarray(image).convert("L")
    if grey.size == (_SIDE, _SIDE):
        return np.asarray(grey)[..., None]
    ink = _ink(_shrink(grey))
    rows, columns = (np.flatnonzero(ink.any(axis)) for axis in (1, 0))
    cut = ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    return np.asarray(_fill(Image.fromarray(cut)).resize((_SIDE, _SIDE), Image.Resampling.BOX))[..., None]


def _shrink(grey):
    scale = _WORKING_SIDE / max(grey.size)
    if scale >= 1:
        return grey
    return grey.resize([max(1, round(side * scale)) for side in grey.size], Image.Resampling.BOX)


def _ink(grey):
    """uint8 (height, width): how far each pixel stands out from the paper, 0 for paper itself."""
    levels = np.asarray(grey, "float64")
    edge = np.concatenate([levels[0], levels[-1], levels[:, 0], levels[:, -1]])
    is_light = np.median(edge) > (levels.min() + levels.max()) / 2
    # The paper without the strokes, so that a shadow over one half of it is no ink.
    wide = (ImageFilter.MaxFilter if is_light else ImageFilter.MinFilter)(_PAPER_FILTER)
    paper = np.asarray(grey.filter(wide).filter(ImageFilter.GaussianBlur(_PAPER_FILTER / 4)), "float64")
    contrast = np.maximum(paper - levels if is_light else levels - paper, 0)
    highest = np.quantile(contrast, 0.995)
    if highest < _LEAST_CONTRAST:
        raise ValueError("the image must show a digit in ink that stands out from its paper; it is even")
    ink = np.rint(255 * np.clip(contrast / highest, 0, 1)).astype("uint8")
    ink[ink < _threshold(ink)] = 0
    kept = np.asarray(Image.fromarray(ink).filter(ImageFilter.MedianFilter(3))) > 0  # specks are dust
    return np.where(kept, ink, 0).astype("uint8") if kept.any() else ink


def _threshold(ink):
    """The pixel value that parts the histogram in two with the largest variance between them (N. Otsu, 1979)."""
    counts = np.bincount(ink.ravel(), minlength=256).astype("float64")
    below, levels = counts.cumsum(), (counts * np.arange(256)).cumsum()
    above = below[-1] - below
    with np.errstate(divide="ignore", invalid="ignore"):
        between = below * above * (levels / below - (levels[-1] - levels) / above) ** 2
    return max(1, int(np.nanargmax(between)))


def _fill(digit):
    """A digit on black at the full height, centred, with as much ink as the data have."""
    width = min(_WIDEST, max(1, round(digit.width * _FINE_SIDE / digit.height)))
    digit = digit.resize((width, _FINE_SIDE), Image.Resampling.BILINEAR)
    whole = Image.new("L", (_FINE_SIDE, _FINE_SIDE))
    whole.paste(digit, ((_FINE_SIDE - width) // 2, 0))
    for _ in range(_THICKENINGS):
        if np.asarray(whole).mean() >= 255 * _MEAN_INK:
            break
        whole = whole.filter(ImageFilter.MaxFilter(3))
    return whole
