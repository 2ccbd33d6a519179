"""Checks of the numbers in the string of an operation, and draws that several operations share."""

import math
import numbers

import tensorflow as tf

_ATTEMPTS = 10  # of drawing a rectangle, as in torchvision and timm


def check_number(name, value, least=-math.inf, most=math.inf):
    """Return `value` as a finite float within [least, most]."""
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number or not least <= value <= most:
        limits = f"of at least {least:g}" if most == math.inf else f"from {least:g} to {most:g}"
        raise ValueError(f"{name} must be a number {limits}; got {name}={value!r}")
    return float(value)


def check_span(least_name, least, most_name, most, limit=math.inf):
    """Return the pair as floats with `0 < least <= most <= limit`."""
    least, most = check_number(least_name, least, 0.0), check_number(most_name, most, 0.0)
    if not 0.0 < least <= most <= limit:
        raise ValueError(
            f"{least_name} and {most_name} must satisfy 0 < {least_name} <= {most_name}"
            f"{'' if limit == math.inf else f' <= {limit:g}'}; "
            f"got {least_name}={least:g}, {most_name}={most:g}"
        )
    return least, most


def draw_sides(pixels, areas, aspects, seed):
    """Draw the sides of rectangles: the area is uniform, the aspect ratio is uniform on a logarithmic scale.

    Returns:
        `(first, second, down, across)`, ten of each: the sides in whole pixels, whose ratio first / second is within
        `aspects`, and two numbers in [0, 1) that place the rectangle.
    """
    draws = tf.unstack(tf.random.stateless_uniform((4, _ATTEMPTS), seed))
    area = pixels * (areas[0] + (areas[1] - areas[0]) * draws[0])
    aspect = tf.exp(math.log(aspects[0]) + math.log(aspects[1] / aspects[0]) * draws[1])
    return tf.round(tf.sqrt(area * aspect)), tf.round(tf.sqrt(area / aspect)), draws[2], draws[3]
