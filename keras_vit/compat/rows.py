"""Dense layers on a matrix, where TensorFlow fuses what follows the product.

On three axes Keras puts a reshape between product and bias, behind which TensorFlow's remapper sees neither the bias
nor the GELU that oneDNN computes in the same pass. Other backends multiply tensors of any rank, and a TPU would copy
them for the reshape. Delete this file when Keras adds the bias to the matrix; tests/compat/test_rows.py tells.
"""

import keras
from keras import ops


def on_rows(call, x):
    """Returns `call(x)`, of which every row of the last axis is computed by itself.

    Args:
        call: function of (..., dim) to (..., dim'), such as a dense layer.
        x: (..., dim).
    """
    if keras.backend.backend() != "tensorflow" or len(x.shape) == 2:
        return call(x)
    *leading, dim = x.shape
    rows = call(ops.reshape(x, (-1, dim)))
    if leading.count(None) > 1:
        leading = ops.shape(x)[:-1]
    return ops.reshape(rows, (*(-1 if side is None else side for side in leading), rows.shape[-1]))
