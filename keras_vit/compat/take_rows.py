"""Rows of each sample at places of its own.

`keras.ops.take_along_axis` reads number by number on TensorFlow, with rows of 192 numbers twelve times as long as a
gather of whole rows, for which Keras has no name. Delete this file when it has; tests/compat/test_take_rows.py watches.
"""

import keras
from keras import ops


def take_rows(x, places):
    """Returns the rows of each sample at its places.

    Args:
        x: (batch, rows, ...).
        places: integers (batch, taken), from 0.

    Returns:
        (batch, taken, ...)
    """
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.gather(x, places, batch_dims=1)
    return ops.take_along_axis(x, ops.reshape(places, (*places.shape, *[1] * (x.ndim - 2))), axis=1)
