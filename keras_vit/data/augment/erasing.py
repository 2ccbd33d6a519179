"""Random erasing (arXiv 1708.04896)."""

import math

import tensorflow as tf

from keras_vit.data.augment import values
from keras_vit.data.augment.geometry import fill_where

_ATTEMPTS = 10
# Mean and standard deviation of ImageNet's pixel values: this noise is standard normal after DeiT's standardisation.
_MEAN = (123.675, 116.28, 103.53)
_STD = (58.395, 57.12, 57.375)


def random_erasing(probability, min_area=0.02, max_area=1 / 3, min_aspect=0.3, max_aspect=None):
    """Return random erasing: fill one rectangle of an image with independent noise per pixel.

    This is timm's mode `pixel`, used by DeiT and Swin: area uniform, aspect ratio uniform on a logarithmic scale, up to
    10 attempts at a rectangle smaller than the image. timm's noise is standard normal on standardised values. Here, on
    pixel values, it has the mean and deviation of ImageNet's channels (their averages for grey images) and is clipped
    to [0, 255]. With DeiT's preprocessing both are equal except for the clipped tails.

    Args:
        probability: probability that an image is erased. DeiT and Swin: 0.25.
        min_area, max_area: share of the image, 0 < min_area <= max_area <= 1.
        min_aspect, max_aspect: height over width of the rectangle; None for 1 / min_aspect.

    Returns:
        Function of kind `image` (see `Operation`).
    """
    probability = values.check_number("probability", probability, 0.0, 1.0)
    areas = values.check_span("min_area", min_area, "max_area", max_area, limit=1.0)
    values.check_span("min_aspect", min_aspect, "min_aspect", min_aspect)
    max_aspect = 1 / min_aspect if max_aspect is None else max_aspect
    aspects = values.check_span("min_aspect", min_aspect, "max_aspect", max_aspect)

    def erase(image, seed):
        seeds = tf.unstack(tf.random.experimental.stateless_split(seed, 3))
        is_erased = tf.random.stateless_uniform((), seeds[0]) < probability
        return tf.cond(
            is_erased, lambda: _fill(image, draw_box(image, areas, aspects, seeds[1]), seeds[2]), lambda: image
        )

    return erase


def draw_box(image, areas, aspects, seed):
    """Draw (top, left, height, width) of a rectangle smaller than `image`; height and width are 0 if none fits."""
    draws = tf.random.stateless_uniform((4, _ATTEMPTS), seed)
    height, width = tf.unstack(tf.cast(tf.shape(image)[:2], tf.float32))
    area = height * width * (areas[0] + (areas[1] - areas[0]) * draws[0])
    aspect = tf.exp(math.log(aspects[0]) + math.log(aspects[1] / aspects[0]) * draws[1])
    heights, widths = tf.round(tf.sqrt(area * aspect)), tf.round(tf.sqrt(area / aspect))
    tops = tf.floor(draws[2] * (height - heights + 1))
    lefts = tf.floor(draws[3] * (width - widths + 1))
    fits = (heights < height) & (widths < width)
    box = tf.stack([tops, lefts, heights, widths])[:, tf.argmax(fits)]
    return tf.unstack(tf.cast(tf.where(tf.reduce_any(fits), box, 0.0), tf.int32))


def _fill(image, box, seed):
    top, left, height, width = box
    rows, columns, channels = image.shape
    mean, std = tf.constant(_MEAN), tf.constant(_STD)
    if channels == 1:
        mean, std = tf.reduce_mean(mean), tf.reduce_mean(std)
    noise = mean + std * tf.random.stateless_normal((height, width, channels), seed)
    noise = tf.clip_by_value(noise, 0.0, 255.0)
    beyond = ((top, rows - top - height), (left, columns - left - width), (0, 0))
    is_row = (tf.range(rows) >= top) & (tf.range(rows) < top + height)
    is_column = (tf.range(columns) >= left) & (tf.range(columns) < left + width)
    return tf.ensure_shape(fill_where(image, is_row, is_column, tf.pad(noise, beyond)), image.shape)
