"""Random crops of an encoded file, or of pixels, to the image size of the model."""

import tensorflow as tf

from keras_vit import checks
from keras_vit.config import Preprocessing
from keras_vit.config.preprocessing import INTERPOLATIONS
from keras_vit.data import headers, orientation
from keras_vit.data import preprocessing as preparation
from keras_vit.data.augment import values


def inception_crop(min_area=0.05, max_area=1.0, min_aspect=0.75, max_aspect=1.33, interpolation="bilinear"):
    """Return the crop that the official ViT, AugReg and BiT models were trained with.

    `tf.image.stateless_sample_distorted_bounding_box` draws the window: the aspect ratio is uniform in its range, then
    the height is uniform between the heights for the smallest and the largest area. If none of 100 windows fits, the
    whole image is used. The window is resized to the image size of the model without keeping its aspect ratio.

    Args:
        min_area, max_area: share of the image, 0 < min_area <= max_area <= 1.
        min_aspect, max_aspect: width over height of the window; both sides are rounded to whole pixels.
        interpolation: as in `Preprocessing`; the official code uses bilinear without antialias.

    Returns:
        Function of kind `crop` (see `Operation`).
    """

    def window(shape, areas, aspects, seed):
        start, size, _ = tf.image.stateless_sample_distorted_bounding_box(
            shape,
            tf.zeros((0, 0, 4)),
            seed,
            min_object_covered=0.0,
            aspect_ratio_range=aspects,
            area_range=areas,
            use_image_if_no_bounding_boxes=True,
        )
        return tf.concat([start[:2], size[:2]], 0)

    return _crop_of(window, min_area, max_area, min_aspect, max_aspect, interpolation)


def random_resized_crop(min_area=0.08, max_area=1.0, min_aspect=3 / 4, max_aspect=4 / 3, interpolation="bicubic"):
    """Return the crop of DeiT and Swin (torchvision's and timm's RandomResizedCrop).

    Unlike in `inception_crop`, the area is uniform, and the aspect ratio is uniform on a logarithmic scale. If none of
    10 windows fits, the largest central window within the aspect ratios is used.

    Args:
        min_area, max_area: share of the image, 0 < min_area <= max_area <= 1.
        min_aspect, max_aspect: width over height of the window.
        interpolation: as in `Preprocessing`; DeiT and Swin use bicubic.

    Returns:
        Function of kind `crop` (see `Operation`).
    """

    def window(shape, areas, aspects, seed):
        height, width = sides = tf.unstack(tf.cast(shape[:2], tf.float32))

        def fits(heights, widths):
            return (heights >= 1) & (heights <= height) & (widths >= 1) & (widths <= width)

        # the largest central window within the aspect ratios
        rows = tf.minimum(height, tf.round(width / aspects[0]))
        columns = tf.minimum(width, tf.round(height * aspects[1]))
        central = tf.stack([(height - rows) // 2, (width - columns) // 2, rows, columns])
        return values.draw_box(sides, areas, aspects, seed, fits, central, by_width=True)

    return _crop_of(window, min_area, max_area, min_aspect, max_aspect, interpolation)


def random_crop(resize, interpolation="bilinear"):
    """Return a crop that resizes the image to a fixed size, then cuts a random window.

    It is the fine-tuning crop of BiT (arXiv 1912.11370, section 3.3, HyperRule): `random_crop(160)` for 128 pixels,
    `random_crop(448)` for 384.

    Args:
        resize: side in pixels before the crop, or a pair (height, width); at least the image size of the model.
        interpolation: as in `Preprocessing`.

    Returns:
        Function of kind `crop` (see `Operation`).
    """
    resized = checks.check_pair("resize", resize)
    checks.check_choice("interpolation", interpolation, INTERPOLATIONS)

    def crop(contents, size, channels, seed):
        if any(side < wanted for side, wanted in zip(resized, size, strict=True)):
            raise ValueError(f"random_crop's resize must be at least the image's size {size}; got {resized}")
        image = preparation.decode(contents, channels) if contents.dtype == tf.string else contents
        image = preparation.resize(_protocol(resized, channels, interpolation), image)
        return tf.image.stateless_random_crop(image, (*size, channels), seed)

    return crop


def _crop_of(window, min_area, max_area, min_aspect, max_aspect, interpolation):
    """Return the crop whose window (top, left, height, width) is drawn by `window(shape, areas, aspects, seed)`."""
    areas = values.check_span("min_area", min_area, "max_area", max_area, limit=1.0)
    aspects = values.check_span("min_aspect", min_aspect, "max_aspect", max_aspect)
    checks.check_choice("interpolation", interpolation, INTERPOLATIONS)

    def crop(contents, size, channels, seed):
        image = cut(contents, channels, lambda shape: window(shape, areas, aspects, seed))
        return preparation.resize(_protocol(tuple(size), channels, interpolation), image)

    return crop


def cut(contents, channels, window):
    """Return the pixels of a window; most JPEGs are decoded only inside it, with the same result.

    Args:
        contents: an encoded file (scalar string) or pixels (height, width, 1, 3 or 4 channels).
        channels: channels of the result, 1 or 3.
        window: function from the shape (height, width, channels) to (top, left, height, width).

    Returns:
        Tensor (height, width, channels) of the window.
    """
    if contents.dtype != tf.string:
        return _slice(preparation.match_channels(contents, channels), window)
    image = tf.cond(
        _can_be_cut(contents),
        lambda: preparation.match_channels(_cut_jpeg(contents, window), channels),
        lambda: _slice(preparation.decode(contents, channels), window),
    )
    return tf.ensure_shape(image, (None, None, channels))


def _slice(image, window):
    top, left, height, width = tf.unstack(window(tf.shape(image)))
    return image[top : top + height, left : left + width]


def _can_be_cut(contents):
    # A truncated file has no end marker: a window above the damage could be decoded, while the whole image raises an
    # error. A file with an EXIF rotation is excluded, because the window is relative to the rotated image.
    ends = tf.strings.substr(contents, -2, 2) == b"\xff\xd9"
    return tf.io.is_jpeg(contents) & ends & (orientation.read(contents, is_jpeg=True) == 1)


def _cut_jpeg(contents, window):
    shape = headers.jpeg_shape(contents)
    top, left, height, width = tf.unstack(window(shape))
    # The colour of a column is interpolated between its neighbours, so one more column on either side is decoded.
    begin, end = tf.maximum(left - 1, 0), tf.minimum(left + width + 1, shape[1])
    image = tf.image.decode_and_crop_jpeg(
        contents, tf.stack([top, begin, height, end - begin]), channels=3, dct_method="INTEGER_ACCURATE"
    )
    return image[:, left - begin : left - begin + width]


def _protocol(size, channels, interpolation):
    return Preprocessing(size=size, interpolation=interpolation, mean=(0.5,) * channels, std=(0.5,) * channels)
