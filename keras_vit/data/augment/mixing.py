"""MixUp and CutMix: each image is mixed with its partner, with the same parameters for the whole batch."""

import tensorflow as tf

from keras_vit.data.augment import values

_LEAST_ALPHA = 0.01  # with a smaller alpha, both gamma draws may underflow, and their ratio is wrong


def one_of(functions):
    """Return a mix that draws one of several for each batch, with equal probability.

    A mix is called with `(images, labels, partner_images, partner_labels, seed)`: float32 images (rows, height, width,
    channels) in any range, float32 label weights (rows, classes), the images and labels of the partners, and an integer
    tensor (2,). It returns images and labels. The random numbers depend only on the seed and the size of the images, so
    several workers may mix parts of a batch and obtain the same rows as for the whole batch.
    """
    if len(functions) == 1:
        return functions[0]

    def mix(images, labels, partner_images, partner_labels, seed):
        choice_seed, seed = tf.unstack(tf.random.experimental.stateless_split(seed, 2))
        choice = tf.random.stateless_uniform((), choice_seed, maxval=len(functions), dtype=tf.int32)
        given = (images, labels, partner_images, partner_labels, seed)
        mixed, weights = tf.switch_case(choice, [lambda f=f: f(*given) for f in functions])
        return tf.ensure_shape(mixed, images.shape), tf.ensure_shape(weights, labels.shape)

    return mix


def mixup(alpha):
    """Return MixUp (arXiv 1710.09412): `share * image + (1 - share) * partner`, the same for labels.

    The share is drawn from Beta(alpha, alpha) once per batch. As in big_vision, it is replaced by one minus the share
    if that is larger, so the image always has the larger weight.

    Args:
        alpha: 0.01 or above. AugReg: 0.2, 0.5 or 0.8; DeiT: 0.8; BiT: 0.1.

    Returns:
        A mix, see `one_of`.
    """
    values.check_number("alpha", alpha, _LEAST_ALPHA)

    def mix(images, labels, partner_images, partner_labels, seed):
        share = draw_share(alpha, seed)
        share = tf.cast(tf.maximum(share, 1 - share), tf.float32)
        return share * images + (1 - share) * partner_images, share * labels + (1 - share) * partner_labels

    return mix


def cutmix(alpha):
    """Return CutMix (arXiv 1905.04899): a rectangle comes from the partner; labels are weighted by pixel counts.

    One rectangle per batch is drawn. A share is drawn from Beta(alpha, alpha), and the rectangle covers one minus this
    share of the image. Its aspect ratio is that of the image, and its centre is uniform. The border may cut it, so the
    pixels are counted.

    Args:
        alpha: 0.01 or above. DeiT and Swin: 1.0.

    Returns:
        A mix, see `one_of`.
    """
    values.check_number("alpha", alpha, _LEAST_ALPHA)

    def mix(images, labels, partner_images, partner_labels, seed):
        rows, columns = draw_box(images.shape[1:3], alpha, seed)
        inside = tf.cast(rows[:, None, None] & columns[None, :, None], tf.float32)
        taken = tf.math.count_nonzero(rows) * tf.math.count_nonzero(columns) / (rows.shape[0] * columns.shape[0])
        kept = tf.cast(1 - taken, tf.float32)
        return images * (1 - inside) + partner_images * inside, kept * labels + (1 - kept) * partner_labels

    return mix


def draw_share(alpha, seed):
    """Return one draw of Beta(alpha, alpha), float64: the first of two gamma draws divided by their sum."""
    first, second = tf.unstack(tf.random.stateless_gamma((2,), seed, tf.constant(alpha, tf.float64), dtype=tf.float64))
    return first / (first + second)


def draw_box(size, alpha, seed):
    """Return the rows and columns of images of `size` (height, width) inside the rectangle: two bool vectors."""
    share_seed, place_seed = tf.unstack(tf.random.experimental.stateless_split(seed, 2))
    side = tf.sqrt(1 - draw_share(alpha, share_seed))
    places = tf.random.stateless_uniform((2,), place_seed, dtype=tf.float64)
    reaches = [tf.cast(side * length, tf.int32) // 2 for length in size]
    return tuple(values.covered(size[axis], places[axis], reaches[axis]) for axis in (0, 1))
