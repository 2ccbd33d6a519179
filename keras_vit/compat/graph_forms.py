"""Who will compile a graph that is being traced, for operations that each compiler recognises in a form of its own.

TensorFlow's remapper and OpenVINO know GELU and layer norm in one order of elementary operations each, and not in the
same one; what is not recognised runs step by step, with a pass over memory for each.
"""

import contextlib
import contextvars

import keras

ONEDNN = "oneDNN"  # inference by TensorFlow on a processor
CONVERTER = "converter"  # to ONNX, OpenVINO, LiteRT

_READER = contextvars.ContextVar("reader", default=None)


@contextlib.contextmanager
def written_for(reader):
    """Graphs that are traced in here are written for `ONEDNN` or a `CONVERTER`."""
    token = _READER.set(reader)
    try:
        yield
    finally:
        _READER.reset(token)


def is_for(reader):
    """Whether what is being traced on TensorFlow is written for `reader`."""
    if keras.backend.backend() != "tensorflow" or _READER.get() != reader:
        return False
    return reader != ONEDNN or (is_plain_cpu() and _has_onednn())


def is_plain_cpu():
    """Whether TensorFlow traces a graph for the processor, the only device, and no strategy runs several replicas."""
    import tensorflow as tf

    devices = {device.device_type for device in tf.config.list_logical_devices()}
    replicas = tf.distribute.get_strategy().num_replicas_in_sync
    return devices == {"CPU"} and replicas == 1 and not tf.executing_eagerly()


def _has_onednn():
    from tensorflow.python.util import _pywrap_util_port

    return _pywrap_util_port.IsMklEnabled()
