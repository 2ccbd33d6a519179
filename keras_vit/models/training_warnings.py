"""Warnings about faults that give wrong results without an error: the range of the images, and the loss."""

import contextlib
import functools
import warnings
import weakref

import keras
import numpy as np

from keras_vit.compat.batch_parts import LOOKED_AT
from keras_vit.compat.labels import parts_here
from keras_vit.models.encoders import Encoder, output_activation, preprocessing_of

ADVICE = (
    "prepare them as keras_vit.preprocess does, (x / 255 - mean) / std, or build the model with "
    "include_preprocessing=True, which takes pixel values from 0 to 255"
)
_CERTAIN = 4.0  # times the largest prepared value; no augmentation goes this far
_BETWEEN_CLASSES = ("categoricalcrossentropy", "sparsecategoricalcrossentropy")  # losses, see `_kind`


def look_at(model, method, data, looks, function):
    """Check the first images that a method of `keras.Model` gets: those of arrays now, others with their first batch.

    Each iterable of batches is checked once for each model. No batch is read for it.

    Args:
        model: a Keras model.
        method: name of the method, for the message.
        data: arrays, a tuple of images and labels, or an iterable of batches of images or of (images, labels).
        looks: dict; a function of the first images of an iterable is added to it.
        function: key of that function.
    """
    preprocessing = preprocessing_of(model)
    if preprocessing is None or data is None:
        return
    look = functools.partial(_warn, f"{method} of {model.name}", preprocessing)
    images = images_in(model, data if isinstance(data, tuple) else (data,))
    if images is not None:
        look(images)
        return
    seen = vars(model).setdefault("_seen_data", weakref.WeakSet())  # not through Keras, which tracks sets
    with contextlib.suppress(TypeError):  # of arrays and of structures of them
        if data not in seen:
            seen.add(data)
            looks[function] = look


def images_in(model, batch):
    """Return the images of a batch, None unless they are one tensor of floats of the shape that the model takes.

    The tensor may be in a list or dict.
    """
    data = batch[0] if isinstance(batch, (tuple, list)) and batch else batch
    leaves = keras.tree.flatten(data["patches"] if isinstance(data, dict) and "patches" in data else data)
    if len(leaves) != 1 or len(getattr(leaves[0], "shape", None) or ()) != len(model.inputs[0].shape):
        return None
    return leaves[0] if "float" in str(getattr(leaves[0].dtype, "name", leaves[0].dtype)) else None


def _warn(subject, preprocessing, images):
    if images is None:
        return
    images = np.asarray(keras.ops.convert_to_numpy(parts_here(images)[0][:LOOKED_AT]), "float32")
    images = images[np.isfinite(images)]
    if not images.size:
        return
    least, greatest = float(images.min()), float(images.max())
    mean, std = map(np.asarray, preprocessing.statistics)
    low, high = float(((0.0 - mean) / std).min()), float(((1.0 - mean) / std).max())
    if preprocessing.in_model:
        is_wrong = least < 0.0 or 0.0 < greatest <= 1.0
    else:
        is_wrong = max(-least, greatest) > max(16.0, _CERTAIN * max(-low, high))
    if is_wrong:
        of_pixels = "it was built with include_preprocessing=True and takes pixel values from 0 to 255"
        warnings.warn(
            f"{subject} got images with values from {least:.4g} to {greatest:.4g}, where the model takes {low:.4g} to "
            f"{high:.4g}: {of_pixels if preprocessing.in_model else ADVICE}",
            stacklevel=2,
        )


def check_losses(model, loss, metrics):
    """Reject losses and metrics that take logits if the model returns probabilities; call `warn_of_loss`.

    Keras on TensorFlow warns and uses the logits. On JAX, a second softmax or sigmoid would be applied.

    Args:
        model: a Keras model.
        loss, metrics: arguments of `compile`.
    """
    activation = output_activation(model)
    for part in keras.tree.flatten([loss, metrics]) if activation in ("softmax", "sigmoid") else ():
        if getattr(part, "from_logits", getattr(part, "keywords", {}).get("from_logits")) is True:
            raise ValueError(
                f"loss and metrics must have from_logits=False, as {model.name} ends in a {activation}; got "
                f"{getattr(part, 'name', part)!r} with from_logits=True (or build the model with "
                "classifier_activation=None)"
            )
    if isinstance(model, Encoder):
        warn_of_loss(loss, model.config)


def warn_of_loss(loss, config):
    """Warn if a loss would clip logits to probabilities, or compares classes although the model has one logit.

    Args:
        loss: the `loss` of `compile`: a name, a function, a `keras.losses.Loss`, None, or a structure of them.
        config: `ImageConfig` of the compiled model.
    """
    for part in keras.tree.flatten(loss) if config.include_top else ():
        found = keras.losses.get(part) if isinstance(part, str) else part
        name = part if isinstance(part, str) else getattr(part, "__name__", type(part).__name__)
        compares = _kind(found) in _BETWEEN_CLASSES or getattr(found, "kind", None) == "softmax"  # our CrossEntropy
        if config.classes == 1 and compares:
            problem = (
                "compares classes, and this model has classes=1: build it with classes=2, or give "
                "keras.losses.BinaryCrossentropy(from_logits=True)"
            )
        elif config.classifier_activation is None and _takes_probabilities(found):
            problem = (
                "takes probabilities, and this model ends in logits: give a loss with from_logits=True, such as "
                "keras.losses.SparseCategoricalCrossentropy(from_logits=True), or build the model with "
                'classifier_activation="softmax"'
            )
        else:
            continue
        warnings.warn(f"loss {name} {problem}", stacklevel=5)


def _takes_probabilities(loss):
    if isinstance(loss, keras.losses.Loss):
        return getattr(loss, "from_logits", True) is False
    return _kind(loss) in (*_BETWEEN_CLASSES, "binarycrossentropy")  # the default of these functions


def _kind(loss):
    """Return the name of a loss, the same for its class and its function."""
    return getattr(loss, "__name__", type(loss).__name__).replace("_", "").lower()
