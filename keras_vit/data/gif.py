"""Cutting a GIF after its first frame in the graph, because TensorFlow decodes all frames even if one is used."""

import tensorflow as tf

from keras_vit.data import pixel_limit

_EXTENSION, _IMAGE, _TRAILER = 0x21, 0x2C, b"\x3b"
_SCREEN_SIZE = 13  # bytes of the header and the logical screen descriptor
_MAX_BLOCKS = 2**16  # of up to 255 bytes each: 16 MiB for one frame
_PADDING = 16  # zero bytes after the file, so that reading past the end of a short file is safe


def is_gif(contents):
    """Whether an encoded file (scalar string) starts as a GIF."""
    return tf.strings.substr(contents, 0, 4) == b"GIF8"


def first_frame(contents, max_pixels=None):
    """Cut a GIF after its first frame; a GIF with another structure is returned unchanged.

    Args:
        contents: scalar string tensor, an encoded GIF.
        max_pixels: maximum number of pixels of the frame; None uses `pixel_limit.MAX_PIXELS`.

    Returns:
        Scalar string tensor.

    Raises:
        tf.errors.InvalidArgumentError: when run on a frame with more pixels, or with more than 65,536 data blocks; a
            block can expand to a thousand times its length.
    """
    max_pixels = pixel_limit.MAX_PIXELS if max_pixels is None else max_pixels
    return _cut(tf.convert_to_tensor(contents), max_pixels, _MAX_BLOCKS)  # each bytes object would be traced again


@tf.function  # executed eagerly, a file of a hundred kilobytes takes a second
def _cut(contents, max_pixels, max_blocks):
    length = tf.strings.length(contents)
    data = tf.concat([tf.io.decode_raw(contents, tf.uint8), tf.zeros(_PADDING, tf.uint8)], 0)

    def byte(place):
        return tf.cast(data[tf.minimum(place, length)], tf.int32)

    def color_table(flags):
        """Return the size in bytes of the color table that `flags` announce."""
        return tf.where(flags >= 128, 3 * 2 ** (flags % 8 + 1), 0)

    def behind_blocks(place, blocks):
        """Return the place after a chain of blocks (each a length and its bytes) and the number of blocks so far."""

        def is_more(place, blocks):
            return (byte(place) > 0) & (blocks < max_blocks)

        place, blocks = tf.while_loop(is_more, lambda at, seen: (at + 1 + byte(at), seen + 1), (place, blocks))
        return place + 1, blocks + 1

    def skip_extension(place, blocks):
        return behind_blocks(place + 2, blocks)

    start = _SCREEN_SIZE + color_table(byte(10))
    extensions = tf.while_loop(
        lambda place, blocks: (byte(place) == _EXTENSION) & (blocks < max_blocks), skip_extension, (start, 0)
    )
    descriptor, blocks = extensions
    sides = [byte(descriptor + at) + 256 * byte(descriptor + at + 1) for at in (5, 7)]
    behind_table = descriptor + 10 + color_table(byte(descriptor + 9))
    end, blocks = behind_blocks(behind_table + 1, blocks)  # one byte is the size of the codes
    is_whole = (byte(descriptor) == _IMAGE) & (end <= length)
    few = tf.raw_ops.Assert(
        condition=blocks <= max_blocks, data=[f"a frame of a GIF must have at most {max_blocks:,} blocks"]
    )
    with tf.control_dependencies([few]):
        frame = tf.strings.join([tf.strings.substr(contents, 0, end), _TRAILER])
        frame = pixel_limit.limited(frame, sides, max_pixels)
        return tf.where(is_whole, frame, contents)
