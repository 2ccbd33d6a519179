"""Building a model whose variables take given values, or none at all, instead of drawing random ones first.

Keras draws an initial value for every variable and overwrites it when weights are loaded: a third of the loading
time and a second copy in memory. It has the needed deferral (`keras.StatelessScope`) but no public way to say what the
value is. Delete this file when `keras.Variable` takes its value from a scope; tests/compat/test_initial_values.py
watches over the private names used here.
"""

import math

import keras
import numpy as np
from keras.src.backend.common import global_state
from keras.src.backend.common.stateless_scope import in_stateless_scope

_PENDING = "uninitialized_variables"
_ALIGNMENT = 64  # bytes, of Eigen's widest vectors


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


def build_at_once(build):
    """Returns `build()`, whose variables are allocated together in the end: a fifth of the time less for a ViT-B/16."""
    if in_stateless_scope():  # where nothing is to be allocated
        return build()
    result, pending = build_deferred(build)
    initialise(pending)
    return result


def initialise(variables, values=None):
    """Allocates the `variables` of `build_deferred`, one after the other.

    Args:
        variables: the list of variables that have no value yet.
        values: dict from `id(variable)` to a callable that returns its array, which is given away: the variable may
            live in its memory. Variables not in the dict draw from their own initialiser. Each callable runs when its
            variable is allocated, so one array at a time is in memory.
    """
    values = values or {}
    for variable in variables:
        if id(variable) in values:
            variable._initializer = _constant(values[id(variable)])
        variable._deferred_initialize()


def aligned_empty(shape, dtype):
    """Returns an uninitialised array whose memory TensorFlow can take over where it would copy another's."""
    dtype = np.dtype(dtype)
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + _ALIGNMENT, "u1")
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)


def _constant(read):
    def initializer(shape, dtype=None):
        array = read()
        if tuple(array.shape) != tuple(shape):  # Keras would believe the declared shape
            raise ValueError(f"values must have the shapes of their variables; got {tuple(array.shape)} for {shape}")
        return keras.ops.convert_to_tensor(_given_away(array), dtype=dtype)

    return initializer


def _given_away(array):
    is_taken_over = keras.backend.backend() == "tensorflow" and isinstance(array, np.ndarray) and array.flags.writeable
    return _GivenAway(array) if is_taken_over else array


class _GivenAway:
    """An array without another owner. Of a bare ndarray TensorFlow makes a copy, lest its owner change it later."""

    def __init__(self, array):
        self._array = array

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self._array, dtype)
