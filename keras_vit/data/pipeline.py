"""From a source of pictures to batches of model input: `train_pipeline` and `eval_pipeline`."""

import tensorflow as tf

from keras_vit import checks
from keras_vit.data import pictures
from keras_vit.data import preprocessing as ops

_SHUFFLE_BUFFER = 10_000  # elements, for sources that cannot look up a picture by its position


def train_pipeline(
    source, preprocessing, batch_size, *, seed=0, augment=(), shuffle=True, repeat=True, drop_remainder=True
):
    """Batches to train on: shuffled, augmented, without end.

    The pictures of each pass come in an order drawn from `seed` and the number of the pass, and an
    augmentation draws from `seed` and the running number of its picture: the same arguments give the same
    batches whatever the parallelism.

    Args:
        source: an `ImageSource`.
        preprocessing: a `Preprocessing`, such as `model.preprocessing`.
        batch_size: pictures per batch.
        seed: integer from 0.
        augment: names of `AUGMENTATIONS`, applied in this order to the resized picture: `flip` mirrors every
            second one left to right, `shift` moves it by up to an eighth of its sides and fills with black.
        shuffle: False keeps the source's order.
        repeat: True gives pass after pass without end (use `steps_per_epoch`); False ends after the first
            pass, and iterating anew gives the same batches again.
        drop_remainder: drop what does not fill a last batch, so that every batch has the same shape.

    Returns:
        `tf.data.Dataset` of (float32 (batch, height, width, channels), int32 (batch,)).
    """
    ops.check(preprocessing)
    checks.check_integer("batch_size", batch_size)
    checks.check_integer("seed", seed, minimum=0)
    functions = _augmentations(augment)
    for name, flag in (("shuffle", shuffle), ("repeat", repeat), ("drop_remainder", drop_remainder)):
        checks.check_flag(name, flag)
    if drop_remainder and not repeat and batch_size > source.size:
        raise ValueError(
            f"batch_size must not exceed the {source.size} pictures of the source, or drop_remainder=True "
            f"leaves none; got batch_size={batch_size}"
        )

    def example(number, element):
        image = ops.resize(preprocessing, _pixels(element["image"], preprocessing.channels))
        key = tf.stack([tf.constant(seed, tf.int64), number])
        for place, function in enumerate(functions):
            image = function(image, tf.random.experimental.stateless_fold_in(key, place))
        return ops.standardise(preprocessing, image), element["label"]

    elements = _numbered_elements(source, seed, shuffle, repeat)
    examples = elements.map(example, num_parallel_calls=tf.data.AUTOTUNE)
    return examples.batch(batch_size, drop_remainder=drop_remainder).prefetch(tf.data.AUTOTUNE)


def eval_pipeline(source, preprocessing, batch_size):
    """Batches to evaluate on: every picture once, in the source's order; the last batch may be smaller.

    Args:
        source: an `ImageSource`.
        preprocessing: a `Preprocessing`, such as `model.preprocessing`.
        batch_size: pictures per batch.

    Returns:
        `tf.data.Dataset` of (float32 (batch, height, width, channels), int32 (batch,)).
    """
    ops.check(preprocessing)
    checks.check_integer("batch_size", batch_size)

    def example(element):
        image = _pixels(element["image"], preprocessing.channels)
        return ops.apply(preprocessing, image), element["label"]

    examples = source.dataset.map(example, num_parallel_calls=tf.data.AUTOTUNE)
    return examples.batch(batch_size).prefetch(tf.data.AUTOTUNE)


def eval_batches(source, preprocessing, batch_size):
    """Yields the batches of `eval_pipeline` as NumPy arrays.

    Raises:
        ValueError: naming the file, where one cannot be decoded.
        FileNotFoundError: where a file has gone since the source was made.
    """
    done = 0
    try:
        for inputs, labels in eval_pipeline(source, preprocessing, batch_size).as_numpy_iterator():
            yield inputs, labels
            done += len(labels)
    except tf.errors.OpError:
        for file in (source.files or ())[done : done + batch_size]:
            pictures.as_pictures(file)[0].read(preprocessing.channels)  # raises at the one in question
        raise


def _flip(image, seed):
    return tf.image.stateless_random_flip_left_right(image, seed)


def _shift(image, seed):
    height, width, _ = image.shape
    down, right = height // 8, width // 8
    padded = tf.pad(image, ((down, down), (right, right), (0, 0)))
    return tf.image.stateless_random_crop(padded, image.shape, seed)


# name -> function of (float32 (height, width, channels) on [0, 255], seed of two integers) to the same shape
AUGMENTATIONS = {"flip": _flip, "shift": _shift}


def _augmentations(names):
    if isinstance(names, str):
        raise ValueError(f"augment must be a sequence of names, such as ('flip',); got augment={names!r}")
    return [AUGMENTATIONS[checks.check_choice("augment", name, tuple(AUGMENTATIONS))] for name in names]


def _numbered_elements(source, seed, shuffle, repeat):
    """Dataset of (running number, element) in the order of training; the number goes on from pass to pass."""
    if shuffle and source.lookup is None:
        elements = source.dataset.shuffle(min(source.size, _SHUFFLE_BUFFER), seed=seed)
        return (elements.repeat() if repeat else elements).enumerate()
    if source.lookup is None:
        return (source.dataset.repeat() if repeat else source.dataset).enumerate()

    def positions_of_pass(number):
        positions = tf.range(source.size, dtype=tf.int64)
        if shuffle:
            key = tf.stack([tf.constant(seed, tf.int64), number])
            positions = tf.random.experimental.stateless_shuffle(positions, key)
        return tf.data.Dataset.from_tensor_slices(positions)

    passes = tf.data.Dataset.counter() if repeat else tf.data.Dataset.range(1)
    positions = passes.flat_map(positions_of_pass).enumerate()
    return positions.map(lambda n, at: (n, source.lookup(at)), num_parallel_calls=tf.data.AUTOTUNE)


def _pixels(image, channels):
    return ops.decode(image, channels) if image.dtype == tf.string else image
