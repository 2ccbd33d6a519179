"""read_picture: a visitor's file to pixels; what is too large, damaged or no picture is refused in a sentence."""

import io
import pathlib
import warnings

import numpy as np
from PIL import Image, ImageOps

from keras_vit.data import encoded

MAX_BYTES = 20_000_000
MAX_PIXELS = 64_000_000  # as an exported model takes by default; 25,000 x 25,000 grey pixels fit in 20 MB otherwise
_ORIENTATION = 0x0112  # EXIF's tag: how the camera was held


def read_picture(path):
    """Reads a JPEG, PNG, BMP, GIF or WebP file, upright as the camera was held.

    Args:
        path: of the file; messages call it by its last part alone, for a visitor need not know where it lies.

    Returns:
        uint8 array (height, width, 3).

    Raises:
        ValueError: on a file that is no picture, damaged, or too large.
    """
    path = pathlib.Path(path)
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise ValueError(f"{path.name} must have at most {MAX_BYTES:,} bytes; got {size:,}")
    return read_bytes(path.name, path.read_bytes())


def read_bytes(name, contents):
    """Reads the bytes of such a file, which messages call `name`; see `read_picture`."""
    turned = _check_pixels(name, contents)
    return turned(np.asarray(encoded.decode(name, contents, 3)))


def _check_pixels(name, contents):
    """Raises where the header claims too many pixels; returns the function that turns them upright."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(contents)) as header:
                (width, height), exif = header.size, header.getexif()
    except Exception:  # of many kinds; the decoder says what is wrong with the file
        return lambda pixels: pixels
    if width * height > MAX_PIXELS:
        raise ValueError(f"{name} must have at most {MAX_PIXELS:,} pixels; got {height} x {width}")
    return lambda pixels: _upright(pixels, exif.get(_ORIENTATION, 1))


def _upright(pixels, orientation):
    if orientation == 1:
        return pixels
    image = Image.fromarray(pixels)
    image.getexif()[_ORIENTATION] = orientation
    return np.asarray(ImageOps.exif_transpose(image))
