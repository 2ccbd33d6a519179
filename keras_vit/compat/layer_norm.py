"""Layer norm in the one form that TensorFlow on a CPU turns into a single operation.

TensorFlow's remapper makes oneDNN's layer norm of a batch norm over rows that stand in for channels, times gamma, plus
beta. Converters to other formats and devices other than CPUs do not profit or do not know it, so it is used only where
`fused_layer_norms` is open: in `predict`, `evaluate` and the graphs of a SavedModel. Delete this file when the remapper
knows Keras's form; tests/compat/test_layer_norm.py tells.
"""

import contextlib
import contextvars

import keras

_IS_FUSED = contextvars.ContextVar("is_fused", default=False)


@contextlib.contextmanager
def fused_layer_norms():
    """Layer norms of graphs that are traced in here, for inference, are written by `layer_norm`."""
    token = _IS_FUSED.set(True)
    try:
        yield
    finally:
        _IS_FUSED.reset(token)


def is_fused():
    """Whether layer norms are to be written by `layer_norm`."""
    return keras.backend.backend() == "tensorflow" and _IS_FUSED.get() and _is_known_here()


def _is_known_here():
    import tensorflow as tf
    from tensorflow.python.util import _pywrap_util_port

    devices = {device.device_type for device in tf.config.list_logical_devices()}
    return devices == {"CPU"} and _pywrap_util_port.IsMklEnabled() and not tf.executing_eagerly()


def layer_norm(x, gamma, beta, epsilon):
    """Returns `x` of (..., dim), normalised over its last axis with float32 sums, times `gamma` plus `beta`."""
    import tensorflow as tf

    dim, shape = x.shape[-1], tf.shape(x)
    # Of a number of rows known before, the ones would become a constant, which the remapper does not look for.
    rows = tf.raw_ops.PlaceholderWithDefault(input=tf.size(x) // dim, shape=())
    empty = tf.constant([], "float32")
    normalised = tf.raw_ops.FusedBatchNormV3(
        x=tf.reshape(x, (1, -1, dim, 1)),
        scale=tf.fill([rows], 1.0),
        offset=tf.fill([rows], 0.0),
        mean=empty,
        variance=empty,
        epsilon=epsilon,
        data_format="NCHW",
        is_training=True,
    ).y
    gamma, beta = (keras.ops.convert_to_tensor(values, x.dtype) for values in (gamma, beta))
    outputs = tf.add(tf.reshape(normalised, shape) * gamma, beta)  # Keras's sum may be a BiasAdd
    outputs.set_shape(x.shape)
    return outputs
