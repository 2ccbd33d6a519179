"""Converting an encoded image to model input: one implementation for evaluation, prediction and serving."""

import functools
import math

import tensorflow as tf

from keras_vit import checks
from keras_vit.config import Preprocessing
from keras_vit.data import bmp_gif, headers, orientation
from keras_vit.layers.patches import PADDING

# Pillow, and with it timm, torchvision and Hugging Face, resizes the width first and rounds to integers before it
# resizes the height. The same two steps reproduce Pillow's pixel values except for a few in 10,000, which differ by 1.
# Resizing both axes at once differs by 0.2 on average and by up to 7 (measured on ImageNet images).
_PILLOW_KERNELS = {"bilinear_antialias": "triangle", "bicubic": "keyscubic"}
# ITU-R 601-2 luma in 1/65536, as in Pillow: the weights sum to 1, so grey stays grey.
_LUMA = (19595, 38470, 7471)
_LARGE, _STRIP = 2**20, 2**17  # pixels: larger images are processed in strips, so that float copies stay small
# ratio of the sides of a JPEG to those at which it is decoded -> how many times smaller the result must be; without the
# factor of 1.5, a ViT-Ti/16 recognised 2 or 3 of 200 images less, with it at most 1
_RATIOS = {1: 0.0, 2: 2 * 1.5, 4: 4 * 1.5, 8: 8 * 1.5}
_OF_MANY_SIZES = ("nearest", "lower_bound", "shortest", "center_padding")  # rules of `sizing`
_ELONGATED = 8  # ratio of height to width above which the height is resized first


def decode(contents, channels, max_pixels=None, scaled_for=None, has_python=True):
    """Decode one image in the graph to the same pixels as Pillow.

    The formats are JPEG (grey, YCbCr, CMYK, progressive), PNG (grey, colour, palette, alpha, 16 bit), BMP, the
    first frame of a GIF, and WebP that is not animated. Alpha is dropped, and 16-bit values are
    cut to their upper 8 bits. The EXIF orientation is applied, see `orientation.read`.

    Args:
        contents: scalar string tensor, a complete encoded file.
        channels: 1 (grey) or 3 (red, green, blue) channels of the result, independent of the file.
        max_pixels: maximum height times width in the header; None uses `headers.MAX_PIXELS`.
        scaled_for: `Preprocessing` for which a JPEG is decoded at 1/2, 1/4 or 1/8 of its size if this leaves at least
            1.5 times the sides to which it resizes; None decodes the full size.
        has_python: whether Pillow may decode BMP and GIF; False in an exported graph, which refuses rare kinds of BMP.

    Returns:
        uint8 tensor (height, width, channels).

    Raises:
        tf.errors.InvalidArgumentError: when run on another format, a damaged file or an image with more pixels; the
            number of pixels is checked before memory is allocated.
    """
    if channels not in (1, 3):
        raise ValueError(
            f"images with {channels} channels must be arrays, such as of keras_vit.data.from_arrays; a file gives 1 "
            "(grey) or 3 (red, green, blue)"
        )
    return _decoder(channels, max_pixels or headers.MAX_PIXELS, scaled_for, has_python)(contents)


@functools.cache
def _decoder(channels, max_pixels, scaled_for, has_python):
    """Return `decode` as a function that is traced once for all pipelines."""

    @tf.function(input_signature=[tf.TensorSpec((), tf.string)], autograph=False)
    def decoder(contents):
        is_rare = tf.strings.regex_full_match(tf.strings.substr(contents, 0, 4), rb"BM\C\C|GIF8")
        kind = tf.where(tf.io.is_jpeg(contents), 0, tf.where(is_rare, 1, 2))
        ways = [
            lambda: (_decode_jpeg(contents, max_pixels, scaled_for), orientation.read(contents, is_jpeg=True)),
            lambda: (bmp_gif.decode(headers.limited_other(contents, max_pixels), max_pixels, has_python), 1),
            lambda: (
                _decode_png_or_webp(headers.limited_other(contents, max_pixels)),
                orientation.read(contents, is_jpeg=False),
            ),
        ]
        image, turn = tf.switch_case(kind, ways)
        image = orientation.turned(image, turn)
        image.set_shape((None, None, 3))
        return match_channels(image, channels)

    return decoder


def check(preprocessing):
    """Return `preprocessing` if it is a `Preprocessing`, else raise a `TypeError`."""
    expected = "a keras_vit.Preprocessing, such as model.preprocessing"
    checks.check_instance("preprocessing", preprocessing, Preprocessing, expected)
    if preprocessing.sizing not in (None, "stretch") or preprocessing.multiple > 1:
        raise ValueError(
            f"preprocessing must have sizing=None; got {preprocessing.sizing!r} of a task model (use "
            "keras_vit.predict, keras_vit.tasks.prepare for one image, or preprocessing.at(image_size))"
        )
    return preprocessing


def apply(preprocessing, image):
    """Resize, crop and standardise one image.

    Args:
        preprocessing: a `Preprocessing`.
        image: tensor (height, width, channels), uint8 or float32 on [0, 255]. It has the channels of `preprocessing`,
            or 1, 3 or 4 of them for one with 1 or 3: then grey and colour are converted (ITU-R 601-2 luma), and a
            fourth channel, alpha, is dropped.

    Returns:
        float32 tensor (*preprocessing.image_size, preprocessing.channels), equal to `(x / 255 - mean) / std`. With
        `max_tokens`, the image has its own size and is cut into patches, see `sequence`.
    """
    return in_patches(preprocessing, standardise(preprocessing, resize(preprocessing, image)))


def in_patches(preprocessing, image):
    """Return the image itself, or, with `max_tokens`, its `sequence`."""
    if preprocessing.max_tokens is None:
        return image
    return sequence(image, preprocessing.patch_size, preprocessing.max_tokens)


def row_shape(preprocessing):
    """Return the shape of what `apply` returns."""
    if preprocessing.max_tokens is None:
        return (*preprocessing.image_size, preprocessing.channels)
    return preprocessing.max_tokens, math.prod(preprocessing.patch_size) * preprocessing.channels + 5


def as_inputs(preprocessing, rows):
    """Return the inputs of a model for a batch of results of `apply`."""
    return rows if preprocessing.max_tokens is None else split(rows)


def match_channels(image, channels):
    """Convert (height, width, 1, 3 or 4 channels) to 1 channel (ITU-R 601-2 luma, as in Pillow) or 3; drop alpha.

    An image that has the channels already stays as it is, whatever their number.
    """
    if image.shape.rank == 3 and image.shape[-1] == channels:
        return image
    if image.shape.rank != 3 or channels not in (1, 3) or image.shape[-1] not in (1, 3, 4):
        known = "1, 3 or 4" if channels in (1, 3) else channels
        raise ValueError(f"image must have shape (height, width, {known} channels); got {image.shape}")
    image = image[..., :3]
    if image.shape[-1] == channels:
        return image
    if channels == 3:
        return tf.repeat(image, 3, axis=-1)
    return tf.ensure_shape(_by_strips(image, 0, _luma), (*image.shape[:2], 1))


def resize(preprocessing, image):
    """Resize and crop one image: float32 (*preprocessing.image_size, preprocessing.channels) on [0, 255].

    This is the first half of `apply`. `preprocessing.rounding` selects the longer side and the start of the crop.
    `bicubic` and `bilinear_antialias` return integers within [0, 255], as Pillow does; the other interpolations are
    those of `tf.image.resize`. With `pad`, sides are rounded half up, as in SAM's code. The rules of `sizing` are those
    of `keras_vit.tasks.prepare`, except `windows`, `square` and `box`.
    """
    image = match_channels(tf.convert_to_tensor(image), preprocessing.channels)
    if image.dtype not in (tf.uint8, tf.float32):
        raise TypeError(f"image must be uint8, or float32 on the scale [0, 255]; got {image.dtype.name}")
    kernel = _PILLOW_KERNELS.get(preprocessing.interpolation)
    resizer = _resize_like_tensorflow if kernel is None else _resize_like_pillow
    if kernel is None and not isinstance(preprocessing.size, tuple):
        image = _middle(image)
    resized = resized_sides(preprocessing, tf.shape(image)[:2])
    is_whole = preprocessing.max_tokens or preprocessing.pad or preprocessing.sizing
    wanted = resized if is_whole else tf.constant(preprocessing.image_size, tf.int64)
    start = (resized - wanted) // 2
    if preprocessing.rounding == "torchvision":
        start += tf.cast((resized - wanted) % 4 == 3, tf.int64)  # Python's round: 1.5 becomes 2, and 2.5 does too
    image = resizer(image, resized, start, wanted, kernel or preprocessing.interpolation)
    is_centred, has_black = preprocessing.sizing == "center_padding", preprocessing.sizing == "longest"
    if preprocessing.pad or is_centred or has_black:
        sides = tf.shape(image)[:2]
        missing = -sides % preprocessing.multiple if is_centred else preprocessing.image_size - sides
        before = missing // 2 * is_centred
        color = [0.0 if has_black else 255.0 * value for value in preprocessing.mean]
        image = _framed(image, tf.stack([before, missing - before], 1), color)
    is_open = preprocessing.max_tokens or preprocessing.multiple > 1 or preprocessing.sizing in _OF_MANY_SIZES
    sides = (None, None) if is_open else preprocessing.image_size
    return tf.ensure_shape(image, (*sides, preprocessing.channels))


def native_grid(height, width, preprocessing):
    """Return the rows and columns of patches of an image that keeps its aspect ratio, int64 scalars.

    The scale is the largest one with ceil(scale * height / patch height) * ceil(scale * width / patch width) <=
    `max_tokens`, as in NaFlex (arXiv 2502.14786, section 2.4.2). At this scale, one side is a multiple of the patch.

    Args:
        height, width: int64 scalars above 0, in pixels.
        preprocessing: a `Preprocessing` with `patch_size` and `max_tokens`.
    """
    counts = tf.range(1, preprocessing.max_tokens + 1, dtype=tf.int64)
    down, across = (side * step for side, step in zip((height, width), preprocessing.patch_size[::-1], strict=True))
    # the scales at which the rows, or the columns, are whole: then the others are rounded up
    grids = [[counts, -(-counts * across // down)], [-(-counts * down // across), counts]]
    grids = tf.transpose(tf.concat(grids, axis=1))
    scales = tf.concat([counts * across, counts * down], axis=0)  # up to a common factor
    fits = tf.reduce_prod(grids, axis=1) <= preprocessing.max_tokens
    return tf.unstack(grids[tf.argmax(tf.where(fits, scales, 0))])


def sequence(image, patch_size, length):
    """Cut an image into patches, each a row of its values and coordinates, and pad them to `length` rows.

    Args:
        image: float32 (height, width, channels); `patch_size` divides height and width.
        patch_size: (height, width) of a patch in pixels.
        length: number of rows.

    Returns:
        float32 (length, patch height * patch width * channels + 5): the pixels in the order row, column, channel, then
        row, column, rows, columns and the image in the sequence, 0, see `PatchPlaces`. `split` separates both.
    """
    image, (height, width) = tf.convert_to_tensor(image), patch_size
    rows, columns = tf.unstack(tf.shape(image)[:2] // patch_size)
    patches = tf.transpose(tf.reshape(image, (rows, height, columns, width, image.shape[-1])), (0, 2, 1, 3, 4))
    patches = tf.reshape(patches, (-1, height * width * image.shape[-1]))
    index = tf.range(rows * columns)
    sizes = tf.zeros_like(index) + rows, tf.zeros_like(index) + columns
    coordinates = tf.stack([index // columns, index % columns, *sizes, tf.zeros_like(index)], axis=1)
    padding = [0.0] * patches.shape[1] + [float(value) for value in PADDING]
    missing = tf.repeat(tf.constant([padding]), length - rows * columns, axis=0)
    present = tf.concat([patches, tf.cast(coordinates, tf.float32)], 1)
    return tf.ensure_shape(tf.concat([present, missing], 0), (length, len(padding)))


def split(rows):
    """Return the rows of `sequence`, (..., length, width + 5), as the inputs of a model."""
    return {"patches": rows[..., :-5], "coordinates": tf.cast(rows[..., -5:], tf.int32)}


def standardise(preprocessing, image):
    """Map [0, 255] to `(x / 255 - mean) / std`, the second half of `apply`; if the model does this, only cast."""
    if preprocessing.in_model:
        return tf.cast(image, tf.float32)
    mean = [255.0 * value for value in preprocessing.mean]
    std = [255.0 * value for value in preprocessing.std]
    if len({*zip(mean, std, strict=True)}) == 1:
        return (image - mean[0]) / std[0]  # with the default values, the official (x - 127.5) / 127.5
    width = image.shape[-2]
    if width is None:
        return (image - tf.constant(mean)) / tf.constant(std)
    # TensorFlow broadcasts a row several times as fast as a pixel.
    rows = tf.reshape(image, (-1, width * preprocessing.channels))
    rows = (rows - tf.tile(tf.constant(mean), [width])) / tf.tile(tf.constant(std), [width])
    return tf.ensure_shape(tf.reshape(rows, tf.shape(image)), image.shape)


def _decode_jpeg(contents, max_pixels, scaled_for):
    def decoded(ratio):
        # TensorFlow's default transform is less exact (a pixel value may differ from Pillow's by 20) and no faster.
        return tf.io.decode_jpeg(contents, channels=3, ratio=ratio, dct_method="INTEGER_ACCURATE")

    shape = headers.jpeg_shape(contents, max_pixels)
    with tf.control_dependencies([shape]):
        if scaled_for is None:
            return decoded(1)
        smaller = tf.reduce_min(shape[:2] / tf.cast(resized_sides(scaled_for, shape[:2]), tf.int32))
        index = tf.reduce_sum(tf.cast(smaller >= [*_RATIOS.values()], tf.int32)) - 1
        return tf.switch_case(index, [functools.partial(decoded, ratio) for ratio in _RATIOS])


def _decode_any(contents):
    # Always three channels: TensorFlow 2.21 writes out of bounds when it decodes an animated WebP with channels=0,
    # and it cannot decode CMYK, BMP, GIF or WebP to one channel.
    return tf.io.decode_image(contents, channels=3, expand_animations=False)


def _decode_png_or_webp(contents):
    header = tf.strings.join([tf.strings.substr(contents, 0, 21), b"\0" * 21])  # padded: the file may be shorter
    is_moving = (tf.strings.substr(header, 12, 4) == b"VP8X") & (tf.io.decode_raw(header, tf.uint8)[20] & 2 > 0)
    return tf.cond(
        (tf.strings.substr(header, 8, 4) == b"WEBP") & ~is_moving,
        # to as many channels as the file has: TensorFlow does not drop alpha
        lambda: tf.io.decode_webp(contents)[0, ..., :3],
        lambda: _decode_any(contents),
    )


def _luma(image):
    if image.dtype == tf.uint8:
        # Floats are faster and exact here: every sum is an integer below 2**24.
        red, green, blue = (tf.cast(image[..., place, None], tf.float32) for place in range(3))
        weighted = _LUMA[0] * red + _LUMA[1] * green + _LUMA[2] * blue
        return tf.cast((weighted + 2.0**15) * 2.0**-16, tf.uint8)
    return tf.tensordot(image, tf.constant(_LUMA, image.dtype) / 2**16, 1)[..., None]


def _resize_like_tensorflow(image, resized, start, wanted, method):
    def work(image):
        return tf.cast(tf.image.resize(image, tf.cast(resized, tf.int32), method=method), tf.float32)

    # TensorFlow resizes floats twice as fast as bytes, with equal results; a large image stays uint8.
    image = tf.cond(tf.size(image) <= _LARGE, lambda: work(tf.cast(image, tf.float32)), lambda: work(image))
    (height, width), (top, left) = tf.unstack(wanted), tf.unstack(start)
    return image[top : top + height, left : left + width]


def _middle(image):
    # The crop uses only the middle; without this, an image of 1 by 5000 pixels would be resized to 248 by 1,240,000.
    height, width = tf.unstack(tf.shape(image)[:2])
    longest = _ELONGATED * tf.minimum(height, width)
    top, left = tf.maximum(height - longest, 0) // 2, tf.maximum(width - longest, 0) // 2
    return image[top : height - top, left : width - left]


def _resize_like_pillow(image, resized, start, wanted, kernel):
    wanted = tf.cast(wanted, tf.int32)

    def one_pass(image, axis):
        """Resize one axis; compute only the part that the crop keeps."""
        old = tf.shape(image)
        scale = tf.cast(resized[axis], tf.float32) / tf.cast(old[axis], tf.float32)
        offset = tf.cast(-start[axis], tf.float32)
        size = wanted[axis]
        values = tf.raw_ops.ScaleAndTranslate(
            images=image[None],
            size=(size, old[1]) if axis == 0 else (old[0], size),
            scale=(scale, 1.0) if axis == 0 else (1.0, scale),
            translation=(offset, 0.0) if axis == 0 else (0.0, offset),
            kernel_type=kernel,
            antialias=True,
        )[0]
        return tf.clip_by_value(tf.floor(values + 0.5), 0.0, 255.0)

    def both(image, first, second):
        return one_pass(_by_strips(image, second, lambda strip: one_pass(strip, first), tf.float32), second)

    is_column = tf.shape(image)[0] > _ELONGATED * tf.shape(image)[1]
    return tf.cond(is_column, lambda: both(image, 0, 1), lambda: both(image, 1, 0))


def _by_strips(image, axis, work, dtype=None):
    """Return `work(image)`, computed in strips of rows (axis 0) or columns (axis 1) if the image is large.

    Args:
        image: (height, width, channels).
        axis: 0 or 1; along this axis, `work` must treat every row, or column, independently.
        work: function from a strip of the image to a tensor of rank 3 with the same length along `axis`.
        dtype: dtype of the result of `work`; None for the dtype of the image.
    """
    # Without the branch and the loop, the graph of a pipeline of many crops is much smaller.
    if image.shape[:2].is_fully_defined() and image.shape[:2].num_elements() <= _LARGE:
        return work(image)
    rows_first = (lambda strip: strip) if axis == 0 else (lambda strip: tf.transpose(strip, (1, 0, 2)))
    length, across = tf.shape(image)[axis], tf.shape(image)[1 - axis]
    step = tf.maximum(_STRIP // tf.maximum(across, 1), 1)

    def in_strips():
        def add(index, strips):
            part = slice(index * step, (index + 1) * step)
            strip = image[part] if axis == 0 else image[:, part]
            return index + 1, strips.write(index, rows_first(work(strip)))

        count = (length + step - 1) // step
        strips = tf.TensorArray(dtype or image.dtype, count, infer_shape=False, element_shape=[None, None, None])
        _, strips = tf.while_loop(lambda index, _: index < count, add, (0, strips), parallel_iterations=1)
        return rows_first(strips.concat())

    return tf.cond(length * across > _LARGE, in_strips, lambda: work(image))


def resized_sides(preprocessing, shape):
    """Return height and width after the resize and before the crop or the padding, for those of an image: int64."""
    size, shape = preprocessing.size, tf.cast(shape, tf.int64)
    sides = tf.cast(shape, tf.float64)
    if preprocessing.max_tokens:
        return tf.stack(native_grid(*tf.unstack(shape), preprocessing)) * preprocessing.patch_size
    if preprocessing.sizing:
        return tf.cast(preprocessing.apply_rule(tf, sides), tf.int64)
    if preprocessing.pad:
        scale = tf.reduce_min(tf.constant(size, tf.float64) / sides)
        return tf.maximum(tf.cast(tf.floor(sides * scale + 0.5), tf.int64), 1)
    if isinstance(size, tuple):
        return tf.constant(size, tf.int64)
    if preprocessing.rounding != "big_vision":
        return size * shape // tf.reduce_min(shape)
    return tf.cast(tf.round(size * sides / tf.reduce_min(sides)), tf.int64)


def _framed(image, margin, color):
    """Return an image in a frame of one color: `margin` are the rows above and below, the columns left and right."""
    margin = tf.pad(margin, ((0, 1), (0, 0)))
    return tf.where(tf.pad(tf.ones_like(image, tf.bool), margin), tf.pad(image, margin), color)
