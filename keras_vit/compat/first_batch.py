"""A look at the first batch of a `tf.data.Dataset` on its way to the model, as Keras shows no data to callbacks.

To take a batch beforehand would read files twice, lose it from a stream, and shuffle the epochs otherwise. It stays.
"""


def with_look(dataset, find, look):
    """Returns the dataset with its first batch looked at, once, when it is read.

    Args:
        dataset: what may be a `tf.data.Dataset`; anything else is returned as it is.
        find: function from a batch, or its specification, to the tensor to look at, or None.
        look: function of that as a NumPy array. TensorFlow keeps what it refers to until the process ends.
    """
    import tensorflow as tf

    if not isinstance(dataset, tf.data.Dataset) or find(dataset.element_spec) is None:
        return dataset
    seen = []

    def once(images):
        if not seen:  # every epoch begins with number 0
            seen.append(True)
            look(images)

    @tf.autograph.experimental.do_not_convert
    def pass_on(number, batch):
        images = find(batch)
        done = tf.cond(number == 0, lambda: tf.group(tf.numpy_function(once, [images], [])), tf.no_op)
        with tf.control_dependencies([done]):
            return tf.nest.map_structure(lambda part: tf.identity(part) if part is images else part, batch)

    return dataset.enumerate().map(pass_on)
