"""How many pixels an image may have, checked in the graph: TensorFlow's decoders allocate what a header claims."""

import numpy as np
import tensorflow as tf

MAX_PIXELS = 178_956_970  # where Pillow, too, takes an image for a decompression bomb

# What a file begins with, where a dot is any byte; where its width and height stand, the place of their least byte and
# of the next three; how many of these 32 bits are skipped and read; what is added.
_BIG, _LITTLE = (3, 2, 1, 0), (0, 1, 2, 3)
_HEADERS = (
    (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", (16, 20), _BIG, (0, 0), 32, 0),
    (b"GIF8", (6, 8), _LITTLE, (0, 0), 16, 0),
    (b"BM", (18, 22), _LITTLE, (0, 0), 32, 0),  # the height is negative where the rows are stored from the top
    (b"RIFF....WEBPVP8 ", (26, 28), _LITTLE, (0, 0), 14, 0),
    (b"RIFF....WEBPVP8L", (21, 21), _LITTLE, (0, 14), 14, 1),
    (b"RIFF....WEBPVP8X", (24, 27), _LITTLE, (0, 0), 24, 1),
)
_HEADER_SIZE = 32


def jpeg_shape(contents, max_pixels=None):
    """Height, width and channels (int32) of a JPEG; raises `tf.errors.InvalidArgumentError` on one beyond the limit.

    Progressive ones may have a third as many pixels, for of these libjpeg keeps all coefficients, two bytes each, until
    the last scan.
    """
    shape = tf.image.extract_jpeg_shape(contents)
    max_pixels = MAX_PIXELS if max_pixels is None else max_pixels
    sides = tf.cast(shape[:2], tf.float64)

    def checked():
        times = 1.0 + 2.0 * tf.cast(is_progressive(contents), tf.float64)
        return limited(shape, tf.concat([sides, [times]], 0), max_pixels)

    # Most are small, and each operation costs them.
    return tf.cond(3.0 * tf.reduce_prod(sides) > max_pixels, checked, lambda: shape)


def limited_jpeg(contents, max_pixels=None):
    """A JPEG as it is; raises as `jpeg_shape` does."""
    with tf.control_dependencies([jpeg_shape(contents, max_pixels)]):
        return tf.identity(contents)


def limited_other(contents, max_pixels=None):
    """A file that is no JPEG as it is; raises `tf.errors.InvalidArgumentError` where its header is beyond the limit.

    So it does for a PNG that does not begin with its header: libpng would look for it behind other chunks.
    """
    sides = header_sides(contents)
    is_known = (tf.strings.substr(contents, 0, 4) != b"\x89PNG") | (tf.reduce_min(sides) > 0)
    check = tf.raw_ops.Assert(condition=is_known, data=["a PNG must begin with its header"])
    with tf.control_dependencies([check]):
        return limited(contents, sides, max_pixels)


def header_sides(contents):
    """Width and height (int64) that the header of a PNG, GIF, BMP or WebP claims; 0 for any other file."""
    padded = tf.strings.join([tf.strings.substr(contents, 0, _HEADER_SIZE), b"\0" * _HEADER_SIZE])  # may be shorter
    header = tf.io.decode_raw(tf.strings.substr(padded, 0, _HEADER_SIZE), tf.uint8)
    is_this = tf.reduce_all((header == _MAGIC) | ~_IS_MAGIC, axis=1)  # (rows of the table,)
    integers = tf.cast(tf.gather(header, _PLACES), tf.int64)  # (rows, 2, 4)
    sides = tf.reduce_sum(integers * (1, 2**8, 2**16, 2**24), axis=-1) // _DIVISORS % _MODULI + _ADDED
    sides = tf.minimum(sides, 2**32 - sides)  # those of 32 bits have a sign
    return tf.reduce_sum(tf.where(is_this[:, None], sides, 0), axis=0)


def limited(value, sides, max_pixels=None):
    """`value`, once the product of `sides` is found to be at most `max_pixels`; None stands for `MAX_PIXELS`."""
    max_pixels = MAX_PIXELS if max_pixels is None else max_pixels
    pixels = tf.abs(tf.reduce_prod(tf.cast(sides, tf.float64)))  # 65,500 x 65,500 is beyond int32
    # Not tf.debugging's, whose conditional costs images of 64 pixels a fifth of their time.
    message = f"an image must have at most {max_pixels:,} pixels"
    check = tf.raw_ops.Assert(condition=pixels <= max_pixels, data=[message])
    with tf.control_dependencies([check]):
        return tf.identity(value)


def is_progressive(contents):
    """Whether the marker of a progressive frame is among the bytes; coded pixels do not hold it, a thumbnail may."""
    data = tf.io.decode_raw(contents, tf.uint8)
    return tf.reduce_any((data[:-1] == 0xFF) & (data[1:] == 0xC2))


def _columns():
    """The table as arrays, for all rows are read at once."""
    magic = [magic.ljust(_HEADER_SIZE, b".") for magic, *_ in _HEADERS]
    magic = np.frombuffer(b"".join(magic), np.uint8).reshape(-1, _HEADER_SIZE)
    places = [[[start + byte for byte in order] for start in starts] for _, starts, order, *_ in _HEADERS]
    divisors = [[2**skipped for skipped in skips] for *_, skips, _, _ in _HEADERS]
    moduli, added = [[2**bits] for *_, bits, _ in _HEADERS], [[plus] for *_, plus in _HEADERS]
    return magic, magic != ord("."), np.array(places), np.array(divisors), np.array(moduli), np.array(added)


_MAGIC, _IS_MAGIC, _PLACES, _DIVISORS, _MODULI, _ADDED = _columns()
