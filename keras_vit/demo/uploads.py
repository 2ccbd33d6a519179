"""read_picture: a visitor's file to pixels; what is too large, damaged or no picture is refused in a sentence."""

import contextlib
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
    orientation = _check_header(name, contents)
    return _upright(np.asarray(encoded.decode(name, contents, 3)), orientation)


def _check_header(name, contents):
    """Raises where the header claims too many pixels; returns EXIF's orientation.

    Of what Pillow cannot read, the package's decoder says later what is wrong.
    """
    width = height = 0
    orientation = 1
    with contextlib.suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with Image.open(io.BytesIO(contents)) as header:
            width, height = header.size
            orientation = header.getexif().get(_ORIENTATION, 1)
    if width * height > MAX_PIXELS:
        raise ValueError(f"{name} must have at most {MAX_PIXELS:,} pixels; got {height} x {width}")
    return orientation


def _upright(pixels, orientation):
    if orientation == 1:
        return pixels
    image = Image.fromarray(pixels)
    image.getexif()[_ORIENTATION] = orientation
    return np.asarray(ImageOps.exif_transpose(image))
