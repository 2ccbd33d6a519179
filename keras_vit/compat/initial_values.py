"""Building a model whose variables take given values, or none at all, instead of drawing random ones first.

Keras draws an initial value for every variable and overwrites it when weights are loaded: a third of the loading time and
a second copy in memory. It has the needed deferral (`keras.StatelessScope`) but no public way to say what the value is.
Delete this file when `keras.Variable` takes its value from a scope; tests/compat/test_initial_values.py then fails on the
private names used here.
"""

import keras
from keras.src.backend.common import global_state

_PENDING = "uninitialized_variables"


def build_deferred(build):
    """Calls `build()` with every variable created but none allocated.

    Args:
        build: callable without arguments that makes a model.

    Returns:
        Pair (what `build` returned, list of its variables, which have shapes but no values yet). Pass the list to
        `initialise`, or drop both: a model of gigabytes costs nothing until then.
    """
    outer = global_state.get_global_attribute(_PENDING, [], set_to_default=True)
    global_state.set_global_attribute(_PENDING, [])
    try:
        with keras.StatelessScope(initialize_variables=False):
            result = build()
        return result, global_state.get_global_attribute(_PENDING)
    finally:
        global_state.set_global_attribute(_PENDING, outer)


def initialise(variables, values=None):
    """Allocates the `variables` of `build_deferred`, one after the other.

    Args:
        variables: the list of variables that have no value yet.
        values: dict from `id(variable)` to a callable that returns its array; variables not in it draw from their
            own initialiser. Each callable runs when its variable is allocated, so one array at a time is in memory.
    """
    values = values or {}
    for variable in variables:
        if id(variable) in values:
            variable._initializer = _constant(values[id(variable)])
        variable._deferred_initialize()


def _constant(read):
    return lambda shape, dtype=None: keras.ops.convert_to_tensor(read(), dtype=dtype)
