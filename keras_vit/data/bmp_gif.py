"""Decode a BMP, or the first frame of a GIF, to the pixels of Pillow.

Pillow itself decodes them where Python is: the graph that does so makes the start of every pipeline slower.
"""

import io
import math

import numpy as np
import PIL.Image
import tensorflow as tf

from keras_vit.data import headers

# BMPs that TensorFlow reads: no OS/2; 8, 24 or 32 bits; not compressed, or with the usual masks
_COMMON_BMP = rb"BM\C{12}[\x28\x34\x38\x40\x6c\x7c]\x00{3}\C{10}[\x08\x18\x20]\x00[\x00\x03]\x00{3}\C*"
_COMMON_MASKS = b"\0\0\xff\0\0\xff\0\0\xff\0\0\0"


def decode(contents, max_pixels, has_python):
    """Return uint8 pixels (height, width, 3).

    Args:
        contents: scalar string tensor, an encoded file within the limit of pixels.
        max_pixels: maximum number of pixels of a frame.
        has_python: whether Pillow may decode it; False in an exported graph, which refuses rare kinds of BMP.

    Raises:
        tf.errors.InvalidArgumentError: when run on a damaged file, or on one of a kind that is refused.
    """
    if has_python:
        return tf.numpy_function(_read, [contents, max_pixels], tf.uint8, stateful=False)
    return _in_graph(contents, max_pixels)


def _read(contents, max_pixels):
    contents = np.asarray(contents, object).item()  # eager execution passes an array
    try:
        with PIL.Image.open(io.BytesIO(contents), formats=("BMP", "GIF")) as image:
            if math.prod(image.size) > max_pixels:  # a frame of a GIF may be larger than its screen
                raise ValueError(f"an image must have at most {max_pixels:,} pixels; got {image.size}")
            return np.asarray(image.convert("RGB"))
    except Exception as error:  # of many classes; a ValueError becomes an InvalidArgumentError
        raise ValueError(f"a BMP or GIF must be whole and of a kind that Pillow reads: {error}") from error


@headers.apart
def _in_graph(contents, max_pixels):
    def refused():
        allowed = "a BMP must have 8, 24 or 32 bits, no compression and no OS/2 header: convert it, for example to PNG"
        return headers.required(False, allowed, tf.zeros((0, 0, 3), tf.uint8))

    header = tf.strings.join([tf.strings.substr(contents, 0, 66), b"\0" * 66])  # padded: the file may be shorter
    is_common = tf.strings.regex_full_match(header, _COMMON_BMP) & (
        (tf.strings.substr(header, 30, 1) == b"\0") | (tf.strings.substr(header, 54, 12) == _COMMON_MASKS)
    )
    kinds = [
        (tf.strings.substr(header, 0, 4) == b"GIF8", lambda: _first_frame(contents, max_pixels)),
        (~is_common, refused),
        (tf.strings.substr(header, 28, 2) == b"\x08\x00", lambda: _with_palette(contents)),
    ]
    return tf.case(kinds, default=lambda: tf.io.decode_bmp(contents)[..., :3])


def _first_frame(contents, max_pixels):
    file, margin, color = headers.first_frame(contents, max_pixels)
    frame = tf.io.decode_image(file, channels=3, expand_animations=False)
    return tf.pad(frame - color, tf.pad(tf.stack(margin), ((0, 1), (0, 0)))) + color  # modulo 256


def _with_palette(contents):
    # TensorFlow returns the indices into the palette as if they were grey values.
    indices = tf.cast(tf.io.decode_bmp(contents)[..., 0], tf.int32)
    header_size = tf.io.decode_raw(tf.strings.substr(contents, 14, 4), tf.int32)[0]
    palette = tf.io.decode_raw(tf.strings.substr(contents, 14 + header_size, 4 * 256), tf.uint8)
    return tf.gather(tf.reshape(palette, (-1, 4))[:, 2::-1], indices)  # stored as blue, green, red, unused
