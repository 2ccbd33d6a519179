"""Build models whose variables get given values, or no values yet, instead of random initial values.

Keras initialises every variable and then overwrites it with loaded weights, which takes a third of the loading time and
a second copy in memory. `keras.StatelessScope` can defer this, but there is no public way to provide the values. If a
private name is missing, variables are initialised and then overwritten. Delete this file when `keras.Variable` takes
its value from a scope; tests/compat/test_initial_values.py checks for it.
"""

import contextlib
import math
import mmap

import keras
import numpy as np

from keras_vit.compat import private_names

_state = private_names.find("keras.src.backend.common.global_state.get_global_attribute")
_CAN_DEFER = private_names.has("get_global_attribute", "_deferred_initialize")
_PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}  # Windows has none


def build_deferred(build):
    """Call `build()` such that every variable is created but none is allocated.

    Args:
        build: callable without arguments that returns a model.

    Returns:
        Pair (result of `build`, list of its variables, which have shapes but no values yet). Pass the list to
        `initialise`, or drop both. Without values, even a model of gigabytes uses almost no memory.
    """
    if not _CAN_DEFER:
        result = build()
        return result, list(getattr(result, "variables", ()))
    outer = list(_pending())
    _pending().clear()
    try:
        with keras.StatelessScope(initialize_variables=False):
            result = build()
        return result, list(_pending())
    finally:
        _pending()[:] = outer


def build_at_once(build):
    """Return `build()`; all variables are allocated at the end, which takes a fifth less time for a ViT-B/16."""
    # Nothing may be allocated inside a scope.
    if not _CAN_DEFER or _state("stateless_scope") is not None:
        return build()
    result, pending = build_deferred(build)
    initialise(pending)
    return result


def initialise(variables, values=None):
    """Allocate the `variables` of `build_deferred`, one after another.

    Args:
        variables: the list of variables without values.
        values: dict from `id(variable)` to a callable that returns its array. The variable may use the array's memory,
            so do not reuse the array. Other variables use their own initializers. Each callable runs when its variable
            is allocated, so only one array is in memory at a time.
    """
    for variable in variables:
        read = (values or {}).get(id(variable))
        if _CAN_DEFER:
            if read is not None and hasattr(variable, "_initializer"):
                variable._initializer, read = _constant(read), None
            variable._deferred_initialize()
        if read is not None:
            variable.assign(read())


def aligned_zeros(shape, dtype):
    """Return an array of zeros that TensorFlow can use without a copy, because its memory is aligned.

    Its memory is returned to the system with it; `malloc` keeps that of freed arrays, separately for each thread.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = mmap.mmap(-1, max(size, 1), **_PRIVATE)
    with contextlib.suppress(AttributeError, OSError):  # only Linux has it; NumPy does the same for large arrays
        memory.madvise(mmap.MADV_HUGEPAGE)  # first use takes a third of the time
    return np.frombuffer(memory, "u1", size).view(dtype).reshape(shape)


def _pending():
    """Return the list in which Keras keeps the variables without values."""
    return _state("uninitialized_variables", [], set_to_default=True)


def _constant(read):
    def initializer(shape, dtype=None):
        array = read()
        if tuple(array.shape) != tuple(shape):  # Keras would assume the declared shape
            raise ValueError(f"values must have the shapes of their variables; got {tuple(array.shape)} for {shape}")
        if keras.backend.backend() == "tensorflow" and isinstance(array, np.ndarray) and array.flags.writeable:
            array = _GivenAway(array)
        return keras.ops.convert_to_tensor(array, dtype=dtype)

    return initializer


class _GivenAway:
    """An array that nothing else uses; TensorFlow copies a plain ndarray, because its owner could change it later."""

    def __init__(self, array):
        self._array = array

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self._array, dtype)
