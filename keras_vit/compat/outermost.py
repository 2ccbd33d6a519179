"""Whether a layer is called by itself or from inside another layer.

A functional model that contains a layer keeps as many of its outputs as the layer had when the model was built, and
drops the others without a word: what returns more in training must know whether anybody receives it. Delete this file
when Keras tells a layer so; tests/compat/test_outermost.py watches over the private names.
"""


def is_outermost(layer):
    """Returns, inside `layer.call`, whether no other layer's call is going on around it."""
    return layer._get_call_context().entry_layer is layer
