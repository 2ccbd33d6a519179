"""A batch from its rows: read in parallel, the places of unreadable images filled or left out."""

import os

import tensorflow as tf

from keras_vit.data import corrupt

_AHEAD = 2  # batches that are read at the same time: with one alone, cores would be idle at its end
_NONE_READABLE = (
    "not one image of batch {} can be read, nor one of those that could take their place: more cannot be read than "
    "max_corrupt allows"
)


def read_batches(order, start_step, prepare, finish, unreadable, *, rows_of, before=0, fill=True):
    """Reads the batches of an `Order`.

    Args:
        order: an `Order`.
        start_step: number of the first batch.
        prepare: function of (running number, encoded file or pixels) to a tensor of fixed shape.
        finish: function of (number of the batch, int64 rows of it, images, labels) to what comes out.
        unreadable: an `Unreadable`.
        rows_of: function from the number of rows of a batch to the range (first, end) of those to read.
        before: 1 to read the row before these too, cyclically: in MixUp, the partner of the first.
        fill: whether an unreadable image's place is taken by the next readable one of the whole batch, cyclically,
            or of the source if there is none, so that nothing else moves. False leaves the place out, and `finish`
            gets fewer images than rows.

    Returns:
        `tf.data.Dataset` of what `finish` returns, in order whatever the parallelism.
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
            # Of one more than may be unreadable one is readable, or there are too many.
            following = following.concatenate(order.others(number).take(unreadable.allowed + 1))
            return _fill(number, numbers, places, found, following.enumerate().map(example))

        examples = rows().map(example, num_parallel_calls=_parallelism(), deterministic=True)
        places, images, labels = _readable(examples, order.batch_size + before)
        is_whole = tf.size(places) == tf.size(numbers)
        images, labels = tf.cond(is_whole, lambda: (images, labels), mend)
        with tf.control_dependencies([_check_labels(labels, len(order.source.class_names))]):
            return finish(number, tf.math.floormod(numbers, length), images, tf.identity(labels))

    # Not interleave, which would hold six batches where this holds two.
    return order.batches(start_step).map(read, num_parallel_calls=_AHEAD, deterministic=True)


def _parallelism():
    # A number, as AUTOTUNE would begin at one image in every batch.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cycle(rows, numbers, length):
    """The rows of a batch from the first of `numbers` on, then all of them once more."""
    first = tf.math.floormod(tf.concat([numbers, [0]], 0)[0], length)
    return rows.skip(first).concatenate(rows)


def _readable(examples, batch_size):
    """As many of `examples` as raise nothing, up to `batch_size`, in one batch, which may be of no rows."""
    none = tf.nest.map_structure(lambda spec: tf.zeros((0, *spec.shape), spec.dtype), examples.element_spec)
    batches = examples.ignore_errors().batch(batch_size)
    return batches.concatenate(tf.data.Dataset.from_tensors(none)).take(1).get_single_element()


def _fill(number, numbers, places, found, following):
    """Images and labels for all `numbers`: each the first readable one from its place on, then of `following`."""
    _, *later = _readable(following, 1)
    stopped = tf.cond(tf.size(later[1]) > 0, tf.no_op, lambda: corrupt.stop(_NONE_READABLE, number))
    with tf.control_dependencies([stopped]):
        sources = tf.searchsorted(places, tf.range(tf.size(numbers, tf.int64)))
    return tuple(tf.gather(tf.concat(pair, 0), sources) for pair in zip(found, later, strict=True))


def _report(order, rows, places, unreadable):
    """Operation that reports those of `rows` that are not among `places`."""

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
    message = f"labels must be from 0 to {classes - 1}, as there are {classes} classes; the source gives {{}}"
    return tf.cond(tf.size(wrong) == 0, tf.no_op, lambda: corrupt.stop(message, wrong))
