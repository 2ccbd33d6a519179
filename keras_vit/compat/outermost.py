"""Whether a layer is called by itself or from inside another layer.

A functional model that contains a layer keeps as many of its outputs as the layer had when the model was built, and
drops the others without a word: what returns more in training must know whether anybody receives it. Delete this file
when Keras tells a layer so; tests/compat/test_outermost.py watches over the private names.
"""

from keras.src.backend.common import global_state
from keras.src.backend.common.stateless_scope import in_stateless_scope


def is_outermost(layer):
    """Returns, inside `layer.call`, whether no other layer's call is going on around it."""
    context = global_state.get_global_attribute("current_call_ctx")
    if context is None:
        return True  # stateless_call, with which JAX trains, calls `call` itself
    return context.entry_layer is layer and not in_stateless_scope()
