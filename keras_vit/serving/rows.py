"""Convert encoded images to model input row by row in the graph, so that an unreadable one does not affect others."""

import tensorflow as tf

from keras_vit.data import headers, preprocessing
from keras_vit.data.batches import stacked

# name of a format in messages -> (position, bytes that identify it)
_FORMATS = {
    "JPEG": (0, b"\xff\xd8\xff"),
    "PNG": (0, b"\x89PNG"),
    "BMP": (0, b"BM"),
    "GIF": (0, b"GIF8"),
    "WebP": (8, b"WEBP"),
}


def read_rows(image_bytes, protocol, max_pixels, on_error):
    """Decode and preprocess encoded images one at a time, because a large image needs much memory.

    An image of 64 million pixels needs about 200 MB. A progressive JPEG needs as much for a third of the pixels, which
    is its limit. An image that EXIF rotates needs 400 MB, a GIF 250 MB, and a BMP 750 MB, because its file is as large
    as its pixels.

    Args:
        image_bytes: string tensor (batch,), complete encoded files.
        protocol: a `Preprocessing`.
        max_pixels: maximum height times width in the header of an image.
        on_error: `"row"` returns a blank row and the reason for an unreadable image; `"raise"` fails.

    Returns:
        `(rows, errors)`: float32 (batch, *`row_shape(protocol)`) and string (batch,), `""` for a readable image.

    Raises:
        tf.errors.InvalidArgumentError: when run with `on_error="raise"` on an unreadable image.
    """
    shape, sides = preprocessing.row_shape(protocol), protocol.patch_size or protocol.image_size
    blank = preprocessing.in_patches(protocol, tf.zeros((*sides, protocol.channels)))

    def read(contents):
        image = preprocessing.decode(contents, protocol.channels, max_pixels, has_python=False)
        return tf.ensure_shape(preprocessing.apply(protocol, image), shape), tf.constant("")

    def answer(contents):
        """Return a dataset of one element: the result of the first function that does not fail."""
        one = tf.data.Dataset.from_tensors(contents)
        found = one.map(read).ignore_errors()
        for reason_of in (_too_large, _unreadable):
            failed = one.map(lambda file, reason_of=reason_of: (blank, reason_of(file, max_pixels)))
            found = found.concatenate(failed.ignore_errors())
        return found.take(1)

    files = tf.data.Dataset.from_tensor_slices(image_bytes)
    return stacked(files.map(read) if on_error == "raise" else files.flat_map(answer))


def _too_large(contents, max_pixels):
    """Return the reason for an image beyond the limit; fail for other images."""
    is_jpeg = tf.io.is_jpeg(contents)
    sides = tf.cond(
        is_jpeg,
        lambda: tf.cast(tf.image.extract_jpeg_shape(contents)[1::-1], tf.int64),
        lambda: headers.header_sides(contents),
    )
    is_progressive = is_jpeg & headers.is_progressive(contents)
    limit = tf.where(is_progressive, max_pixels // 3, max_pixels)
    is_beyond = tf.reduce_prod(tf.cast(sides, tf.float64)) > tf.cast(limit, tf.float64)
    sides = headers.required(is_beyond, "the image is not too large", sides)
    of_progressive = f"the limit of a progressive JPEG is {max_pixels // 3:,}"
    most = tf.where(is_progressive, of_progressive, f"the limit is {max_pixels:,}")
    width, height = tf.unstack(tf.strings.as_string(sides), num=2)
    return tf.strings.join(["an image of ", width, " x ", height, " pixels; ", most])


def _unreadable(contents, _):
    """Return the reason for an image that cannot be decoded."""
    error = tf.constant(f"not an image in a supported format ({', '.join(_FORMATS)})")
    start = tf.strings.join([tf.strings.substr(contents, 0, 12), b"\0" * 12])  # the file may be shorter
    for name, (place, magic) in _FORMATS.items():
        is_this = tf.strings.substr(start, place, len(magic)) == magic
        error = tf.where(is_this, f"a {name} that is damaged, unsupported, or larger than its header states", error)
    return tf.where(tf.strings.length(contents) == 0, "the file is empty", error)
