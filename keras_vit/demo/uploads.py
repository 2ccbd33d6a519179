"""read_image: a visitor's file to pixels; what is too large, damaged or no image is refused in a sentence."""

import contextlib
import io
import pathlib
import warnings

import numpy as np
import tensorflow as tf
from PIL import Image

from keras_vit.data import encoded, pixel_limit

MAX_BYTES = 20_000_000
MAX_PIXELS = 64_000_000  # as an exported model takes by default; 25,000 x 25,000 grey pixels fit in 20 MB otherwise


def read_image(path):
    """Reads a JPEG, PNG, BMP, GIF or WebP file, upright as the camera was held.

    Args:
        path: of the file; messages call it by its last part alone, for a visitor need not know where it lies.

    Returns:
        uint8 array (height, width, 3).

    Raises:
        ValueError: on a file that is no image, damaged, or too large.
    """
    path = pathlib.Path(path)
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise ValueError(f"{path.name} must have at most {MAX_BYTES:,} bytes; got {size:,}")
    return read_bytes(path.name, path.read_bytes())


def read_bytes(name, contents):
    """Reads the bytes of such a file, which messages call `name`; see `read_image`."""
    _check_header(name, contents)
    return np.asarray(encoded.decode(name, contents, 3))


def _check_header(name, contents):
    """Raises where the header claims too many pixels.

    Of what Pillow cannot read, the package's decoder says later what is wrong.
    """
    width, height = pixel_limit.header_sides(tf.constant(contents)).numpy()  # 0 of a JPEG
    with contextlib.suppress(Exception), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if not width:
            with Image.open(io.BytesIO(contents)) as header:
                width, height = header.size
    if width * height > MAX_PIXELS:
        raise ValueError(f"{name} must have at most {MAX_PIXELS:,} pixels; got {height} x {width}")
