"""The compiler that a traced graph is for, as each compiler recognises operations in its own form.

TensorFlow's remapper and OpenVINO each recognise GELU and layer norm in one order of elementary operations, and these
orders differ. An unrecognised form runs step by step, each with a pass over memory.
"""

import contextlib
import contextvars

import keras

ONEDNN = "oneDNN"  # TensorFlow inference on a CPU
CONVERTER = "converter"  # to ONNX, OpenVINO, LiteRT

_READER = contextvars.ContextVar("reader", default=None)


@contextlib.contextmanager
def written_for(reader):
    """Context in which graphs are traced for `ONEDNN` or a `CONVERTER`."""
    token = _READER.set(reader)
    try:
        yield
    finally:
        _READER.reset(token)


def is_for(reader):
    """Return whether the graph that TensorFlow is tracing is for `reader`."""
    if keras.backend.backend() != "tensorflow" or _READER.get() != reader:
        return False
    return reader != ONEDNN or (is_plain_cpu() and _has_onednn())


def is_plain_cpu():
    """Return whether TensorFlow traces a graph for a CPU as the only device, without several replicas."""
    import tensorflow as tf

    devices = {device.device_type for device in tf.config.list_logical_devices()}
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    return devices == {"CPU"} and replicas == 1 and not tf.executing_eagerly()


def _has_onednn():
    from tensorflow.python.util import _pywrap_util_port

    return _pywrap_util_port.IsMklEnabled()
