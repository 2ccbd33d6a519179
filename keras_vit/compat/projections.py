"""Dense layers in forms that let compilers fuse what stands beside the product.

On three axes Keras puts a reshape between product and bias, behind which TensorFlow's remapper sees neither the bias
nor the GELU that oneDNN computes in the same pass: so they run on a matrix. OpenVINO sees through neither form to the
norm before, copies what is split after a product, and quantises no product that is scaled after it: it gets products of
three axes, one for each part, with the scale in their weights. Other backends multiply tensors of any rank, and a TPU
would copy them for a reshape. On four axes Keras before 3.15 leaves the broadcast to TensorFlow 2.20 and 2.21, whose
product of (batch, 1, rows, dim) and (dim, units) is wrong and writes outside of its memory with oneDNN. Delete this
file when Keras multiplies three axes without reshapes and 3.15 is the oldest one; tests/compat/test_projections.py
tells.
"""

import keras
from keras import ops

from keras_vit.compat.graph_forms import CONVERTER, is_for


def on_rows(call, x):
    """Returns `call(x)`, of which every row of the last axis is computed by itself.

    Args:
        call: function of (..., dim) to (..., dim'), such as a dense layer.
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
    """Returns `dense(x)` for a `keras.layers.Dense` without activation and `x` of (..., dim)."""
    return _products(dense, x, (1.0,))[0] if _is_split(dense) else on_rows(dense, x)


def project_heads(dense, x, scales, num_heads):
    """Splits `dense(x)` along its last axis into equal parts, such as query, key and value, and these into heads.

    Args:
        dense: a `keras.layers.Dense` without activation, of `len(scales) * num_heads * head_dim` units.
        x: (batch, length, dim).
        scales: what each part is multiplied by.

    Returns:
        List of (batch, num_heads, length, head_dim), one per part.
    """
    _, length, _ = ops.shape(x)
    parts = len(scales)
    head_dim = dense.units // (parts * num_heads)
    if _is_split(dense):
        shape = (-1, length, num_heads, head_dim)  # not the batch: LiteRT loses sizes that it computes as it runs
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
        # The weights are constants there, and so are their multiples.
        outputs.append(tf.matmul(x, _scaled(ops.convert_to_tensor(dense.kernel[:, start : start + width]), scale)))
        if dense.use_bias:
            outputs[-1] += _scaled(dense.bias[start : start + width], scale)
    return outputs


def _scaled(x, scale):
    return x if scale == 1.0 else x * scale
