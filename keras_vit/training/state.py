"""State of a training run: the variables of model, optimizer and metrics as arrays, and the identity of the run."""

import hashlib
import json
import os

import keras
import numpy as np

from keras_vit.models import MaskedPatchPrediction
from keras_vit.models.distillation import Distiller, student_of
from keras_vit.models.encoders import find_encoder
from keras_vit.training import workers
from keras_vit.training.checkpoint_files import CheckpointError

# digests in the identity of a run -> what they summarise, for messages
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
_DIGESTS["weights_file"] = "the contents of the weights file"


def read_state(model):
    """Return copies of the current values: dict from name to array.

    Names describe the place in the model, because layer names depend on how many layers were created before. Values
    that differ between replicas (sums of metrics, moving statistics of BatchNormalization) get a leading axis of
    replicas. For a `Distiller`, the model is the student; the teacher does not change. With several workers, all of
    them must call this.
    """
    return {name: _read(model, name, variable) for name, variable in _variables(model).items()}


def write_state(model, arrays):
    """Assign every variable its value; if one does not fit, no variable changes.

    If the number of replicas has changed, metrics resume from their sum and statistics from their mean.

    Raises:
        CheckpointError: if names, shapes or dtypes differ from those of the variables.
    """
    variables = _variables(model)
    _check_names(arrays, variables)
    for name, variable in variables.items():
        _check_fits(name, arrays[name], variable)
    for name, variable in variables.items():
        _write(model, name, variable, arrays[name])


def describe_optimizer(optimizer):
    """Return the class and the settings of an optimizer, with its schedule, as JSON values without names."""
    try:
        description = keras.saving.serialize_keras_object(optimizer)
    except NotImplementedError:  # a schedule without get_config
        description = {"class_name": type(optimizer).__name__}
    return _without_names(json.loads(json.dumps(description, default=str)))


def run_identity(recipe, source, validation, model, weights):
    """Return the values that identify a run of `train`, as JSON values.

    The arguments are those of `train`, with image sources and a built model.
    """
    encoder = find_encoder(model)
    structure = [(list(v.shape), str(v.dtype), v.trainable) for v in student_of(model).variables]
    identity = {
        "recipe": recipe.to_dict(),
        "model": encoder.config.to_dict(),
        "preprocessing": encoder.preprocessing.to_dict(),
        "weights": encoder.weights_source if weights is None else str(weights),
        "weights_file": _file_digest(weights),
    }
    if isinstance(model, MaskedPatchPrediction):
        identity["masked_patches"] = model.settings
    if isinstance(model, Distiller):
        identity["distillation"] = model.identity()
    identity |= {
        "structure": hashlib.sha256(json.dumps(structure).encode()).hexdigest()[:16],
        "data": source.fingerprint(),
        "validation": None if validation is None else validation.fingerprint(),
    }
    return json.loads(json.dumps(identity))  # as read from a file: tuples become lists


def _file_digest(weights):
    """Return the digest of a weights file; None if `weights` is not a file, such as a published name."""
    if weights is None or not os.path.isfile(weights):
        return None
    with open(weights, "rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()[:16]


def check_same_run(folder, saved, run):
    """Check that a saved run is the current one.

    Args:
        folder: folder of the saved run, for the message.
        saved: dict of JSON values that was saved there, or None.
        run: the current dict.

    Raises:
        ValueError: if they differ; the message names the first difference.
    """
    for path, before, now in _differences("", saved, run):
        raise ValueError(
            f"{folder} holds the checkpoints of another run: {_difference(path, before, now)}; "
            "use another workdir, or delete that folder to start again"
        )


def _difference(path, before, now):
    """Return a sentence about two values, or about what differing digests summarise."""
    if path == "validation":
        there, here = (f"{'no ' * (value is None)}validation images" for value in (before, now))
        return f"it was trained with {there}, this run has {here}"
    return f"{_DIGESTS[path]} differ" if path in _DIGESTS else f"{path} is {before!r} there, {now!r} here"


def _without_names(values):
    """Remove names: Keras numbers the optimizers of a process in them."""
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
