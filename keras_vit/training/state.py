"""State of a training run as arrays: the variables of model, optimizer and metrics, and Keras's callbacks."""

import collections

import keras
import numpy as np

from keras_vit.compat.fit import CALLBACK_STATE, uncount_batch
from keras_vit.models.distillation import student_of
from keras_vit.training import workers
from keras_vit.training.checkpoint_files import CheckpointError


def read_state(model):
    """Return copies of the current values: dict from name to array.

    Names describe the place in the model, because layer names depend on how many layers were created before. Values
    that differ between replicas (sums of metrics, moving statistics of BatchNormalization) get a leading axis of
    replicas. For a `Distiller`, the model is the student; the teacher does not change. With several workers, all of
    them must call this. On JAX, several workers get the arrays of model and optimizer as they are, on their devices.
    """
    return {name: _read(model, name, variable) for name, variable in _variables(model).items()}


def write_state(model, arrays):
    """Assign every variable its value; if one does not fit, no variable changes.

    If the number of replicas has changed, metrics resume from their sum and statistics from their mean.

    Raises:
        CheckpointError: if names, shapes or dtypes differ from those of the variables.
    """
    variables = _variables(model)
    saved = {name for name in arrays if not name.startswith("callback.")}
    if saved != set(variables):
        raise CheckpointError(
            f"the checkpoint must be of the same model, optimizer and metrics: it has {len(saved)} variables, this run "
            f"has {len(variables)} ({sorted(saved ^ set(variables))[0]!r} is the first difference)"
        )
    for name, variable in variables.items():
        array = arrays[name]
        shape = array.shape[1:] if _of_replicas(name, variable) else array.shape
        if (shape, array.dtype.name) != (tuple(variable.shape), variable.dtype):
            raise CheckpointError(
                f"the checkpoint must be of the same model: {name} ({variable.path}) is "
                f"{shape} {array.dtype.name} in it, here {tuple(variable.shape)} {variable.dtype}"
            )
    for name, variable in variables.items():
        _write(model, name, variable, arrays[name])


def read_callbacks(callbacks):
    """Return the state of Keras's own callbacks: dict from name to array."""
    arrays = {}
    for key, callback, attributes in _known(callbacks):
        for name in attributes:
            value = getattr(callback, name)
            if isinstance(value, list):
                arrays |= {f"{key}.{name}.{index:05d}": np.asarray(array) for index, array in enumerate(value)}
            elif value is not None:
                arrays[f"{key}.{name}"] = np.asarray(value)
    return arrays


def write_callbacks(callbacks, arrays, repeats_batch):
    """Restore the state of Keras's own callbacks from the arrays of `read_callbacks`.

    The callbacks must have the same classes and order as before; others keep their own state.

    Args:
        callbacks: list of callbacks.
        arrays: dict from name to array.
        repeats_batch: whether the last batch, already counted, is reported to the callbacks once more.
    """
    for key, callback, attributes in _known(callbacks):
        for name in attributes:
            several = [arrays[place] for place in sorted(arrays) if place.startswith(f"{key}.{name}.")]
            if several:
                setattr(callback, name, several)
            elif f"{key}.{name}" in arrays:
                setattr(callback, name, arrays[f"{key}.{name}"].item())
        if repeats_batch:
            uncount_batch(callback)


def _known(callbacks):
    """Yield (key, callback, attributes); the key is the class and the index among callbacks of that class."""
    seen = collections.Counter()
    for callback in callbacks:
        for kind, attributes in CALLBACK_STATE.items():
            if isinstance(callback, kind):
                yield f"callback.{kind.__name__}.{seen[kind]}", callback, attributes
                seen[kind] += 1


def _variables(model):
    parts = {
        "model": student_of(model).variables,
        "optimizer": model.optimizer.variables,
        "metrics": model.metrics_variables,
    }
    return {
        f"{part}.{index:05d}.{variable.name if part != 'optimizer' else 'variable'}": variable
        for part, variables in parts.items()
        for index, variable in enumerate(variables)
    }


def _of_replicas(name, variable):
    """Return how to combine the separate values of the replicas; None for a variable that all replicas share."""
    if variable.synchronization == "on_read":
        return _sum
    # A weight that was frozen later is still shared; TensorFlow's variable keeps its original `trainable`.
    made_trainable = getattr(variable.value, "trainable", variable.trainable)
    is_statistic = name.startswith("model.") and not made_trainable and keras.backend.is_float_dtype(variable.dtype)
    return _mean if is_statistic else None


def _sum(array, replicas):
    return np.stack([array.sum(0), *[np.zeros_like(array[0])] * (replicas - 1)])


def _mean(array, replicas):
    return np.stack([array.mean(0, dtype="float64").astype(array.dtype)] * replicas)


def _read(model, name, variable):
    if workers.shares_arrays(model):
        value = np.asarray(variable.value) if name.startswith("metrics.") else variable.value
        return value[None] if _of_replicas(name, variable) else value
    parts = workers.local_parts(variable)
    if not _of_replicas(name, variable):
        return np.array(parts[0].numpy())
    return workers.gather(model, [np.array(part.numpy()) for part in parts])


def _write(model, name, variable, array):
    combine, replicas = _of_replicas(name, variable), workers.replica_count(model)
    if not combine:
        variable.assign(array)
        return
    array = array if len(array) == replicas else combine(array, replicas)
    for replica, part in zip(workers.local_replicas(model), workers.local_parts(variable), strict=True):
        part.assign(array[replica])
