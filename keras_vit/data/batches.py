"""Read the rows of an `Order` as batches: one tf.data chain reads images, replaces unreadable ones and batches them."""

import os

import tensorflow as tf

from keras_vit.data.corrupt import check_labels
from keras_vit.data.order import END

_AHEAD = 2  # batches filled at the same time; with only one, cores would be idle during its last images


def read_batches(order, start_step, prepare, image_spec, unreadable):
    """Read the batches of an `Order`.

    Args:
        order: an `Order`.
        start_step: number of the first batch.
        prepare: function of (running number, encoded file or pixels) to an image.
        image_spec: `tf.TensorSpec` of this image.
        unreadable: an `Unreadable`. With `needed` above 0, an unreadable image is replaced by the first readable one of
            its `Order.candidates`, and all other images keep their place. With 0, it is left out of its batch.

    Returns:
        `tf.data.Dataset` of (images, labels), in a fixed order.
    """
    source, count, fill = order.source, order.rows_per_batch, unreadable.needed > 0
    nothing = tf.zeros(image_spec.shape, image_spec.dtype), tf.zeros((), source.dataset.element_spec["label"].dtype)

    def read(row):
        """Return (number of the row, whether it has an image, image, label); fail if the image is unreadable."""

        def found():
            element = order.element(row)
            return prepare(row["number"], element["image"]), element["label"]

        image, label = tf.cond(row["position"] == END, lambda: nothing, found)
        return row["row"], True, tf.ensure_shape(image, image_spec.shape), label

    def read_first(row):
        """Return the same for the first readable candidate, and report the unreadable ones before it."""
        candidates = order.candidates(row).take(unreadable.allowed + 2 if fill else 1)
        tried = candidates.enumerate().map(lambda place, candidate: (place, *read(candidate))).ignore_errors()
        none = tf.data.Dataset.from_tensors((tf.constant(tf.int64.max), row["row"], False, *nothing))
        place, *found = tried.concatenate(none).take(1).get_single_element()
        reported = tf.cond(place > 0, lambda: _report(order, candidates.take(place), unreadable), tf.no_op)
        with tf.control_dependencies([reported]):
            return tuple(tf.identity(value) for value in found)

    def complete(next_row, batch):
        """Insert the rows that `ignore_errors` left out, up to the last row of `batch`."""
        rows, end = batch[0], batch[0][-1] + 1

        def mend():
            expected = order.rows(next_row // count).skip(next_row % count).take(end - next_row)
            missing = expected.filter(lambda row: tf.reduce_all(rows != row["row"])).map(read_first)
            joined = [tf.concat(pair, 0) for pair in zip(batch, _stacked(missing), strict=True)]
            sorting = tf.argsort(joined[0])
            return tuple(tf.gather(values, sorting) for values in joined)

        return end, tf.cond(tf.size(rows, tf.int64) == end - next_row, lambda: batch, mend)

    def finish(rows, has_image, images, labels):
        images, labels, has_image = images[:-1], labels[:-1], has_image[:-1]  # without the end mark
        if not fill:
            images, labels = tf.cond(
                tf.reduce_all(has_image),
                lambda: (images, labels),
                lambda: (tf.boolean_mask(images, has_image), tf.boolean_mask(labels, has_image)),
            )
        with tf.control_dependencies([check_labels(labels, len(source.class_names))]):
            return images, tf.identity(labels)

    rows = order.rows(start_step)
    options = {"num_parallel_calls": _parallelism(), "deterministic": True}
    # `complete` cannot read a row of a stream a second time.
    is_stream = source.lookup is None
    images = rows.map(read_first, **options) if is_stream else rows.map(read, **options).ignore_errors()
    batches = images.batch(count, num_parallel_calls=_AHEAD, deterministic=True)
    if not is_stream:
        batches = batches.scan(tf.constant(start_step * count, tf.int64), complete)
    return batches.rebatch(count, drop_remainder=order.repeat or order.drop_remainder).map(finish)


def _parallelism():
    # A fixed number, because AUTOTUNE starts with one image at a time.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _stacked(dataset):
    """Return all elements of a dataset, stacked; there may be none."""
    none = tf.nest.map_structure(lambda spec: tf.zeros((0, *spec.shape), spec.dtype), dataset.element_spec)
    return dataset.batch(2**31).concatenate(tf.data.Dataset.from_tensors(none)).take(1).get_single_element()


def _report(order, rows, unreadable):
    """Return the operation that reports unreadable rows."""

    def contents(row):
        return row["position"], order.element(row)["image"]

    opened = tf.constant([], tf.int64), tf.constant([], tf.string)
    if order.source.is_encoded:
        opened = _stacked(rows.map(contents).ignore_errors())
    positions = _stacked(rows.map(lambda row: row["position"]))
    return tf.group(tf.numpy_function(unreadable.report, [positions, *opened], []))
