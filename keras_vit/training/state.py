"""The state of a training run as arrays: every variable of model, optimizer and metrics, seeds included."""

import numpy as np

from keras_vit.training import workers
from keras_vit.training.checkpoint_files import CheckpointError


def read_state(model):
    """Returns dict from name to array, copies of the values of now.

    Names tell the place in the model, not the names of layers, which depend on how many were made before. Metrics,
    which each replica sums for itself, have a first axis of replicas. With several workers, all of them must call this.
    """
    return {name: _read(model, variable) for name, variable in _variables(model).items()}


def write_state(model, arrays):
    """Gives every variable its value; nothing is changed unless all of them fit.

    Raises:
        CheckpointError: if names, shapes or dtypes are others than the variables'.
    """
    variables = _variables(model)
    _check_names(arrays, variables)
    for name, variable in variables.items():
        _check_fits(name, arrays[name], variable)
    for name, variable in variables.items():
        _write(model, variable, arrays[name])


def _variables(model):
    parts = {
        "model": model.variables,
        "optimizer": model.optimizer.variables,
        "metrics": model.metrics_variables,
    }
    return {
        f"{part}.{index:05d}.{variable.name if part != 'optimizer' else 'variable'}": variable
        for part, variables in parts.items()
        for index, variable in enumerate(variables)
    }


def _check_names(arrays, variables):
    for part in ("model", "optimizer", "metrics"):
        saved, needed = ([name for name in names if name.startswith(f"{part}.")] for names in (arrays, variables))
        if set(saved) != set(needed):
            raise CheckpointError(
                f"the checkpoint must be of the same {part}: it has {len(saved)} variables, this one has {len(needed)}"
                f" ({sorted(set(saved) ^ set(needed))[0]!r} is the first difference)"
            )


def _check_fits(name, array, variable):
    shape = array.shape[1:] if _is_per_replica(variable) else array.shape
    if tuple(shape) != tuple(variable.shape) or array.dtype.name != variable.dtype:
        raise CheckpointError(
            f"the checkpoint must be of the same model: {name} ({variable.path}) is "
            f"{tuple(shape)} {array.dtype.name} in it, here {tuple(variable.shape)} {variable.dtype}"
        )


def _is_per_replica(variable):
    return variable.synchronization == "on_read"


def _read(model, variable):
    parts = workers.local_parts(variable)
    if not _is_per_replica(variable):
        return np.array(parts[0].numpy())
    return workers.gather(model, [np.array(part.numpy()) for part in parts])


def _write(model, variable, array):
    if not _is_per_replica(variable):
        variable.assign(array)
        return
    replicas = workers.local_replicas(model)
    if workers.replica_count(model) != len(array):
        # Another number of devices: the sum is what the metric reads.
        array = np.stack([array.sum(0), *[np.zeros_like(array[0])] * (workers.replica_count(model) - 1)])
    for replica, part in zip(replicas, workers.local_parts(variable), strict=True):
        part.assign(array[replica])
