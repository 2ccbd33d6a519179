"""Checks of the numbers in augmentation strings, and random draws that several operations share."""

import math

import tensorflow as tf

from keras_vit import checks

_ATTEMPTS = 10  # attempts to draw a rectangle, as in torchvision and timm


def check_number(name, value, least=0.0, most=math.inf):
    """Return `value` as a finite float within [least, most]."""
    limits = f"of at least {least:g}" if most == math.inf else f"from {least:g} to {most:g}"
    return checks.check_number(name, value, f"number {limits}", lambda number: least <= number <= most)


def check_span(least_name, least, most_name, most, limit=math.inf):
    """Return the pair as floats with `0 < least <= most <= limit`."""
    least, most = check_number(least_name, least), check_number(most_name, most)
    if not 0.0 < least <= most <= limit:
        raise ValueError(
            f"{least_name} and {most_name} must satisfy 0 < {least_name} <= {most_name}"
            f"{'' if limit == math.inf else f' <= {limit:g}'}; "
            f"got {least_name}={least:g}, {most_name}={most:g}"
        )
    return least, most


def sometimes(probability, change):
    """Return the operation of kind `image` that calls `change(image, seed)` with this probability in [0, 1]."""
    probability = check_number("probability", probability, 0.0, 1.0)

    def apply(image, seed):
        draw, own = tf.unstack(tf.random.experimental.stateless_split(seed, 2))
        is_changed = tf.random.stateless_uniform((), draw) < probability
        return tf.cond(is_changed, lambda: change(image, own), lambda: image)

    return apply


def draw_box(sides, areas, aspects, seed, fits, otherwise, by_width=False):
    """Draw a rectangle: its area is uniform, its aspect ratio is uniform on a logarithmic scale.

    Args:
        sides: height and width of the image, float32.
        areas: lowest and highest share of the image.
        aspects: lowest and highest height over width; width over height if `by_width`.
        seed: an integer tensor (2,).
        fits: function from heights and widths in pixels to whether the rectangle is valid; the first valid one of ten
            is used.
        otherwise: the rectangle if none is valid.
        by_width: see `aspects`.

    Returns:
        int32 tensor (top, left, height, width).
    """
    height, width = tf.unstack(sides)
    draws = tf.unstack(tf.random.stateless_uniform((4, _ATTEMPTS), seed))
    area = height * width * (areas[0] + (areas[1] - areas[0]) * draws[0])
    aspect = tf.exp(math.log(aspects[0]) + math.log(aspects[1] / aspects[0]) * draws[1])
    heights, widths = tf.round(tf.sqrt(area * aspect)), tf.round(tf.sqrt(area / aspect))
    if by_width:
        heights, widths = widths, heights
    tops, lefts = tf.floor((height - heights + 1) * draws[2]), tf.floor((width - widths + 1) * draws[3])
    is_valid = fits(heights, widths)
    drawn = tf.stack([tops, lefts, heights, widths])[:, tf.argmax(is_valid)]
    return tf.cast(tf.where(tf.reduce_any(is_valid), drawn, otherwise), tf.int32)


def covered(length, place, reach):
    """Return which of `length` pixels are within `reach` of the relative position `place` in [0, 1): a bool vector."""
    centre = tf.cast(place * length, tf.int32)
    return (tf.range(length) >= centre - reach) & (tf.range(length) < centre + reach)
