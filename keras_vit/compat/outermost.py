"""Whether a layer is called directly or from inside another layer.

A functional model that contains a layer keeps the number of outputs that the layer had when the model was built, and
silently drops the others. A layer that returns more outputs in training must therefore know whether it is called
directly. Delete this file when Keras provides this; tests/compat/test_outermost.py checks the private names used here.
"""

from keras.src.backend.common import global_state
from keras.src.backend.common.stateless_scope import in_stateless_scope


def is_outermost(layer):
    """Return, inside `layer.call`, whether it is not called from inside another layer."""
    context = global_state.get_global_attribute("current_call_ctx")
    if context is None:
        return True  # `stateless_call`, which JAX training uses, calls `call` directly
    return context.entry_layer is layer and not in_stateless_scope()
