"""Figures as arrays of pixels, for the tests that look at what was drawn."""

import io

import numpy as np
from PIL import Image


def pixels_of(figure):
    """What `figure.savefig` writes, uint8 (height, width, 3)."""
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return np.asarray(Image.open(file).convert("RGB"))


def bytes_of(figure):
    """Length of the PNG."""
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return len(file.getvalue())


def find(pixels, tile):
    """The (top, left) where `tile` (height, width, 3) stands in `pixels`, exactly and once; raises if it does not."""
    height, width = tile.shape[:2]
    windows = np.lib.stride_tricks.sliding_window_view(pixels, (height, width), axis=(0, 1))
    places = [tuple(place) for place in np.argwhere((windows[..., 0, 0] == tile[0, 0]).all(-1))]
    found = [
        (top, left) for top, left in places if np.array_equal(pixels[top : top + height, left : left + width], tile)
    ]
    if len(found) != 1:
        raise ValueError(f"the tile stands at {found} of the image")
    return found[0]
