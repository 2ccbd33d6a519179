"""Layer norm in the forms that TensorFlow on a CPU and OpenVINO each turn into a single operation.

TensorFlow's remapper makes oneDNN's layer norm of a batch norm over rows that stand in for channels, times gamma, plus
beta; elsewhere that form is slower or unknown. OpenVINO makes its own of a quotient, and leaves Keras's form as it is.
Delete this file when both know Keras's form; tests/compat/test_layer_norm.py tells.
"""

from keras import ops

from keras_vit.compat.graph_forms import CONVERTER, ONEDNN, is_for


def layer_norm(x, gamma, beta, epsilon, otherwise):
    """Returns `x` of (..., dim), normalised over its last axis, times `gamma` plus `beta`.

    Args:
        x: the tensor.
        gamma, beta: (dim,) each.
        epsilon: is added to the variance.
        otherwise: function of `x` that does the same; it is called where no form is known to be better.
    """
    if is_for(ONEDNN) and x.dtype in ("float32", "bfloat16") and len(x.shape) in (2, 3):  # what the remapper takes
        return _batch_norm(x, gamma, beta, epsilon)
    if is_for(CONVERTER) and x.dtype == "float32":
        return _quotient(x, gamma, beta, epsilon)
    return otherwise(x)


def _batch_norm(x, gamma, beta, epsilon):
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
    gamma, beta = (ops.convert_to_tensor(values, x.dtype) for values in (gamma, beta))
    outputs = tf.add(tf.reshape(normalised, shape) * gamma, beta)  # Keras's sum may be a BiasAdd
    outputs.set_shape(x.shape)
    return outputs


def _quotient(x, gamma, beta, epsilon):
    centred = x - ops.mean(x, axis=(-1,), keepdims=True)  # OpenVINO fails at an axis that is no list
    deviation = ops.sqrt(ops.mean(ops.square(centred), axis=(-1,), keepdims=True) + epsilon)
    return centred / deviation * gamma + beta
