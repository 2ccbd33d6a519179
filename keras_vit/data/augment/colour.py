"""Colour operations: those of RandAugment on uint8 images; colour jitter, grey, solarize and blur on floats.

Pillow and the original TensorFlow code sometimes round differently; the docstrings state which one is followed.
"""

import itertools

import tensorflow as tf

from keras_vit.data import preprocessing as preparation
from keras_vit.data.augment import values

_ORDERS = {count: tuple(itertools.permutations(range(count))) for count in (3, 4)}


def autocontrast(image):
    """Stretch each channel to 0..255, rounded down. Pillow's result may be 1 lower where the exact value
    is an integer."""
    height, width, channels = image.shape
    # Pixels are flattened to rows of values: TensorFlow broadcasts a row several times as fast as a pixel.
    levels = tf.cast(tf.reshape(image, (height, width * channels)), tf.float32)
    low, high = (
        reduce(tf.reshape(reduce(levels, 0), (width, channels)), 0) for reduce in (tf.reduce_min, tf.reduce_max)
    )
    low, span = tf.where(high > low, low, 0.0), tf.where(high > low, high - low, 255.0)
    # Numerators are below 2**24 and the quotient is rounded once, so the floor is exact.
    stretched = tf.floor((levels - tf.tile(low, [width])) * 255.0 / tf.tile(span, [width]))
    return tf.reshape(tf.cast(stretched, tf.uint8), image.shape)


def equalize(image):
    """Equalise the histogram of each channel; the result equals Pillow's."""
    levels = tf.cast(image, tf.int32)
    _, width, channels = image.shape
    # One histogram and one table for all channels: 256 entries per channel, one channel after the other.
    rows = tf.reshape(levels, (-1, width * channels)) + tf.tile(256 * tf.range(channels), [width])
    counts = tf.reshape(tf.math.bincount(tf.reshape(rows, [-1]), minlength=256 * channels), (channels, 256))
    last = tf.gather(counts, tf.reduce_max(levels, (0, 1)), batch_dims=1)[:, None]
    step = (tf.reduce_sum(counts, 1, keepdims=True) - last) // 255
    table = (tf.cumsum(counts, 1, exclusive=True) + step // 2) // tf.maximum(step, 1)
    table = tf.where(step > 0, tf.minimum(table, 255), tf.range(256))
    return tf.reshape(tf.gather(tf.reshape(tf.cast(table, tf.uint8), [-1]), rows), image.shape)


def posterize(image, bits):
    """Keep the upper `bits` bits: from 0 (black) to 8 (no change)."""
    dropped = 8 - tf.clip_by_value(bits, 0, 8)
    return tf.bitwise.bitwise_and(image, tf.cast(tf.bitwise.left_shift(255, dropped) % 256, tf.uint8))


def solarize(image, threshold):
    """Invert pixel values from `threshold` on; 256 or above changes nothing."""
    is_bright = tf.cast(tf.cast(image, tf.int32) >= threshold, tf.uint8)
    return tf.bitwise.bitwise_xor(image, 255 * is_bright)  # 255 - x is x with all bits inverted


def solarize_add(image, addition):
    """Add `addition` to pixel values below 128, clipped to 255."""
    is_dark = tf.cast(image < 128, tf.uint8)
    return image + is_dark * tf.minimum(tf.cast(tf.minimum(addition, 255), tf.uint8), 255 - image)


def color(image, factor):
    """Blend from the grey version (factor 0) to the image (1) and beyond. The grey is Pillow's; in the
    original TensorFlow code, it differs by 1 at some pixels. A grey image stays unchanged."""
    return _blend(tf.repeat(preparation.match_channels(image, 1), image.shape[-1], axis=-1), image, factor)


def contrast(image, factor):
    """Blend from the mean grey (factor 0) to the image (1) and beyond, as in Pillow. The original code divides by 256
    when it computes the mean, so it blends with the value min(pixels / 256, 255)."""
    grey = tf.cast(preparation.match_channels(image, 1), tf.int32)
    pixels = tf.size(grey, tf.int64)
    mean = (2 * tf.cast(tf.reduce_sum(grey), tf.int64) + pixels) // (2 * pixels)
    return _blend(tf.cast(mean, tf.uint8), image, factor)


def brightness(image, factor):
    """Blend from black (factor 0) to the image (1) and beyond; the result equals Pillow's."""
    return _blend(tf.constant(0, tf.uint8), image, factor)


def sharpness(image, factor):
    """Blend from a smooth version (factor 0) to the image (1) and beyond; the border stays unchanged. The smooth
    version is rounded down, as in the original code; Pillow rounds to the nearest integer."""
    levels = tf.cast(image, tf.float32)
    rows = levels[:-2] + levels[1:-1] + levels[2:]
    box = rows[:, :-2] + rows[:, 1:-1] + rows[:, 2:]
    middle = levels[1:-1, 1:-1]
    smooth = tf.floor((box + 4.0 * middle) / 13.0)  # Pillow's SMOOTH: weight 5 in the middle, 1 around it
    return _blend(levels + tf.pad(smooth - middle, ((1, 1), (1, 1), (0, 0))), image, factor)


def color_jitter(strength, contrast=None, saturation=None, hue=0.0, probability=1.0):
    """Return colour jitter: brightness, contrast, saturation and hue in a random order.

    The first three are changed by a factor from 1 - strength to 1 + strength, and the hue is shifted by -hue to hue, as
    in torchvision's ColorJitter(strength, contrast, saturation, hue), but without rounding to integers in between.

    Args:
        strength: from 0 to 1, of the brightness; DeiT's is 0.3, Swin's is 0.4.
        contrast, saturation: from 0 to 1; None uses `strength`.
        hue: share of the colour circle, from 0 to 0.5. Only images of 3 channels have a hue.
        probability: probability that an image is changed.

    Returns:
        Function of kind `image` (see `Operation`).
    """
    given = {"strength": strength, "contrast": contrast, "saturation": saturation}
    spans = [values.check_number(name, strength if x is None else x, 0.0, 1.0) for name, x in given.items()]
    spans += [values.check_number("hue", hue, 0.0, 0.5)] if hue else []
    count = len(spans)

    def jitter(image, seed):
        draws = tf.random.stateless_uniform((count + 1,), seed)
        factors = 1.0 + tf.constant(spans) * (2.0 * draws[:-1] - 1.0)
        order = tf.constant(_ORDERS[count])[tf.cast(draws[-1] * len(_ORDERS[count]), tf.int32)]

        def step(place, image):
            return place + 1, tf.switch_case(order[place], [lambda f=f: f(image, factors) for f in _JITTERS[:count]])

        # A loop, because its graph is a quarter as large, and so is the time until the first batch.
        return tf.while_loop(lambda place, _: place < count, step, (0, image))[1]

    return jitter if probability == 1.0 else values.sometimes(probability, jitter)


def grayscale(probability):
    """Return the operation of kind `image` (see `Operation`) that makes an image grey with a probability.

    Args:
        probability: from 0 to 1; 0.2 in DINO.
    """
    return values.sometimes(probability, lambda image, seed: _grey(image) + tf.zeros_like(image))


def solarize_bright(probability):
    """Return the operation of kind `image` that inverts the pixel values from 128 on with a probability.

    Args:
        probability: from 0 to 1; 0.2 in DINO, for the second global crop.
    """
    return values.sometimes(probability, lambda image, seed: tf.where(image < 128.0, image, 255.0 - image))


def gaussian_blur(probability, min_sigma=0.1, max_sigma=2.0):
    """Return a Gaussian blur with a probability, of kind `image` (see `Operation`).

    Weights beyond the border are left out, and the others are divided by their sum. Pillow approximates the Gaussian
    and repeats the border.

    Args:
        probability: from 0 to 1.
        min_sigma, max_sigma: range of the standard deviation in pixels, which is uniform; DINO's is 0.1 to 2.
    """
    sigmas = values.check_span("min_sigma", min_sigma, "max_sigma", max_sigma)

    def blur(image, seed):
        sigma = tf.random.stateless_uniform((), seed, *sigmas)
        places = (tf.range(side, dtype=tf.float32) / sigma for side in image.shape[:2])
        rows, columns = (tf.nn.softmax(-0.5 * (place - place[:, None]) ** 2) for place in places)
        return tf.einsum("yr,rxc->yxc", rows, tf.einsum("xs,rsc->rxc", columns, image))

    return values.sometimes(probability, blur)


_JITTERS = (
    lambda image, factors: _mix(0.0, image, factors[0]),
    lambda image, factors: _mix(tf.round(tf.reduce_mean(_grey(image))), image, factors[1]),
    lambda image, factors: _mix(_grey(image), image, factors[2]),
    lambda image, factors: image if image.shape[-1] != 3 else tf.image.adjust_hue(image, factors[3] - 1.0),
)


def _grey(image):
    """Return the luma of a colour image, the mean of other channels."""
    if image.shape[-1] in (1, 3):
        return preparation.match_channels(image, 1)
    return tf.reduce_mean(image, axis=-1, keepdims=True)


def _mix(degenerate, image, factor):
    return tf.clip_by_value(degenerate + factor * (image - degenerate), 0.0, 255.0)


def _blend(degenerate, image, factor):
    """Interpolate: `degenerate` at factor 0, `image` at 1; clip, then round down."""
    degenerate, image = tf.cast(degenerate, tf.float32), tf.cast(image, tf.float32)
    return tf.cast(_mix(degenerate, image, tf.cast(factor, tf.float32)), tf.uint8)
