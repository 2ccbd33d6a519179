"""Inspection of the first batch of a `tf.data.Dataset` during `fit`, as Keras callbacks do not get the data.

Taking a batch before `fit` would read files twice, remove it from a stream, and change the shuffling of later epochs.
This file is permanent.
"""


def with_look(dataset, find, look):
    """Return the dataset such that its first batch is inspected once, when it is read.

    Args:
        dataset: a `tf.data.Dataset`; anything else is returned unchanged.
        find: function from a batch, or its specification, to the tensor to inspect, or None.
        look: function of that tensor as a NumPy array. TensorFlow keeps a reference to it until the process ends.
    """
    import tensorflow as tf

    if not isinstance(dataset, tf.data.Dataset) or find(dataset.element_spec) is None:
        return dataset
    seen = []

    def once(images):
        if not seen:  # every epoch starts with number 0
            seen.append(True)
            look(images)

    @tf.autograph.experimental.do_not_convert
    def pass_on(number, batch):
        images = find(batch)
        done = tf.cond(number == 0, lambda: tf.group(tf.numpy_function(once, [images], [])), tf.no_op)
        with tf.control_dependencies([done]):
            return tf.nest.map_structure(lambda part: tf.identity(part) if part is images else part, batch)

    return dataset.enumerate().map(pass_on)
