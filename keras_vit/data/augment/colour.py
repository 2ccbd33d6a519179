"""Changing pixel values: the colour operations of RandAugment on uint8 images, and colour jitter.

Where Pillow and the original TensorFlow code differ in rounding, each function says which one it follows.
"""

import tensorflow as tf

from keras_vit.data import preprocessing as ops
from keras_vit.data.augment import values

_ORDERS = ((0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0))


def autocontrast(image):
    """Stretches each channel to 0..255, rounded down. Pillow's double may give one less where the exact
    result is whole."""
    height, width, channels = image.shape
    # Rows of channel values rather than of pixels: TensorFlow broadcasts a row several times as fast as a pixel.
    levels = tf.cast(tf.reshape(image, (height, width * channels)), tf.float32)
    low, high = (
        reduce(tf.reshape(reduce(levels, 0), (width, channels)), 0) for reduce in (tf.reduce_min, tf.reduce_max)
    )
    low, span = tf.where(high > low, low, 0.0), tf.where(high > low, high - low, 255.0)
    # Numerators are below 2**24 and the quotient is rounded once, so that the floor is that of exact numbers.
    stretched = tf.floor((levels - tf.tile(low, [width])) * 255.0 / tf.tile(span, [width]))
    return tf.reshape(tf.cast(stretched, tf.uint8), image.shape)


def equalize(image):
    """Equalises the histogram of each channel; equal to Pillow's."""
    levels = tf.cast(image, tf.int32)
    channels = image.shape[-1]
    width = levels.shape[1]
    # One histogram and one table of all channels, the values of each beside those of the one before.
    rows = tf.reshape(levels, (-1, width * channels)) + tf.tile(256 * tf.range(channels), [width])
    counts = tf.reshape(tf.math.bincount(tf.reshape(rows, [-1]), minlength=256 * channels), (channels, 256))
    last = tf.gather(counts, tf.reduce_max(levels, (0, 1)), batch_dims=1)[:, None]
    step = (tf.reduce_sum(counts, 1, keepdims=True) - last) // 255
    table = (tf.cumsum(counts, 1, exclusive=True) + step // 2) // tf.maximum(step, 1)
    table = tf.where(step > 0, tf.minimum(table, 255), tf.range(256))
    return tf.reshape(tf.gather(tf.reshape(tf.cast(table, tf.uint8), [-1]), rows), image.shape)


def invert(image):
    """255 minus the pixel value."""
    return 255 - image


def posterize(image, bits):
    """Keeps the upper `bits` bits: 0, which gives black, to 8, which changes nothing."""
    dropped = 8 - tf.clip_by_value(bits, 0, 8)
    return tf.bitwise.bitwise_and(image, tf.cast(tf.bitwise.left_shift(255, dropped) % 256, tf.uint8))


def solarize(image, threshold):
    """Inverts the pixel values from `threshold` on; 256 or more changes nothing."""
    is_bright = tf.cast(tf.cast(image, tf.int32) >= threshold, tf.uint8)
    return tf.bitwise.bitwise_xor(image, 255 * is_bright)  # 255 - x is x with every bit turned


def solarize_add(image, addition):
    """Adds `addition` to the pixel values below 128, at most up to 255."""
    is_dark = tf.cast(image < 128, tf.uint8)
    return image + is_dark * tf.minimum(tf.cast(tf.minimum(addition, 255), tf.uint8), 255 - image)


def color(image, factor):
    """Away from its grey version (0) to itself (1) and beyond. The grey is Pillow's; the original's TensorFlow
    grey differs by 1 at some pixels. A grey image stays as it is."""
    return _blend(tf.repeat(ops.match_channels(image, 1), image.shape[-1], axis=-1), image, factor)


def contrast(image, factor):
    """Away from its mean grey value (0) to itself (1) and beyond, as in Pillow. The original code divides by 256
    where it takes the mean, and so blends with the value min(pixels / 256, 255)."""
    grey = tf.cast(ops.match_channels(image, 1), tf.int32)
    pixels = tf.size(grey, tf.int64)
    mean = (2 * tf.cast(tf.reduce_sum(grey), tf.int64) + pixels) // (2 * pixels)
    return _blend(tf.cast(mean, tf.uint8), image, factor)


def brightness(image, factor):
    """From black (0) to itself (1) and beyond; equal to Pillow's."""
    return _blend(tf.constant(0, tf.uint8), image, factor)


def sharpness(image, factor):
    """Away from its smooth version (0) to itself (1) and beyond; the border stays as it is. The smooth version is
    rounded down, as in the original code, where Pillow rounds to the nearest whole value."""
    levels = tf.cast(image, tf.float32)
    rows = levels[:-2] + levels[1:-1] + levels[2:]
    box = rows[:, :-2] + rows[:, 1:-1] + rows[:, 2:]
    middle = levels[1:-1, 1:-1]
    smooth = tf.floor((box + 4.0 * middle) / 13.0)  # Pillow's SMOOTH: weight 5 in the middle, 1 around it
    return _blend(levels + tf.pad(smooth - middle, ((1, 1), (1, 1), (0, 0))), image, factor)


def color_jitter(strength):
    """Brightness, contrast and saturation, in a random order, each by a factor from 1 - strength to 1 + strength.

    torchvision's ColorJitter(strength, strength, strength), without rounding to whole values in between.

    Args:
        strength: from 0 to 1; DeiT's is 0.3, Swin's is 0.4.

    Returns:
        Function of kind `image` (see `Operation`).
    """
    strength = values.check_number("strength", strength, 0.0, 1.0)

    def jitter(image, seed):
        draws = tf.random.stateless_uniform((4,), seed)
        factors = 1.0 + strength * (2.0 * draws[:3] - 1.0)
        order = tf.constant(_ORDERS)[tf.cast(draws[3] * 6.0, tf.int32)]
        for place in range(3):
            image = tf.switch_case(order[place], [lambda i=image, f=f: f(i, factors) for f in _JITTERS])
        return image

    return jitter


_JITTERS = (
    lambda image, factors: _mix(0.0, image, factors[0]),
    lambda image, factors: _mix(tf.round(tf.reduce_mean(ops.match_channels(image, 1))), image, factors[1]),
    lambda image, factors: _mix(ops.match_channels(image, 1), image, factors[2]),
)


def _mix(degenerate, image, factor):
    return tf.clip_by_value(degenerate + factor * (image - degenerate), 0.0, 255.0)


def _blend(degenerate, image, factor):
    """`degenerate` at factor 0, `image` at 1, the line through both elsewhere; clipped, then rounded down."""
    degenerate, image = tf.cast(degenerate, tf.float32), tf.cast(image, tf.float32)
    return tf.cast(_mix(degenerate, image, tf.cast(factor, tf.float32)), tf.uint8)
