"""How many pixels a picture may have, checked in the graph: TensorFlow's decoders allocate what a header claims."""

import tensorflow as tf

MAX_PIXELS = 178_956_970  # where Pillow, too, takes a picture for a decompression bomb

# What the file begins with, where width and height stand, their type, whether the least byte comes first.
# A WebP has at most 16,383 x 16,383 pixels, half as many again, whatever its header says.
_HEADERS = (
    (b"\x89PNG", 16, tf.int32, False),
    (b"GIF8", 6, tf.uint16, True),
    (b"BM", 18, tf.int32, True),  # the height is negative where the rows are stored from the top
)
_HEADER_SIZE = 26


def jpeg_shape(contents):
    """Height, width and channels (int32) of a JPEG; raises `tf.errors.InvalidArgumentError` on one beyond the limit."""
    shape = tf.image.extract_jpeg_shape(contents)
    return _limited(shape, shape[:2])


def limited_jpeg(contents):
    """A JPEG as it is; raises as `jpeg_shape` does."""
    return _limited(contents, tf.image.extract_jpeg_shape(contents)[:2])


def limited_other(contents):
    """A file that is no JPEG as it is; raises `tf.errors.InvalidArgumentError` where its header is beyond the limit."""
    header = tf.strings.join([tf.strings.substr(contents, 0, _HEADER_SIZE), b"\0" * _HEADER_SIZE])  # may be shorter
    sides = tf.zeros(2, tf.float64)
    for magic, start, dtype, is_little in _HEADERS:
        raw = tf.io.decode_raw(tf.strings.substr(header, start, 2 * dtype.size), dtype, little_endian=is_little)
        is_this = tf.strings.substr(header, 0, len(magic)) == magic
        sides = tf.where(is_this, tf.cast(raw, tf.float64), sides)
    return _limited(contents, sides)


def _limited(value, sides):
    """`value`, once the product of `sides` is found to be within the limit."""
    pixels = tf.abs(tf.reduce_prod(tf.cast(sides, tf.float64)))  # 65,500 x 65,500 is beyond int32
    # Not tf.debugging's, whose conditional costs pictures of 64 pixels a fifth of their time.
    message = f"a picture must have at most {MAX_PIXELS:,} pixels"
    check = tf.raw_ops.Assert(condition=pixels <= MAX_PIXELS, data=[message])
    with tf.control_dependencies([check]):
        return tf.identity(value)
