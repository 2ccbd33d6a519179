"""GELU in forms that TensorFlow computes in one pass over memory on a CPU; Keras's form takes about twelve.

In inference, TensorFlow's remapper fuses GELU with the matrix product before it, but recognises the tanh approximation
in only one order of operations, which is not that of Keras. In training the gradient needs the input of GELU, so it
cannot be fused with the product; XLA compiles GELU and its gradient separately, and only that input is stored. Other
backends fuse any form, and OpenVINO recognises Keras's. Delete this file when tests/compat/test_gelu.py finds Keras's
tanh GELU fused, and TensorFlow has a GELU with a gradient.
"""

import functools
import math

import keras
from keras import ops

from keras_vit.compat.graph_forms import CONVERTER, is_for, is_plain_cpu

_TANH_SCALE = math.sqrt(2 / math.pi)
_CUBIC = 0.044715
_COMPILED_WIDTH = 512  # for smaller layers, compilation costs more than it saves


def gelu(x, approximate, training=False):
    """Return GELU(x) (arXiv 1606.08415), the tanh approximation if `approximate`, else with erf."""
    if keras.backend.backend() != "tensorflow" or is_for(CONVERTER):
        return ops.gelu(x, approximate=approximate)
    if not training:
        return _FORWARD[approximate](x)
    forward, backward = _FORWARD[approximate], _BACKWARD[approximate]
    if x.shape[-1] >= _COMPILED_WIDTH and is_plain_cpu():
        forward, backward = _compiled(forward), _compiled(backward)

    @ops.custom_gradient
    def differentiable(x):
        return forward(x), functools.partial(backward, x)

    return differentiable(x)


@functools.cache
def _compiled(function):
    """Compile a function with XLA; it reads and writes the dtype of its tensors and computes in float32."""
    import tensorflow as tf

    @tf.function(jit_compile=True, autograph=False)
    def compiled(*tensors):
        return ops.cast(function(*(ops.cast(tensor, "float32") for tensor in tensors)), tensors[0].dtype)

    return compiled


def _tanh_form(x):
    return (ops.tanh((x + x * (_CUBIC * ops.square(x))) * _TANH_SCALE) + 1) * (0.5 * x)


def _tanh_backward(x, upstream):
    squared = ops.square(x)
    tanh = ops.tanh((x + x * (_CUBIC * squared)) * _TANH_SCALE)
    slope = (1 - ops.square(tanh)) * (x * (_TANH_SCALE / 2 + (1.5 * _CUBIC * _TANH_SCALE) * squared))
    return upstream * (0.5 * (1 + tanh) + slope)


def _erf_form(x):
    return ops.gelu(x, approximate=False)


def _erf_backward(x, upstream):
    density = ops.exp(-0.5 * ops.square(x)) * (1 / math.sqrt(2 * math.pi))
    return upstream * (0.5 * (1 + ops.erf(x * math.sqrt(0.5))) + x * density)


# whether it is the tanh approximation -> function
_FORWARD = {True: _tanh_form, False: _erf_form}
_BACKWARD = {True: _tanh_backward, False: _erf_backward}
