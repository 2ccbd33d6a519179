"""Read the batches of an `Order`: images are read in parallel, and unreadable ones are replaced."""

import os

import tensorflow as tf

from keras_vit.data.corrupt import check_labels


@tf.autograph.experimental.do_not_convert  # converting the source would take most of the time until the first batch
def read_batches(order, start_step, prepare, image_spec, unreadable):
    """Read the batches of an `Order`.

    Args:
        order: an `Order`.
        start_step: number of the first batch.
        prepare: function of a row (see `Order.batches`) and its encoded file or pixels to an image, or a structure of
            tensors.
        image_spec: `tf.TensorSpec` of this image, or the structure of them.
        unreadable: an `Unreadable`. With `needed` above 0, an unreadable image is replaced by the first readable one of
            its `Order.candidates`, and all other images keep their place. With 0, it is left out of its batch.

    Returns:
        `tf.data.Dataset` of (images, labels), in a fixed order.
    """
    source, in_training = order.source, unreadable.needed > 0
    fill = in_training and unreadable.allowed > 0  # else the report of the first unreadable image raises the error

    def read(place, row):
        """Return (place in the batch, image, label); fail if the image is unreadable."""
        element = order.element(row)
        image = prepare(row, element["image"])
        return place, tf.nest.map_structure(_shaped, image, image_spec), element["label"]

    def read_first(place, row):
        """Return the same for the first readable candidate, and report the unreadable ones before it."""
        candidates = order.candidates(row).take(unreadable.allowed + 2)
        tried = candidates.enumerate().map(lambda n, candidate: (n, *read(place, candidate))).ignore_errors()
        none = tf.nest.map_structure(lambda spec: tf.zeros(spec.shape, spec.dtype), tried.element_spec[2:])
        none = tf.data.Dataset.from_tensors((tf.int64.max, place, *none))
        number, *found = tried.concatenate(none).take(1).get_single_element()
        reported = tf.cond(number > 0, lambda: _report(order, candidates.take(number), unreadable), tf.no_op)
        with tf.control_dependencies([reported]):
            return tf.nest.map_structure(tf.identity, tuple(found))

    def read_batch(rows):
        rows = tf.data.Dataset.from_tensor_slices(rows).enumerate()
        places, images, labels = stacked(
            rows.map(read, num_parallel_calls=_parallelism(), deterministic=True).ignore_errors()
        )

        def mend():
            missing = rows.filter(lambda place, row: tf.reduce_all(places != place))
            if not fill:
                with tf.control_dependencies([_report(order, missing.map(lambda place, row: row), unreadable)]):
                    return tf.nest.map_structure(tf.identity, (images, labels))
            found = stacked(missing.map(read_first))
            order_of, *joined = tf.nest.map_structure(lambda *pair: tf.concat(pair, 0), (places, images, labels), found)
            return tf.nest.map_structure(lambda values: tf.gather(values, tf.argsort(order_of)), tuple(joined))

        images, labels = tf.cond(tf.size(places, tf.int64) == rows.cardinality(), lambda: (images, labels), mend)
        with tf.control_dependencies([check_labels(labels, len(source.class_names))]):
            batch_spec = tf.nest.map_structure(lambda spec: tf.TensorSpec((size, *spec.shape), spec.dtype), image_spec)
            return tf.nest.map_structure(_shaped, images, batch_spec), tf.ensure_shape(labels, (size,))

    size = order.rows_per_batch if in_training and (order.repeat or order.drop_remainder) else None
    # While the last images of a batch are read, free cores begin the next ones.
    ahead = 1 + -(-_parallelism() // order.rows_per_batch)
    return order.batches(start_step).map(read_batch, num_parallel_calls=ahead, deterministic=True)


def _shaped(value, spec):
    return tf.ensure_shape(value, spec.shape)


def _parallelism():
    # A fixed number, because AUTOTUNE starts with one image at a time.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def stacked(dataset):
    """Return all elements of a dataset, stacked; there may be none."""
    none = tf.nest.map_structure(lambda spec: tf.zeros((0, *spec.shape), spec.dtype), dataset.element_spec)
    return dataset.batch(2**31).concatenate(tf.data.Dataset.from_tensors(none)).take(1).get_single_element()


def _report(order, rows, unreadable):
    """Return the operation that reports unreadable rows."""

    def contents(row):
        return row["position"], order.element(row)["image"]

    opened = tf.constant([], tf.int64), tf.constant([], tf.string)
    if order.source.is_encoded:
        opened = stacked(rows.map(contents).ignore_errors())
    positions = stacked(rows.map(lambda row: row["position"]))
    return tf.group(tf.numpy_function(unreadable.report, [positions, *opened], []))
