"""Layer norm in the forms that TensorFlow on a CPU and OpenVINO each fuse into one operation.

TensorFlow's remapper fuses a layer norm for oneDNN if it is written as a batch norm over rows as channels, times gamma,
plus beta; elsewhere this form is slower or not recognised. OpenVINO fuses a quotient, and does not recognise Keras's
form. Delete this file when tests/compat/test_layer_norm.py finds that both fuse Keras's form.
"""

from keras import ops

from keras_vit.compat.graph_forms import CONVERTER, ONEDNN, is_for


def layer_norm(x, gamma, beta, epsilon, otherwise):
    """Return `x` (..., dim) normalised over its last axis, times `gamma`, plus `beta`.

    Args:
        x: the tensor.
        gamma, beta: (dim,) each.
        epsilon: added to the variance.
        otherwise: function of `x` with the same result, called if no better form is known.
    """
    if is_for(ONEDNN) and x.dtype in ("float32", "bfloat16") and len(x.shape) in (2, 3):  # the remapper supports these
        return _batch_norm(x, gamma, beta, epsilon)
    if is_for(CONVERTER) and x.dtype == "float32":
        return _quotient(x, gamma, beta, epsilon)
    return otherwise(x)


def _batch_norm(x, gamma, beta, epsilon):
    import tensorflow as tf

    dim, shape = x.shape[-1], tf.shape(x)
    # With a static number of rows, the ones would become a constant, which the remapper does not match.
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
    outputs = tf.add(tf.reshape(normalised, shape) * gamma, beta)  # Keras's addition may become a BiasAdd
    outputs.set_shape(x.shape)
    return outputs


def _quotient(x, gamma, beta, epsilon):
    centred = x - ops.mean(x, axis=(-1,), keepdims=True)  # OpenVINO requires a list of axes
    deviation = ops.sqrt(ops.mean(ops.square(centred), axis=(-1,), keepdims=True) + epsilon)
    return centred / deviation * gamma + beta
