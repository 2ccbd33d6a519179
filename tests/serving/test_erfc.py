"""tf2onnx still lacks Erfc, which an exact GELU needs, and with ours the exported model is right."""

import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from keras_vit.serving.formats import _teach_tf2onnx

_STOCK = """
import tf2onnx
from tf2onnx.handler import tf_op
print(any("Erfc" in names for versions in tf_op.get_opsets().values() for names in versions))
"""


def converted(function):
    """The ONNX session of a function of one vector."""
    tf2onnx, onnxruntime = pytest.importorskip("tf2onnx"), pytest.importorskip("onnxruntime")
    model, _ = tf2onnx.convert.from_function(tf.function(function), [tf.TensorSpec([None], tf.float32, name="x")])
    return onnxruntime.InferenceSession(model.SerializeToString())


def test_the_complement_of_the_error_function():
    _teach_tf2onnx()
    _teach_tf2onnx()  # once more does nothing
    x = np.linspace(-4, 4, 1001, dtype="float32")
    (given,) = converted(lambda x: tf.math.erfc(x) * tf.math.erfc(-x)).run(None, {"x": x})
    np.testing.assert_allclose(given, tf.math.erfc(x) * tf.math.erfc(-x), atol=3e-7)
    (given,) = converted(tf.nn.gelu).run(None, {"x": x})
    np.testing.assert_allclose(given, tf.nn.gelu(x), atol=3e-6)


@pytest.mark.slow
def test_tf2onnx_still_lacks_it():
    """When this fails, `_teach_tf2onnx` of keras_vit/serving/formats.py can go."""
    pytest.importorskip("tf2onnx")
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", _STOCK], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == "False"
