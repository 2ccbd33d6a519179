"""A model's forward pass as a function of NumPy arrays, compiled where that pays; on every backend.

`keras.Model.predict` does the same for whole data sets, whose outputs it keeps together in memory; here the caller
takes them batch by batch. It stays.
"""

import keras
import numpy as np

from keras_vit.compat.layer_norm import fused_layer_norms


def inference(model, compiled=True):
    """Returns a function of one batch of inputs that gives the model's outputs as it has them, as NumPy arrays.

    Args:
        model: a keras model of one input.
        compiled: tracing takes a second, and from then on a batch half the time. A compiled function is for use at
            once: later changes of the model may escape it.
    """
    call = _COMPILED.get(keras.backend.backend(), _eager)(model) if compiled else _eager(model)

    def run(inputs):
        return keras.tree.map_structure(keras.ops.convert_to_numpy, call(np.asarray(inputs, np.float32)))

    return run


def _eager(model):
    return lambda inputs: model(inputs, training=False)


def _tensorflow(model):
    import tensorflow as tf

    signature = tf.TensorSpec(model.input_shape, "float32")  # any batch size: a smaller last one traces nothing

    @tf.function(input_signature=[signature], autograph=False)
    def forward(inputs):
        with fused_layer_norms():
            return model(inputs, training=False)

    return forward


def _jax(model):
    import jax

    forward = jax.jit(lambda *arguments: model.stateless_call(*arguments, training=False)[0])
    weights = [[v.value for v in model.trainable_variables], [v.value for v in model.non_trainable_variables]]
    return lambda inputs: forward(*weights, inputs)


_COMPILED = {"tensorflow": _tensorflow, "jax": _jax}
