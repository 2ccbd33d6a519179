"""GELU in forms that TensorFlow on a CPU computes together with the matrix product before it.

Its remapper knows the tanh approximation in one order of operations, after its other rewriting has moved the constants;
Keras and `tf.nn.gelu` write another, and get a dozen passes over memory. In training nothing is fused, for the gradient
needs what is before the GELU; there a gradient of its own keeps that alone. Other backends fuse whatever is written.
Delete this file when tests/compat/test_gelu.py finds Keras's tanh GELU fused.
"""

import math

import keras
from keras import ops

_TANH_SCALE = math.sqrt(2 / math.pi)
_CUBIC = 0.044715


def gelu(x, approximate, training=False):
    """Returns GELU(x), by tanh if `approximate`, else by erf (arXiv 1606.08415)."""
    if keras.backend.backend() != "tensorflow":
        return ops.gelu(x, approximate=approximate)
    forward, derivative = (_tanh_form, _tanh_derivative) if approximate else (_erf_form, _erf_derivative)
    if not training:
        return forward(x)

    @ops.custom_gradient
    def differentiable(x):
        return forward(x), lambda upstream: upstream * derivative(x)

    return differentiable(x)


def _tanh_form(x):
    return (ops.tanh((x + x * (_CUBIC * ops.square(x))) * _TANH_SCALE) + 1) * (0.5 * x)


def _tanh_derivative(x):
    squared = ops.square(x)
    tanh = ops.tanh((x + x * (_CUBIC * squared)) * _TANH_SCALE)
    slope = (1 - ops.square(tanh)) * (x * (_TANH_SCALE / 2 + (1.5 * _CUBIC * _TANH_SCALE) * squared))
    return 0.5 * (1 + tanh) + slope


def _erf_form(x):
    return ops.gelu(x, approximate=False)


def _erf_derivative(x):
    density = ops.exp(-0.5 * ops.square(x)) * (1 / math.sqrt(2 * math.pi))
    return 0.5 * (1 + ops.erf(x * math.sqrt(0.5))) + x * density
