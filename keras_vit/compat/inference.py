"""A model's forward pass as a function of NumPy arrays, optionally compiled, on every backend.

`keras.Model.predict` keeps the outputs of the whole data set in memory; this function returns one batch at a time.
Unlike the other files here, this file is not a workaround and will not be deleted.
"""

import contextlib

import keras
import numpy as np

from keras_vit.compat import private_names
from keras_vit.layers.forms import ONEDNN, written_for


def inference(model, compiled=True):
    """Return a function from one batch of inputs to the model's outputs, as NumPy arrays.

    Args:
        model: a Keras model with one input.
        compiled: compile the function. Tracing takes a second; each batch then takes half the time. A compiled
            function uses the weights that the model has at each call. It may ignore other later changes of the model.
    """
    call = _COMPILED.get(keras.backend.backend(), _eager)(model) if compiled else _eager(model)

    def run(inputs):
        inputs = inputs if isinstance(inputs, dict) else np.asarray(inputs, np.float32)  # a dict has its own dtypes
        return keras.tree.map_structure(keras.ops.convert_to_numpy, call(inputs))

    return run


def for_inference(jit_compile: bool = False) -> contextlib.AbstractContextManager:
    """Return a context in which TensorFlow traces graphs for inference, in the forms of oneDNN if TensorFlow uses it.

    Args:
        jit_compile: whether XLA compiles the graphs; it needs no other forms.
    """
    port = private_names.find("tensorflow.python.util._pywrap_util_port")
    has_onednn = port is not None and port.IsMklEnabled()
    return written_for(ONEDNN if has_onednn and not jit_compile else None)


def _eager(model):
    return lambda inputs: model(inputs, training=False)


def _tensorflow(model):
    import tensorflow as tf

    # any batch size: a smaller batch needs no new trace
    signature = keras.tree.map_structure(lambda x: tf.TensorSpec(x.shape, x.dtype), model.input)

    @tf.function(input_signature=[signature], autograph=False)
    def forward(inputs):
        with for_inference():
            return model(inputs, training=False)

    return forward


def _jax(model):
    import jax

    forward = jax.jit(lambda *arguments: model.stateless_call(*arguments, training=False)[0])
    variables = model.trainable_variables, model.non_trainable_variables
    return lambda inputs: forward(*([variable.value for variable in part] for part in variables), inputs)


_COMPILED = {"tensorflow": _tensorflow, "jax": _jax}
