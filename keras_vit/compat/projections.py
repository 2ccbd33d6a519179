"""Dense layers in forms that let compilers fuse the neighbouring operations.

TensorFlow: for three axes, Keras puts a reshape between product and bias, so the remapper finds neither the bias nor
the GELU that oneDNN can fuse. Here the product runs on a matrix.

OpenVINO: neither form lets it find the preceding norm; it copies the parts of a split product, and does not quantise a
product that is scaled afterwards. It gets one product of three axes per part, with the scale in the weights.

Other backends multiply tensors of any rank, and a reshape would make a TPU copy them.

For four axes, Keras before 3.15 leaves broadcasting to TensorFlow 2.20 and 2.21, whose product of (batch, 1, rows, dim)
and (dim, units) is wrong and writes out of bounds with oneDNN.

Delete this file when Keras multiplies three axes without reshapes and the oldest supported version is 3.15;
tests/compat/test_projections.py checks for it.
"""

import keras
from keras import ops

from keras_vit.compat.graph_forms import CONVERTER, is_for


def on_rows(call, x):
    """Return `call(x)`, which must process every row of the last axis independently.

    Args:
        call: function from (..., dim) to (..., dim'), such as a dense layer.
        x: (..., dim).
    """
    if keras.backend.backend() != "tensorflow" or len(x.shape) == 2 or is_for(CONVERTER):
        return call(x)
    *leading, dim = x.shape
    rows = call(ops.reshape(x, (-1, dim)))
    if leading.count(None) > 1:
        leading = ops.shape(x)[:-1]
    return ops.reshape(rows, (*(-1 if side is None else side for side in leading), rows.shape[-1]))


def project(dense, x):
    """Return `dense(x)` for a `keras.layers.Dense` without activation and `x` of shape (..., dim)."""
    return _products(dense, x, (1.0,))[0] if _is_split(dense) else on_rows(dense, x)


def project_heads(dense, x, scales, num_heads):
    """Split `dense(x)` along its last axis into equal parts, such as query, key and value, and each into heads.

    Args:
        dense: a `keras.layers.Dense` without activation, with `len(scales) * num_heads * head_dim` units.
        x: (batch, length, dim).
        scales: one factor per part.

    Returns:
        List of (batch, num_heads, length, head_dim), one per part.
    """
    _, length, _ = ops.shape(x)
    parts = len(scales)
    head_dim = dense.units // (parts * num_heads)
    if _is_split(dense):
        shape = (-1, length, num_heads, head_dim)  # -1 for the batch, as LiteRT loses sizes computed at run time
        return [ops.transpose(ops.reshape(part, shape), (0, 2, 1, 3)) for part in _products(dense, x, scales)]
    outputs = ops.reshape(on_rows(dense, x), (-1, length, parts, num_heads, head_dim))
    outputs = ops.unstack(ops.transpose(outputs, (2, 0, 3, 1, 4)), parts)
    return [_scaled(part, scale) for part, scale in zip(outputs, scales, strict=True)]


def _is_split(dense):
    return is_for(CONVERTER) and dense.quantization_mode is None


def _products(dense, x, scales):
    import tensorflow as tf

    width, outputs = dense.units // len(scales), []
    for start, scale in zip(range(0, dense.units, width), scales, strict=True):
        # The weights are constants there, so their multiples are too.
        outputs.append(tf.matmul(x, _scaled(ops.convert_to_tensor(dense.kernel[:, start : start + width]), scale)))
        if dense.use_bias:
            outputs[-1] += _scaled(dense.bias[start : start + width], scale)
    return outputs


def _scaled(x, scale):
    return x if scale == 1.0 else x * scale
