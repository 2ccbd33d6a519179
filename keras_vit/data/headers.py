"""Read the header of an encoded image in the graph, before decoding: size, first frame of a GIF.

The number of pixels is checked before a decoder allocates memory. A GIF is cut after its first frame, because
TensorFlow decodes all frames even if one is used.
"""

import functools
from typing import Any

import numpy as np
import tensorflow as tf

MAX_PIXELS = 178_956_970  # Pillow's limit for a decompression bomb

# Columns: the first bytes of a file (a dot is any byte); the positions of width and height; the order of their bytes,
# least significant first; the number of low bits to skip, for each; the number of bits to read; a number to add.
_BIG, _LITTLE = (3, 2, 1, 0), (0, 1, 2, 3)
_HEADERS: tuple[tuple[Any, ...], ...] = (
    (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", (16, 20), _BIG, (0, 0), 32, 0),
    (b"GIF8", (6, 8), _LITTLE, (0, 0), 16, 0),
    (b"BM............\x0c", (18, 20), _LITTLE, (0, 0), 16, 0),  # OS/2
    (b"BM", (18, 22), _LITTLE, (0, 0), 32, 0),  # a negative height means that the rows are stored top-down
    (b"RIFF....WEBPVP8 ", (26, 28), _LITTLE, (0, 0), 14, 0),
    (b"RIFF....WEBPVP8L", (21, 21), _LITTLE, (0, 14), 14, 1),
    (b"RIFF....WEBPVP8X", (24, 27), _LITTLE, (0, 0), 24, 1),
)
_HEADER_SIZE = 32
# the columns as arrays, so that all rows are evaluated at once
_STARTS, _SIDES, _ORDERS, _SKIPPED, _BITS, _ADDED = zip(*_HEADERS, strict=True)
_MAGIC = np.array([list(start.ljust(_HEADER_SIZE, b".")) for start in _STARTS], np.uint8)
_PLACES = np.array(_SIDES)[:, :, None] + np.array(_ORDERS)[:, None]
_DIVISORS, _MODULI = 2 ** np.array(_SKIPPED), 2 ** np.array(_BITS, np.int64)[:, None]

# of a GIF
_EXTENSION, _CONTROL, _IMAGE, _TRAILER = 0x21, 0xF9, 0x2C, b"\x3b"
_SCREEN_SIZE = 13  # bytes of the header and the logical screen descriptor
_MAX_BLOCKS = 2**16  # of up to 255 bytes each: 16 MiB for one frame
_PADDING = 16  # zero bytes after the file, so that reading past the end of a short file is safe

# Decorator of functions for rare formats: TensorFlow optimises them only when they first run. As a part of the graph of
# each pipeline, they would take a quarter of the time until its first batch.
apart = functools.partial(tf.function, autograph=False, experimental_attributes={"_noinline": True})


def jpeg_shape(contents, max_pixels=None):
    """Return height, width and channels (int32) of a JPEG.

    The limit for a progressive JPEG is a third of `max_pixels`, because libjpeg keeps all coefficients of such a file
    in memory, two bytes each, until the last scan.

    Raises:
        tf.errors.InvalidArgumentError: when run on a JPEG with more pixels.
    """
    shape, max_pixels = tf.image.extract_jpeg_shape(contents), max_pixels or MAX_PIXELS

    def checked():
        return tf.cond(
            is_progressive(contents),
            lambda: limited(shape, shape[:2], max_pixels // 3, " as a progressive JPEG"),
            lambda: limited(shape, shape[:2], max_pixels),
        )

    # Most images are small; this skips the check for them.
    return tf.cond(3.0 * tf.reduce_prod(tf.cast(shape[:2], tf.float64)) > max_pixels, checked, lambda: shape)


def limited_other(contents, max_pixels=None):
    """Check the header of a file that is not a JPEG, and return the file unchanged.

    Raises:
        tf.errors.InvalidArgumentError: when run on a file whose header exceeds the limit, or on a PNG that does not
            start with its header (libpng would search for the header after other chunks).
    """
    sides = header_sides(contents)
    is_known = (tf.strings.substr(contents, 0, 4) != b"\x89PNG") | (tf.reduce_min(sides) > 0)
    return limited(required(is_known, "a PNG must start with its header", contents), sides[::-1], max_pixels)


def header_sides(contents):
    """Return width and height (int64) from the header of a PNG, GIF, BMP or WebP; 0 for any other file."""
    padded = tf.strings.join([tf.strings.substr(contents, 0, _HEADER_SIZE), b"\0" * _HEADER_SIZE])  # may be shorter
    header = tf.reshape(tf.io.decode_raw(tf.strings.substr(padded, 0, _HEADER_SIZE), tf.uint8), [_HEADER_SIZE])
    is_this = tf.reduce_all((header == _MAGIC) | (_MAGIC == ord(".")), axis=1)  # (rows of the table,)
    integers = tf.cast(tf.bitcast(tf.gather(header, _PLACES), tf.uint32), tf.int64)  # (rows, 2)
    sides = integers // _DIVISORS % _MODULI + np.array(_ADDED)[:, None]
    sides = tf.minimum(sides, 2**32 - sides)  # sides of 32 bits are signed
    return tf.gather(tf.where(is_this[:, None], sides, 0), tf.argmax(is_this))  # the first row that fits


def limited(value, sides, max_pixels=None, kind=""):
    """Return `value`; raise if the product of `sides` exceeds `max_pixels` (None: `MAX_PIXELS`).

    The error contains `kind`, a description of the image, and `sides`, its height and width.
    """
    max_pixels = max_pixels or MAX_PIXELS
    pixels = tf.abs(tf.reduce_prod(tf.cast(sides, tf.float64)))  # 65,500 x 65,500 exceeds int32
    return required(pixels <= max_pixels, f"an image must have at most {max_pixels:,} pixels{kind}; got", value, sides)


def required(condition, message, value, *found):
    """Return `value`; raise an error with this message and the tensors `found` unless the condition holds."""
    # tf.debugging uses a conditional, which makes reading an image of 64 x 64 pixels a fifth slower.
    with tf.control_dependencies([tf.raw_ops.Assert(condition=condition, data=[message, *found])]):
        return tf.identity(value)


def is_progressive(contents):
    """Whether a JPEG contains the marker of a progressive frame; coded pixels never contain it, but a thumbnail may."""
    data = tf.io.decode_raw(contents, tf.uint8)
    return tf.reduce_any((data[:-1] == 0xFF) & (data[1:] == 0xC2))


def first_frame(contents, max_pixels=None):
    """Cut a GIF after its first frame, without extensions; a GIF with another structure is returned unchanged.

    Without the extensions, no color is transparent: Pillow drops alpha, and TensorFlow would make such pixels black.

    Args:
        contents: scalar string tensor, an encoded GIF.
        max_pixels: maximum number of pixels of the frame; None uses `MAX_PIXELS`.

    Returns:
        `(file, place, color)`: a scalar string tensor; the rows above and below the frame on its screen, and the
        columns to its left and right, int32 (2, 2); and the color of this margin, uint8 (3,).

    Raises:
        tf.errors.InvalidArgumentError: when run on a frame or screen with more pixels, or with more than 65,536 data
            blocks; a block can expand to a thousand times its length.
    """
    # as a tensor, because tf.function would be traced again for each bytes object
    return _cut(tf.convert_to_tensor(contents), max_pixels or MAX_PIXELS, _MAX_BLOCKS)


@apart  # eager execution takes a second for a file of a hundred kilobytes
def _cut(contents, max_pixels, max_blocks):
    length = tf.strings.length(contents)
    padded = tf.strings.join([contents, b"\0" * _PADDING])
    data = tf.io.decode_raw(padded, tf.uint8)

    def byte(place):
        return tf.cast(tf.gather(data, tf.minimum(place, length)), tf.int32)  # a slice would take twice the operations

    def color_table(flags):
        """Return the size in bytes of the color table that `flags` describe."""
        return tf.where(flags >= 128, 3 * 2 ** (flags % 8 + 1), 0)

    def behind_blocks(place, blocks):
        """Return the place after a chain of blocks (each a length and its bytes) and the number of blocks so far."""

        def is_more(place, blocks):
            return (byte(place) > 0) & (blocks < max_blocks)

        place, blocks = tf.while_loop(is_more, lambda at, seen: (at + 1 + byte(at), seen + 1), (place, blocks))
        return place + 1, blocks + 1

    start = _SCREEN_SIZE + color_table(byte(10))
    descriptor, blocks = tf.while_loop(
        lambda place, blocks: (byte(place) == _EXTENSION) & (blocks < max_blocks),
        lambda place, blocks: behind_blocks(place + 2, blocks),
        (start, 0),
    )
    edges = tf.strings.substr(padded, tf.minimum(descriptor, length) + 1, 8)
    left, top, width, height = tf.unstack(tf.cast(tf.io.decode_raw(edges, tf.uint16), tf.int32), num=4)
    screen = tf.cast(tf.io.decode_raw(tf.strings.substr(padded, 6, 4), tf.uint16), tf.int32)
    screen = tf.maximum(screen, (left + width, top + height))
    has_table, behind_table = byte(descriptor + 9) >= 128, descriptor + 10 + color_table(byte(descriptor + 9))
    # A graphic control extension may state the transparent color, which then fills the margin.
    is_clear = (
        (byte(descriptor - 8) == _EXTENSION) & (byte(descriptor - 7) == _CONTROL) & (byte(descriptor - 5) % 2 > 0)
    )
    table = tf.where(has_table, descriptor + 10, _SCREEN_SIZE) + 3 * tf.where(is_clear, byte(descriptor - 2), 0)
    color = tf.gather(data, tf.minimum(table + np.arange(3, dtype=np.int32), length))
    end, blocks = behind_blocks(behind_table + 1, blocks)  # + 1 for the byte that stores the code size
    is_whole = (byte(descriptor) == _IMAGE) & (end <= length)
    end = required(blocks <= max_blocks, f"a frame of a GIF must have at most {max_blocks:,} blocks", end)
    # TensorFlow decodes a frame on a screen of the same size: at the place of the frame, it would cut pixels.
    rest = tf.strings.substr(padded, tf.minimum(descriptor, length) + 5, tf.maximum(end - descriptor - 5, 0))
    frame = tf.strings.substr(padded, 0, tf.minimum(start, length)) + b",\0\0\0\0" + rest + _TRAILER
    margin = ((top, screen[1] - top - height), (left, screen[0] - left - width))
    return tf.where(is_whole, limited(frame, screen[::-1], max_pixels), contents), tf.where(is_whole, margin, 0), color
