"""The processing of images, and then of batches, between reading and the model."""

import tensorflow as tf

from keras_vit.data import preprocessing as ops

DTYPES = ("float32", "uint8")
_BATCH = 1_000_003  # separates the random numbers of batch n from those of row n


def training_stages(preprocessing, operations, mix, *, seed, dtype, classes, has_partner):
    """Return the two functions that `read_batches` needs for training.

    Args:
        preprocessing: a `Preprocessing`.
        operations: the result of `parse_augment`.
        mix: the result of `parse_mix`.
        seed: integer, 0 or above.
        dtype: one of `DTYPES`.
        classes: number of classes.
        has_partner: whether batches start with one additional row, the partner of the first. If not, and with a `mix`,
            a batch contains all rows, and the last row is the partner of the first.

    Returns:
        Function of (running number, encoded file or pixels) to an image, and function of (number of the batch, rows,
        images, labels) to (images, labels).
    """
    early, late = _split_at_batches(operations)
    is_early = not late and mix is None  # the image is converted while it is in the processor's cache

    def prepare(number, image):
        key = tf.stack([tf.constant(seed, tf.int64), number])
        crops = early and early[0].kind == "crop"
        if crops:
            size, channels = preprocessing.image_size, preprocessing.channels
            image = early[0](image, size=size, channels=channels, seed=_fold(key, 0))
        else:
            image = ops.resize(preprocessing, pixels(preprocessing, image))
        for place, operation in enumerate(early):
            if operation.kind != "crop":
                image = operation(image, _fold(key, place))
        image = tf.ensure_shape(image, (*preprocessing.image_size, preprocessing.channels))
        return convert(preprocessing, dtype, image) if is_early else image

    def finish(number, rows, images, labels):
        key = _fold(tf.stack([tf.constant(seed, tf.int64), number]), _BATCH)
        for place, operation in enumerate(late, start=len(early)):
            images = _apply_late(operation, rows, images, _fold(key, place))
        if mix is not None:
            labels = tf.one_hot(labels, classes)
            images, labels = mix(*_with_partners(images, labels, has_partner), _fold(key, len(operations)))
        return images if is_early else convert(preprocessing, dtype, images), labels

    return prepare, finish


def evaluation_stages(preprocessing, dtype):
    """Return the two functions for evaluation, which apply only `preprocessing`."""

    def prepare(number, image):
        return convert(preprocessing, dtype, ops.resize(preprocessing, pixels(preprocessing, image)))

    return prepare, lambda number, rows, images, labels: (images, labels)


def pixels(preprocessing, image):
    """Decode an encoded file; return pixels unchanged."""
    return ops.decode(image, preprocessing.channels) if image.dtype == tf.string else image


def convert(preprocessing, dtype, images):
    """Convert float32 on [0, 255] to model input: standardised, or rounded to uint8."""
    if dtype == "uint8":
        return tf.cast(tf.clip_by_value(tf.round(images), 0.0, 255.0), tf.uint8)
    return ops.standardise(preprocessing, images)


def _split_at_batches(operations):
    """Split operations before the first one of kind `batch`."""
    kinds = [operation.kind for operation in operations]
    first = kinds.index("batch") if "batch" in kinds else len(kinds)
    return operations[:first], operations[first:]


def _apply_late(operation, rows, images, key):
    if operation.kind == "batch":
        return operation(images, key)
    return tf.map_fn(
        lambda row_image: operation(row_image[1], _fold(key, row_image[0])),
        (rows, images),
        fn_output_signature=tf.TensorSpec(images.shape[1:], tf.float32),
    )


def _with_partners(images, labels, has_partner):
    if has_partner:
        return images[1:], labels[1:], images[:-1], labels[:-1]
    return images, labels, tf.roll(images, 1, 0), tf.roll(labels, 1, 0)


def _fold(key, data):
    return tf.random.experimental.stateless_fold_in(key, data)
