"""Convert encoded images to model input row by row in the graph, so that an unreadable one does not affect others."""

import tensorflow as tf

from keras_vit.data import headers, preprocessing

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
    blank = lambda: preprocessing.in_patches(protocol, tf.zeros((*sides, protocol.channels)))  # noqa: E731

    def read(contents):
        image = preprocessing.decode(contents, protocol.channels, max_pixels, has_python=False)
        return tf.ensure_shape(preprocessing.apply(protocol, image), shape), tf.constant("")

    if on_error == "raise":
        specs = tf.TensorSpec(shape, tf.float32), tf.TensorSpec((), tf.string)
        return tf.map_fn(read, image_bytes, fn_output_signature=specs, parallel_iterations=1)

    def answer(contents):
        """Return a dataset of one element: the result of the first function that does not fail."""
        one = tf.data.Dataset.from_tensors(contents)
        ways = read, _too_large(max_pixels, blank), _unreadable(blank)
        first, *others = (one.map(way).ignore_errors() for way in ways)
        for other in others:
            first = first.concatenate(other)
        return first.take(1)

    rows = tf.data.Dataset.from_tensor_slices(image_bytes).flat_map(answer)
    nothing = tf.zeros((0, *shape)), tf.zeros((0,), tf.string)
    rows = rows.batch(tf.maximum(tf.size(image_bytes, tf.int64), 1))
    images, errors = rows.concatenate(tf.data.Dataset.from_tensors(nothing)).take(1).get_single_element()
    return tf.ensure_shape(images, (None, *shape)), tf.ensure_shape(errors, (None,))


def _too_large(max_pixels, blank):
    """Return a function from an image beyond the limit to a blank row and the reason; it fails for other images."""

    def answer(contents):
        def of_jpeg():
            sides = tf.cast(tf.image.extract_jpeg_shape(contents)[1::-1], tf.int64)
            return sides, headers.is_progressive(contents)

        of_other = lambda: (headers.header_sides(contents), tf.constant(False))  # noqa: E731
        sides, is_progressive = tf.cond(tf.io.is_jpeg(contents), of_jpeg, of_other)
        limit = tf.where(is_progressive, max_pixels // 3, max_pixels)
        is_beyond = tf.reduce_prod(tf.cast(sides, tf.float64)) > tf.cast(limit, tf.float64)
        with tf.control_dependencies([tf.raw_ops.Assert(condition=is_beyond, data=["the image is not too large"])]):
            width, height = tf.unstack(tf.strings.as_string(sides), num=2)
        most = tf.where(
            is_progressive,
            f"the limit of a progressive JPEG is {max_pixels // 3:,}",
            f"the limit is {max_pixels:,}",
        )
        return blank(), tf.strings.join(["an image of ", width, " x ", height, " pixels; ", most])

    return answer


def _unreadable(blank):
    """Return a function from an image that cannot be decoded to a blank row and the reason."""

    def answer(contents):
        error = tf.constant(f"not an image in a supported format ({', '.join(_FORMATS)})")
        start = tf.strings.join([tf.strings.substr(contents, 0, 12), b"\0" * 12])  # the file may be shorter
        for name, (place, magic) in _FORMATS.items():
            is_this = tf.strings.substr(start, place, len(magic)) == magic
            error = tf.where(is_this, f"a {name} that is damaged, unsupported, or larger than its header states", error)
        return blank(), tf.where(tf.strings.length(contents) == 0, "the file is empty", error)

    return answer
