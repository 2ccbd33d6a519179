"""Selection of rows with different indices for each sample.

`keras.ops.take_along_axis` reads single numbers on TensorFlow; for rows of 192 numbers this takes twelve times as long
as gathering whole rows, which Keras has no function for. Delete this file when it has one;
tests/compat/test_take_rows.py checks for it.
"""

import keras
from keras import ops


def take_rows(x, places):
    """Return the rows of each sample at its indices.

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
