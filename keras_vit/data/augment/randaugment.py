"""RandAugment (arXiv 1909.13719): the operations of the original TensorFlow code, and those of timm (used by DeiT)."""

import tensorflow as tf

from keras_vit import checks
from keras_vit.data.augment import colour, values
from keras_vit.data.augment.geometry import cut_out, rotation, translate, warp

# Row: (image uint8, strength, sign, place) -> image uint8. `strength` is the magnitude over 10, `sign` is 1 or -1
# and `place` two numbers in [0, 1).
# Source: EfficientNet's autoaugment.py in github.com/tensorflow/tpu, which big_vision, and therefore AugReg, uses.
ORIGINAL = {
    "AutoContrast": lambda image, m, sign, place: colour.autocontrast(image),
    "Equalize": lambda image, m, sign, place: colour.equalize(image),
    "Invert": lambda image, m, sign, place: 255 - image,
    "Rotate": lambda image, m, sign, place: warp(image, rotation(image, sign * 30 * m)),
    "Posterize": lambda image, m, sign, place: colour.posterize(image, _whole(4 * m)),
    "Solarize": lambda image, m, sign, place: colour.solarize(image, _whole(256 * m)),
    "Color": lambda image, m, sign, place: colour.color(image, 1.8 * m + 0.1),
    "Contrast": lambda image, m, sign, place: colour.contrast(image, 1.8 * m + 0.1),
    "Brightness": lambda image, m, sign, place: colour.brightness(image, 1.8 * m + 0.1),
    "Sharpness": lambda image, m, sign, place: colour.sharpness(image, 1.8 * m + 0.1),
    "ShearX": lambda image, m, sign, place: warp(image, (1, sign * 0.3 * m, 0, 0, 1, 0)),
    "ShearY": lambda image, m, sign, place: warp(image, (1, 0, 0, sign * 0.3 * m, 1, 0)),
    "TranslateX": lambda image, m, sign, place: translate(image, sign * 100 * m, 1),
    "TranslateY": lambda image, m, sign, place: translate(image, sign * 100 * m, 0),
    "Cutout": lambda image, m, sign, place: cut_out(image, _whole(40 * m), place),
    "SolarizeAdd": lambda image, m, sign, place: colour.solarize_add(image, _whole(110 * m)),
}

# Source: timm's auto_augment.py, the set `inc1`: a larger magnitude makes an operation stronger, except AutoContrast,
# Equalize and Invert, which ignore it. timm uses Pillow, where the centre of the first pixel is at (0.5, 0.5), hence
# the terms 0.15 in the shears.
TIMM_INCREASING = {
    "AutoContrast": ORIGINAL["AutoContrast"],
    "Equalize": ORIGINAL["Equalize"],
    "Invert": ORIGINAL["Invert"],
    "Rotate": lambda image, m, sign, place: _warp_mean(image, rotation(image, sign * 30 * m)),
    "Posterize": lambda image, m, sign, place: colour.posterize(image, 4 - _whole(4 * m)),
    "Solarize": lambda image, m, sign, place: colour.solarize(image, 256 - _whole(256 * m)),
    "SolarizeAdd": ORIGINAL["SolarizeAdd"],
    "Color": lambda image, m, sign, place: colour.color(image, _enhancement(sign * m)),
    "Contrast": lambda image, m, sign, place: colour.contrast(image, _enhancement(sign * m)),
    "Brightness": lambda image, m, sign, place: colour.brightness(image, _enhancement(sign * m)),
    "Sharpness": lambda image, m, sign, place: colour.sharpness(image, _enhancement(sign * m)),
    "ShearX": lambda image, m, sign, place: _warp_mean(image, (1, sign * 0.3 * m, sign * 0.15 * m, 0, 1, 0)),
    "ShearY": lambda image, m, sign, place: _warp_mean(image, (1, 0, 0, sign * 0.3 * m, 1, sign * 0.15 * m)),
    "TranslateXRel": lambda image, m, sign, place: _warp_mean(image, (1, 0, sign * 0.45 * m * image.shape[1], 0, 1, 0)),
    "TranslateYRel": lambda image, m, sign, place: _warp_mean(image, (1, 0, 0, 0, 1, sign * 0.45 * m * image.shape[0])),
}

_IMAGENET_MEAN = (124, 116, 104)  # pixel values; timm's fill colour


def randaugment(layers, magnitude):
    """Return RandAugment with the operations and strengths of the original TensorFlow code.

    Each layer draws one of the 16 operations of `ORIGINAL` with equal probability and applies it. Geometric operations
    have a random sign and fill with 128. Pixel values are rounded down first, as in the official code, whose images are
    uint8. A magnitude of 0 still changes images: Posterize(0) returns black, Solarize(0) the negative.

    Args:
        layers: operations per image. AugReg: 2.
        magnitude: 0 or above. AugReg (arXiv 2106.10270, section 3.3): 0, 10, 15 or 20; at 10, Rotate rotates by 30
            degrees.

    Returns:
        Function of kind `image` (see `Operation`).
    """
    checks.check_integer("layers", layers)
    strength, layer = values.check_number("magnitude", magnitude) / 10, _layer(ORIGINAL)

    def augment(image, seed):
        draws = tf.random.stateless_uniform((layers, 4), seed)
        image = tf.cast(image, tf.uint8)
        for choice, *rest in map(tf.unstack, tf.unstack(draws)):
            image = layer(_whole(choice * len(ORIGINAL)), image, strength, *rest)
        return tf.cast(image, tf.float32)

    return augment


def timm_randaugment(magnitude=9, magnitude_std=0.5, layers=2, probability=0.5):
    """Return RandAugment as in timm and DeiT (`rand-m9-mstd0.5-inc1`).

    Each layer draws one of the 15 operations of `TIMM_INCREASING` with equal probability and applies it with
    `probability`. The magnitude is normally distributed around `magnitude` and clipped to [0, 10]. Geometric operations
    fill with ImageNet's mean colour. They are bilinear; timm uses bicubic ones for DeiT, which TensorFlow does not
    have.

    Args:
        magnitude: from 0 to 10.
        magnitude_std: standard deviation of the magnitude, 0 for a constant magnitude.
        layers: operations drawn per image.
        probability: probability that a drawn operation is applied.

    Returns:
        Function of kind `image` (see `Operation`).
    """
    magnitude = values.check_number("magnitude", magnitude, 0.0, 10.0)
    magnitude_std = values.check_number("magnitude_std", magnitude_std)
    checks.check_integer("layers", layers)
    probability = values.check_number("probability", probability, 0.0, 1.0)
    layer = _layer({"Identity": lambda image, m, sign, place: image, **TIMM_INCREASING})

    def augment(image, seed):
        seed, noise_seed = tf.unstack(tf.random.experimental.stateless_split(seed, 2))
        draws = tf.unstack(tf.random.stateless_uniform((layers, 5), seed))
        strengths = magnitude + magnitude_std * tf.random.stateless_normal((layers,), noise_seed)
        strengths = tf.unstack(tf.clip_by_value(strengths, 0.0, 10.0) / 10)
        image = tf.cast(tf.round(image), tf.uint8)
        for draw, strength in zip(draws, strengths, strict=True):
            chance, choice, *rest = tf.unstack(draw)
            number = tf.where(chance < probability, 1 + _whole(choice * len(TIMM_INCREASING)), 0)
            image = layer(number, image, strength, *rest)
        return tf.cast(image, tf.float32)

    return augment


def _layer(table):
    """Return a function that applies one row of `table` without computing the others; it is traced once for all calls.

    Its arguments are the number of the row, the image, the strength, and three numbers in [0, 1) for sign and place.
    """

    def apply(number, image, strength, sign, down, across):
        sign, place = tf.where(sign < 0.5, -1.0, 1.0), (down, across)
        rows = [lambda row=row: row(image, strength, sign, place) for row in table.values()]
        return tf.ensure_shape(tf.switch_case(number, rows), image.shape)

    return tf.function(apply, autograph=False)


def _warp_mean(image, matrix):
    """Return the bilinear counterpart of `warp`, filled with ImageNet's mean colour."""
    fill = tf.constant(_IMAGENET_MEAN, tf.float32)
    fill = fill if image.shape[-1] == 3 else tf.reduce_mean(fill, keepdims=True)
    # The operation fills with one value, so the colours are shifted to make it 0.
    moved = tf.raw_ops.ImageProjectiveTransformV3(
        images=(tf.cast(image, tf.float32) - fill)[None],
        transforms=[[tf.cast(value, tf.float32) for value in (*matrix, 0.0, 0.0)]],
        output_shape=tf.shape(image)[:2],
        fill_value=0.0,
        interpolation="BILINEAR",
        fill_mode="CONSTANT",
    )[0]
    return tf.cast(tf.round(moved + fill), tf.uint8)


def _enhancement(signed):
    return tf.maximum(0.1, 1.0 + 0.9 * signed)


def _whole(value):
    return tf.cast(value, tf.int32)
