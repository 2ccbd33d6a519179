"""Building batches: images are read in parallel, and unreadable ones are replaced or left out."""

import os

import tensorflow as tf

from keras_vit.data import corrupt

_AHEAD = 2  # batches that are read at the same time: with only one, cores would be idle at its end
_NONE_READABLE = (
    "no image of batch {} can be read, nor any image that could replace one: more images are unreadable than "
    "max_corrupt allows"
)


def read_batches(order, start_step, prepare, finish, unreadable, *, rows_of, before=0, fill=True):
    """Read the batches of an `Order`.

    Args:
        order: an `Order`.
        start_step: number of the first batch.
        prepare: function of (running number, encoded file or pixels) to a tensor of fixed shape.
        finish: function of (number of the batch, int64 rows of it, images, labels) to an element of the dataset.
        unreadable: an `Unreadable`.
        rows_of: function from the number of rows of a batch to the range (first, end) of rows to read.
        before: 1 also reads the row before these, cyclically; it is the MixUp partner of the first row.
        fill: whether an unreadable image is replaced by the next readable one of the whole batch, cyclically, or of
            the source if there is none; all other images keep their place. With False the image is left out, and
            `finish` gets fewer images than rows.

    Returns:
        `tf.data.Dataset` of the results of `finish`, in a fixed order.
    """

    def example(place, row):
        number, position, element = row
        element = order.element(position, element)
        return place, prepare(number, element["image"]), element["label"]

    def read(number, batch):
        length = order.length(number)
        first, end = rows_of(length)
        numbers = tf.range(first - before * tf.cast(end > first, tf.int64), end)

        def rows():
            return _cycle(order.rows(number, batch), numbers, length).take(tf.size(numbers, tf.int64)).enumerate()

        def mend():
            with tf.control_dependencies([_report(order, rows(), places, unreadable)]):
                found = tf.identity(images), tf.identity(labels)
            if not fill:
                return found
            following = _cycle(order.rows(number, batch), numbers + tf.size(numbers, tf.int64), length)
            # Among `allowed` + 1 images one is readable, or more are unreadable than allowed.
            following = following.concatenate(order.others(number).take(unreadable.allowed + 1))
            return _fill(number, numbers, places, found, following.enumerate().map(example))

        examples = rows().map(example, num_parallel_calls=_parallelism(), deterministic=True)
        places, images, labels = _readable(examples, order.batch_size + before)
        is_whole = tf.size(places) == tf.size(numbers)
        images, labels = tf.cond(is_whole, lambda: (images, labels), mend)
        with tf.control_dependencies([_check_labels(labels, len(order.source.class_names))]):
            return finish(number, tf.math.floormod(numbers, length), images, tf.identity(labels))

    # Not interleave, which would hold six batches instead of two.
    return order.batches(start_step).map(read, num_parallel_calls=_AHEAD, deterministic=True)


def _parallelism():
    # A fixed number, because AUTOTUNE starts with one image at a time in every batch.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cycle(rows, numbers, length):
    """Return the rows of a batch from the first of `numbers` on, then all rows once more."""
    first = tf.math.floormod(tf.concat([numbers, [0]], 0)[0], length)
    return rows.skip(first).concatenate(rows)


def _readable(examples, batch_size):
    """Return one batch of up to `batch_size` of the `examples` that raise no error; it may have no rows."""
    none = tf.nest.map_structure(lambda spec: tf.zeros((0, *spec.shape), spec.dtype), examples.element_spec)
    batches = examples.ignore_errors().batch(batch_size)
    return batches.concatenate(tf.data.Dataset.from_tensors(none)).take(1).get_single_element()


def _fill(number, numbers, places, found, following):
    """Return images and labels for all `numbers`: each is the first readable one from its place on."""
    _, *later = _readable(following, 1)
    stopped = tf.cond(tf.size(later[1]) > 0, tf.no_op, lambda: corrupt.stop(_NONE_READABLE, number))
    with tf.control_dependencies([stopped]):
        sources = tf.searchsorted(places, tf.range(tf.size(numbers, tf.int64)))
    return tuple(tf.gather(tf.concat(pair, 0), sources) for pair in zip(found, later, strict=True))


def _report(order, rows, places, unreadable):
    """Return the operation that reports the `rows` that are not among `places`."""

    def is_lost(place, row):
        return tf.reduce_all(places != place)

    lost = rows.filter(is_lost).map(lambda place, row: row)
    positions = lost.map(lambda number, position, element: position)

    def contents(number, position, element):
        return position, order.element(position, element)["image"]

    opened = tf.constant([], tf.int64), tf.constant([], tf.string)
    if order.source.is_encoded:
        opened = _readable(lost.map(contents), order.batch_size + 1)
    positions = _readable(positions, order.batch_size + 1)
    return tf.numpy_function(unreadable.report, [positions, *opened], [])


def _check_labels(labels, classes):
    wrong = tf.boolean_mask(labels, (labels < 0) | (labels >= classes))
    message = f"labels must be from 0 to {classes - 1}, as there are {classes} classes; the source contains {{}}"
    return tf.cond(tf.size(wrong) == 0, tf.no_op, lambda: corrupt.stop(message, wrong))
