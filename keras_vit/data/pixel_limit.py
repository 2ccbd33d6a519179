"""The maximum number of pixels of an image, checked in the graph before a decoder allocates memory for them."""

import numpy as np
import tensorflow as tf

MAX_PIXELS = 178_956_970  # Pillow's limit for a decompression bomb

# The first bytes of a file (a dot is any byte); where its width and height are, and the order of their bytes from the
# least significant; how many of these 32 bits are skipped, how many are read, and what is added.
_BIG, _LITTLE = (3, 2, 1, 0), (0, 1, 2, 3)
_HEADERS = (
    (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", (16, 20), _BIG, (0, 0), 32, 0),
    (b"GIF8", (6, 8), _LITTLE, (0, 0), 16, 0),
    (b"BM", (18, 22), _LITTLE, (0, 0), 32, 0),  # a negative height means that the rows are stored top-down
    (b"RIFF....WEBPVP8 ", (26, 28), _LITTLE, (0, 0), 14, 0),
    (b"RIFF....WEBPVP8L", (21, 21), _LITTLE, (0, 14), 14, 1),
    (b"RIFF....WEBPVP8X", (24, 27), _LITTLE, (0, 0), 24, 1),
)
_HEADER_SIZE = 32


def jpeg_shape(contents, max_pixels=None):
    """Return height, width and channels (int32) of a JPEG.

    A progressive JPEG may have a third as many pixels, because libjpeg keeps all its coefficients, two bytes each,
    until the last scan.

    Raises:
        tf.errors.InvalidArgumentError: when run on a JPEG with more pixels.
    """
    shape = tf.image.extract_jpeg_shape(contents)
    max_pixels = MAX_PIXELS if max_pixels is None else max_pixels
    sides = tf.cast(shape[:2], tf.float64)

    def checked():
        times = 1.0 + 2.0 * tf.cast(is_progressive(contents), tf.float64)
        return limited(shape, tf.concat([sides, [times]], 0), max_pixels)

    # Most images are small; this skips the check for them.
    return tf.cond(3.0 * tf.reduce_prod(sides) > max_pixels, checked, lambda: shape)


def limited_jpeg(contents, max_pixels=None):
    """Return a JPEG unchanged; raise as `jpeg_shape` does."""
    with tf.control_dependencies([jpeg_shape(contents, max_pixels)]):
        return tf.identity(contents)


def limited_other(contents, max_pixels=None):
    """Return a file that is not a JPEG unchanged.

    Raises:
        tf.errors.InvalidArgumentError: when run on a file whose header exceeds the limit, or on a PNG that does not
            start with its header; libpng would search for it after other chunks.
    """
    sides = header_sides(contents)
    is_known = (tf.strings.substr(contents, 0, 4) != b"\x89PNG") | (tf.reduce_min(sides) > 0)
    check = tf.raw_ops.Assert(condition=is_known, data=["a PNG must start with its header"])
    with tf.control_dependencies([check]):
        return limited(contents, sides, max_pixels)


def header_sides(contents):
    """Return width and height (int64) from the header of a PNG, GIF, BMP or WebP; 0 for any other file."""
    padded = tf.strings.join([tf.strings.substr(contents, 0, _HEADER_SIZE), b"\0" * _HEADER_SIZE])  # may be shorter
    header = tf.io.decode_raw(tf.strings.substr(padded, 0, _HEADER_SIZE), tf.uint8)
    is_this = tf.reduce_all((header == _MAGIC) | ~_IS_MAGIC, axis=1)  # (rows of the table,)
    integers = tf.cast(tf.gather(header, _PLACES), tf.int64)  # (rows, 2, 4)
    sides = tf.reduce_sum(integers * (1, 2**8, 2**16, 2**24), axis=-1) // _DIVISORS % _MODULI + _ADDED
    sides = tf.minimum(sides, 2**32 - sides)  # sides of 32 bits are signed
    return tf.reduce_sum(tf.where(is_this[:, None], sides, 0), axis=0)


def limited(value, sides, max_pixels=None):
    """Return `value`; raise if the product of `sides` exceeds `max_pixels` (None: `MAX_PIXELS`)."""
    max_pixels = MAX_PIXELS if max_pixels is None else max_pixels
    pixels = tf.abs(tf.reduce_prod(tf.cast(sides, tf.float64)))  # 65,500 x 65,500 exceeds int32
    # tf.debugging uses a conditional, which adds a fifth to the time of an image of 64 pixels.
    message = f"an image must have at most {max_pixels:,} pixels"
    check = tf.raw_ops.Assert(condition=pixels <= max_pixels, data=[message])
    with tf.control_dependencies([check]):
        return tf.identity(value)


def is_progressive(contents):
    """Whether the bytes contain the marker of a progressive frame; coded pixels never contain it, a thumbnail may."""
    data = tf.io.decode_raw(contents, tf.uint8)
    return tf.reduce_any((data[:-1] == 0xFF) & (data[1:] == 0xC2))


def _columns():
    """Return the columns of the table as arrays, so that all rows are evaluated at once."""
    magic = [magic.ljust(_HEADER_SIZE, b".") for magic, *_ in _HEADERS]
    magic = np.frombuffer(b"".join(magic), np.uint8).reshape(-1, _HEADER_SIZE)
    places = [[[start + byte for byte in order] for start in starts] for _, starts, order, *_ in _HEADERS]
    divisors = [[2**skipped for skipped in skips] for *_, skips, _, _ in _HEADERS]
    moduli, added = [[2**bits] for *_, bits, _ in _HEADERS], [[plus] for *_, plus in _HEADERS]
    return magic, magic != ord("."), np.array(places), np.array(divisors), np.array(moduli), np.array(added)


_MAGIC, _IS_MAGIC, _PLACES, _DIVISORS, _MODULI, _ADDED = _columns()
