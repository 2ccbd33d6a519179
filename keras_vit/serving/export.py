"""export: a model -> a versioned SavedModel folder that TensorFlow Serving and plain TensorFlow load."""

import os
import pathlib
import shutil
import uuid

import keras
import tensorflow as tf

from keras_vit import checks
from keras_vit.models.base import ImageModel
from keras_vit.serving.signatures import class_labels, make_signatures


def export(model, path, format="saved_model", version=None, top=5):
    """Writes `path/<version>/`, a SavedModel that prepares its pictures itself and needs TensorFlow alone.

    Signatures, with the batch size open in both:

    - `serving_default`: `image_bytes`, string (batch,), encoded picture files -> `classes`, string (batch,
      k), and `scores`, float32 (batch, k), likeliest first. One unreadable picture fails its whole batch.
    - `images`: `images`, float32 (batch, height, width, channels) of any size, values in [0, 255] ->
      `logits`, float32 (batch, classes); called `scores` if the model ends in an activation.

    The class names, one per line in the order of the logits, stand in `assets/labels.txt`; a model without
    labels has `class_0`, `class_1` and so on. Every weight is stored once.

    Args:
        model: a classifier of this package on the TensorFlow backend.
        path: folder of the versions; it is made if absent.
        format: `"saved_model"`.
        version: number of the version folder, from 1; None counts on from the highest there is.
        top: classes in each answer of `serving_default`; a model with fewer classes answers with all of them.

    Returns:
        `pathlib.Path` of the new version folder.

    Raises:
        TypeError: if the model is none of this package.
        ValueError: on an unknown format, a number below 1, or a model that gives no class scores per picture.
        FileExistsError: if the version is there already; versions are never overwritten.
        NotADirectoryError: if `path` is a file.
        RuntimeError: on another backend than TensorFlow.
    """
    writer = FORMATS[checks.check_choice("format", format, FORMATS)]
    top = checks.check_integer("top", top)
    _check_model(model)
    path = pathlib.Path(path)
    if path.exists() and not path.is_dir():
        raise NotADirectoryError(f"path must be a folder or not exist yet; {path} is a file")
    version = _next_version(path) if version is None else checks.check_integer("version", version)
    target = path / str(version)
    if target.exists():
        raise _exists(target)
    path.mkdir(parents=True, exist_ok=True)
    partial = path / f".{version}-{uuid.uuid4().hex}"  # TensorFlow Serving looks at numbers alone
    try:
        writer(model, partial, top)
        _publish(partial, target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def _write_saved_model(model, folder, top):
    module = tf.Module()
    # The module owns the bare variables and the signatures close over the model. Tracking the Keras model
    # itself gives a SavedModel that Python loads but the C API does not ("Could not find variable"); Keras's
    # ExportArchive writes every weight twice.
    module.variables_of_model = [variable.value for variable in model.variables]
    tf.saved_model.save(module, str(folder), signatures=make_signatures(model, top))
    (folder / "assets" / "labels.txt").write_text("\n".join(class_labels(model)) + "\n", encoding="utf-8")


def _publish(partial, target):
    try:
        os.rename(partial, target)
    except OSError:
        if target.exists():  # written by another process in the meantime
            raise _exists(target) from None
        raise


def _next_version(path):
    names = [entry.name for entry in path.iterdir()] if path.is_dir() else []
    return 1 + max((int(name) for name in names if name.isascii() and name.isdigit()), default=0)


def _exists(target):
    return FileExistsError(
        f"version must be new, an exported version is never overwritten; {target} exists "
        "(version=None takes the next number)"
    )


def _check_model(model):
    if not isinstance(model, ImageModel):
        raise TypeError(f"model must be a model of keras_vit; got {type(model).__name__}")
    if keras.backend.backend() != "tensorflow":
        raise RuntimeError(
            f"export needs the TensorFlow backend; this process runs {keras.backend.backend()!r}. "
            "Save the model with model.save('model.keras'), load it in a process started with "
            "KERAS_BACKEND=tensorflow by keras.models.load_model('model.keras'), and export it there"
        )
    if not model.config.include_top:
        raise ValueError("model must have a head to answer with classes; got one built with include_top=False")
    if len(model.output.shape) != 2:
        raise ValueError(
            "model must give one row of logits per picture (batch, classes); got outputs of shape "
            f"{tuple(model.output.shape)}"
        )


FORMATS = {"saved_model": _write_saved_model}
