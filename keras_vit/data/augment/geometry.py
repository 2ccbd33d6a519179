"""Geometric operations: flip, shift, cutout, random erasing and affine transforms."""

import math

import tensorflow as tf

from keras_vit import checks
from keras_vit.data.augment import values

GREY = 128  # the fill value of the original RandAugment
# Mean and standard deviation of ImageNet's pixel values. DeiT's standardisation turns normal noise with this mean and
# deviation into standard normal noise.
_MEAN = (123.675, 116.28, 103.53)
_STD = (58.395, 57.12, 57.375)


def flip():
    """Return a random left-right flip with probability 1/2, of kind `image` (see `Operation`)."""
    return tf.image.stateless_random_flip_left_right


def shift():
    """Return a random shift by up to an eighth of the sides, filled with black, of kind `image` (see `Operation`)."""

    def move(image, seed):
        height, width, _ = image.shape
        down, right = height // 8, width // 8
        padded = tf.pad(image, ((down, down), (right, right), (0, 0)))
        return tf.image.stateless_random_crop(padded, image.shape, seed)

    return move


def cutout(size, fill=GREY):
    """Return cutout (arXiv 1708.04552): fill one square per image.

    The centre is uniform over the image, so the border may cut the square.

    Args:
        size: side of the square in pixels, even.
        fill: pixel value on [0, 255].

    Returns:
        Function of kind `image` (see `Operation`).
    """
    checks.check_integer("size", size)
    if size % 2:
        raise ValueError(f"size must be divisible by 2; got size={size}")
    fill = values.check_number("fill", fill, 0.0, 255.0)
    return lambda image, seed: cut_out(image, size // 2, tf.random.stateless_uniform((2,), seed), fill)


def random_erasing(probability, min_area=0.02, max_area=1 / 3, min_aspect=0.3, max_aspect=None):
    """Return random erasing (arXiv 1708.04896): fill one rectangle of an image with independent noise per pixel.

    This is timm's mode `pixel`, used by DeiT and Swin: the area is uniform, the aspect ratio is uniform on a
    logarithmic scale, and the first of 10 rectangles that is smaller than the image is used. timm's noise is standard
    normal on standardised values. Here, the noise has the mean and deviation of ImageNet's channels (their averages for
    grey images) and is clipped to [0, 255]. With DeiT's preprocessing both are equal except for the clipped tails.

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
            is_erased, lambda: _fill_noise(image, draw_box(image, areas, aspects, seeds[1]), seeds[2]), lambda: image
        )

    return erase


def cut_out(image, reach, place, fill=GREY):
    """Fill the square of side `2 * reach` around a pixel.

    Args:
        image: (height, width, channels).
        reach: pixels, an integer.
        place: position of the centre, two numbers in [0, 1): down and across.
        fill: a pixel value.
    """
    rows_and_columns = [values.covered(image.shape[axis], place[axis], reach) for axis in (0, 1)]
    return fill_where(image, *rows_and_columns, tf.cast(fill, image.dtype))


def draw_box(image, areas, aspects, seed):
    """Draw (top, left, height, width) of a rectangle smaller than `image`; height and width are 0 if none fits."""
    height, width = sides = tf.unstack(tf.cast(tf.shape(image)[:2], tf.float32))
    box = values.draw_box(sides, areas, aspects, seed, lambda rows, columns: (rows < height) & (columns < width), 0.0)
    return tf.unstack(box)


def fill_where(image, is_row, is_column, levels):
    """Return `image` with `levels` where the flags of the row and of the column are both set."""
    inside = is_row[:, None] & tf.repeat(is_column, image.shape[-1])[None, :]
    inside = tf.reshape(tf.cast(inside, image.dtype), image.shape)
    # Products of whole images are several times as fast as tf.where.
    return image * (1 - inside) + levels * inside


def warp(image, matrix):
    """Return an image whose pixel (x, y) is the input pixel nearest to (a x + b y + c, d x + e y + f), or grey.

    The result is that of ImageProjectiveTransformV3, in half the time.

    Args:
        image: (height, width, channels). x goes right, y goes down, and (0, 0) is the centre of the first pixel.
        matrix: (a, b, c, d, e, f), numbers or scalar tensors.
    """
    height, width, channels = image.shape
    a, b, c, d, e, f = (tf.cast(value, tf.float32) for value in matrix)
    x, y = tf.range(width, dtype=tf.float32)[None, :], tf.range(height, dtype=tf.float32)[:, None]
    column, row = _nearest(a * x + b * y + c), _nearest(d * x + e * y + f)
    is_inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    place = tf.where(is_inside, row * width + column, height * width)
    outside = tf.fill((1, channels), tf.cast(GREY, image.dtype))
    return tf.gather(tf.concat([tf.reshape(image, (-1, channels)), outside], 0), place)


def translate(image, distance, axis):
    """Translate an image along `axis` as `warp` does: output pixel x is input pixel x + distance, rounded.

    Args:
        image: (height, width, channels).
        distance: pixels, a number or scalar tensor.
        axis: 0 (down) or 1 (right).
    """
    length = image.shape[axis]
    place = _nearest(tf.range(length, dtype=tf.float32) + tf.cast(distance, tf.float32))
    is_inside = (place >= 0) & (place < length)
    padded = tf.pad(image, [(0, int(axis == side)) for side in range(3)], constant_values=GREY)
    return tf.gather(padded, tf.where(is_inside, place, length), axis=axis)


def rotation(image, degrees):
    """Return the matrix for `warp` that rotates `image` about its middle."""
    radians = tf.cast(degrees, tf.float32) * (math.pi / 180)
    cos, sin = tf.cos(radians), tf.sin(radians)
    y, x = tf.unstack((tf.cast(tf.shape(image)[:2], tf.float32) - 1) / 2)
    return cos, -sin, x - cos * x + sin * y, sin, cos, y - sin * x - cos * y


def _nearest(place):
    """Round to integers, halves away from 0, as TensorFlow's image transform does."""
    return tf.cast(tf.sign(place) * tf.floor(tf.abs(place) + 0.5), tf.int32)


def _fill_noise(image, box, seed):
    top, left, height, width = box
    rows, columns, channels = image.shape
    mean, std = tf.constant(_MEAN), tf.constant(_STD)
    if channels == 1:
        mean, std = tf.reduce_mean(mean), tf.reduce_mean(std)
    noise = mean + std * tf.random.stateless_normal((height, width, channels), seed)
    noise = tf.clip_by_value(noise, 0.0, 255.0)
    beyond = ((top, rows - top - height), (left, columns - left - width), (0, 0))
    inside = tf.pad(tf.ones_like(noise), beyond)
    return tf.ensure_shape(image * (1 - inside) + tf.pad(noise, beyond), image.shape)
