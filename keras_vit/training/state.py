"""The state of a training run: every variable of model, optimizer and metrics as arrays, and what tells runs apart."""

import json

import keras
import numpy as np

from keras_vit.models.distillation import student_of
from keras_vit.training import workers
from keras_vit.training.checkpoint_files import CheckpointError

# what digests in the identity of a run are of, for messages
_DIGESTS = {
    f"{part}.{name}": f"the {things} of the {images} images"
    for part, images in (("data", "training"), ("validation", "validation"))
    for name, things in (
        ("class_names", "class names"),
        ("files", "file names"),
        ("labels", "labels"),
        ("contents", "contents"),
    )
}
_DIGESTS["structure"] = "the layers of the model, or which of them are trained,"
_DIGESTS["weights_file"] = "the contents of the file of weights"


def read_state(model):
    """Returns dict from name to array, copies of the values of now.

    Names tell the place in the model, not the names of layers, which depend on how many were made before. What each
    replica has for itself, the sums of metrics and the moving statistics of BatchNormalization, has a first axis of
    replicas. Of a `Distiller` the model is the student, for the teacher does not change. With several workers, all of
    them must call this.
    """
    return {name: _read(model, name, variable) for name, variable in _variables(model).items()}


def write_state(model, arrays):
    """Gives every variable its value; nothing is changed unless all of them fit.

    Where the number of replicas is another one, metrics go on from their sum and statistics from their mean.

    Raises:
        CheckpointError: if names, shapes or dtypes are others than the variables'.
    """
    variables = _variables(model)
    _check_names(arrays, variables)
    for name, variable in variables.items():
        _check_fits(name, arrays[name], variable)
    for name, variable in variables.items():
        _write(model, name, variable, arrays[name])


def describe_optimizer(optimizer):
    """Returns the class and the settings of an optimizer, its schedule included, as JSON values without names."""
    try:
        description = keras.saving.serialize_keras_object(optimizer)
    except NotImplementedError:  # a schedule that cannot tell its settings
        description = {"class_name": type(optimizer).__name__}
    return _without_names(json.loads(json.dumps(description, default=str)))


def check_same_run(folder, saved, run):
    """Refuses to go on with another run.

    Args:
        folder: where the saved one lies, for the sentence.
        saved: dict of JSON values that was saved there, or None.
        run: the dict of now.

    Raises:
        ValueError: if they differ; it names the first difference.
    """
    for path, before, now in _differences("", saved, run):
        raise ValueError(
            f"{folder} holds the checkpoints of another run: {_difference(path, before, now)}; "
            "take another workdir, or delete that folder to begin anew"
        )


def _difference(path, before, now):
    """Two values as a sentence; of digests what they are of."""
    if path == "validation":
        there, here = (f"{'no ' * (value is None)}validation images" for value in (before, now))
        return f"it has {there} there, {here} here"
    return f"{_DIGESTS[path]} differ" if path in _DIGESTS else f"{path} is {before!r} there, {now!r} here"


def _without_names(values):
    """Keras counts the optimizers of a process up in their names."""
    if isinstance(values, dict):
        return {key: _without_names(value) for key, value in values.items() if key != "name"}
    return [_without_names(value) for value in values] if isinstance(values, list) else values


def _differences(path, saved, run):
    if isinstance(saved, dict) and isinstance(run, dict):
        for key in dict.fromkeys([*saved, *run]):
            yield from _differences(f"{path}.{key}".lstrip("."), saved.get(key), run.get(key))
    elif saved != run:
        yield path, saved, run


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


def _check_names(arrays, variables):
    for part in ("model", "optimizer", "metrics"):
        saved, needed = ([name for name in names if name.startswith(f"{part}.")] for names in (arrays, variables))
        if set(saved) != set(needed):
            raise CheckpointError(
                f"the checkpoint must be of the same {part}: it has {len(saved)} variables, this one has {len(needed)}"
                f" ({sorted(set(saved) ^ set(needed))[0]!r} is the first difference)"
            )


def _check_fits(name, array, variable):
    shape = array.shape[1:] if _of_replicas(name, variable) else array.shape
    if tuple(shape) != tuple(variable.shape) or array.dtype.name != variable.dtype:
        raise CheckpointError(
            f"the checkpoint must be of the same model: {name} ({variable.path}) is "
            f"{tuple(shape)} {array.dtype.name} in it, here {tuple(variable.shape)} {variable.dtype}"
        )


def _of_replicas(name, variable):
    """How the values that the replicas have for themselves make one; None for a variable that they keep equal."""
    if variable.synchronization == "on_read":
        return _sum
    # A weight that was frozen later is kept equal; TensorFlow's variable tells what it was made as.
    made_trainable = getattr(variable.value, "trainable", variable.trainable)
    is_statistic = name.startswith("model.") and not made_trainable and keras.backend.is_float_dtype(variable.dtype)
    return _mean if is_statistic else None


def _sum(array, replicas):
    return np.stack([array.sum(0), *[np.zeros_like(array[0])] * (replicas - 1)])


def _mean(array, replicas):
    return np.stack([array.mean(0, dtype="float64").astype(array.dtype)] * replicas)


def _read(model, name, variable):
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
