"""Identity of a training run: the values that must be equal so that a run can resume from a checkpoint."""

import hashlib
import json
import os

import keras

from keras_vit.models import Distiller, EoMTTraining, TaskModel
from keras_vit.models.distillation import labelled_in_training, result_of, student_of
from keras_vit.models.encoders import find_encoder
from keras_vit.training.recipe_checks import SELF_SUPERVISED

# digest in the identity of a run -> what it summarises, for messages
_DIGESTS = {
    "structure": "the layers of the model, or which of them are trained,",
    "weights_file": "the contents of the weights file",
}
for _part, _images in (("data", "training"), ("validation", "validation")):
    for _field in ("class names", "files", "labels", "contents"):
        _DIGESTS[f"{_part}.{_field.replace(' ', '_')}"] = f"the {_field} of the {_images} images"


def run_identity(recipe, images, model, weights):
    """Return the values that identify a run of `train`, as JSON values.

    The arguments are those of `train`, with `RunImages` and a built model.
    """
    encoder, result = find_encoder(model), result_of(model)
    structure = [(list(v.shape), str(v.dtype), v.trainable) for v in student_of(model).variables]
    identity = {
        "recipe": recipe.to_dict(),
        "model": encoder.config.to_dict(),
        "head": result.arguments if isinstance(result, TaskModel) else None,
        "preprocessing": labelled_in_training(model).preprocessing.to_dict(),
        "weights": encoder.weights_source if weights is None else str(weights),
        "weights_file": None,
        "pretraining": model.settings if isinstance(model, (EoMTTraining, *SELF_SUPERVISED.values())) else None,
        "distillation": model.identity() if isinstance(model, Distiller) else None,
        "structure": hashlib.sha256(json.dumps(structure).encode()).hexdigest()[:16],
        **images.fingerprints(),
    }
    if weights is not None and os.path.isfile(weights):  # not a published name
        with open(weights, "rb") as file:
            identity["weights_file"] = hashlib.file_digest(file, "blake2b").hexdigest()[:16]
    return as_read(identity)


def describe_optimizer(optimizer):
    """Return the class and the settings of an optimizer, with its schedule, as JSON values without names."""
    try:
        description = keras.saving.serialize_keras_object(optimizer)
    except NotImplementedError:  # a schedule without get_config
        description = {"class_name": type(optimizer).__name__}
    text = json.dumps(description, default=str)  # without names: Keras numbers the optimizers of a process in them
    return json.loads(text, object_hook=lambda values: {key: values[key] for key in values if key != "name"})


def as_read(values):
    """Return JSON values as they are read from a file: tuples become lists."""
    return json.loads(json.dumps(values))


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
        difference = f"{path} is {before!r} there, {now!r} here"
        if path in _DIGESTS:
            difference = f"{_DIGESTS[path]} differ"
        elif path == "validation":
            there, here = (f"{'no ' * (value is None)}validation images" for value in (before, now))
            difference = f"it was trained with {there}, this run has {here}"
        raise ValueError(f"{folder} holds another run: {difference}; use another workdir, or delete that folder")


def _differences(path, saved, run):
    if isinstance(saved, dict) and isinstance(run, dict):
        for key in dict.fromkeys([*saved, *run]):
            yield from _differences(f"{path}.{key}".lstrip("."), saved.get(key), run.get(key))
    elif saved != run:
        yield path, saved, run
