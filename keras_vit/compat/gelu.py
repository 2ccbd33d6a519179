"""GELU in forms that TensorFlow on a CPU computes in one pass over memory, where Keras's take a dozen.

In inference it is computed together with the matrix product before it: TensorFlow's remapper knows the tanh
approximation in one order of operations, after its other rewriting has moved the constants, and Keras writes another.
In training the gradient needs what is before the GELU, so that nothing can be fused with the product: there XLA
compiles GELU and its gradient, each by itself, and only what is before is kept. Other backends fuse whatever is
written, and OpenVINO knows Keras's form. Delete this file when tests/compat/test_gelu.py finds Keras's tanh GELU fused,
and TensorFlow has a GELU with a gradient.
"""

import functools
import math

import keras
from keras import ops

from keras_vit.compat.graph_forms import CONVERTER, is_for, is_plain_cpu

_TANH_SCALE = math.sqrt(2 / math.pi)
_CUBIC = 0.044715
_COMPILED_WIDTH = 512  # of smaller layers the passes cost less than compiling


def gelu(x, approximate, training=False):
    """Returns GELU(x), by tanh if `approximate`, else by erf (arXiv 1606.08415)."""
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
    """The function of tensors of one dtype, by XLA, which reads and writes that dtype and computes in float32."""
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


# whether by tanh -> function
_FORWARD = {True: _tanh_form, False: _erf_form}
_BACKWARD = {True: _tanh_backward, False: _erf_backward}
