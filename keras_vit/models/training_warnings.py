"""Warnings about faults that give wrong results without an error: the range of the images, and the loss."""

import functools
import itertools
import types
import warnings

import keras
import numpy as np

from keras_vit.compat.tensorflow_fit import with_look
from keras_vit.models.base import ADVICE
from keras_vit.models.encoders import images_of

_CERTAIN = 4.0  # times the largest prepared value; no augmentation goes this far
_BETWEEN_CLASSES = ("categoricalcrossentropy", "sparsecategoricalcrossentropy")  # losses, see `_kind`


def looked_at(model, method, data):
    """Check the first batch of the data for a method of `keras.Model`; return the data to pass on.

    No batch is lost. The check reads the first 32 images of arrays, the first batch of a `tf.data.Dataset` when it is
    read, the first batch of a generator, and item 0 of a `keras.utils.PyDataset`, which is read a second time. Other
    data, such as a `torch.utils.data.DataLoader`, is not checked.

    Args:
        model: a Keras model.
        method: name of the method, for the message.
        data: arrays, a tuple of images and labels, or an iterable of batches of images or of (images, labels).
    """
    preprocessing = images_of(model)
    if preprocessing is None or data is None:
        return data
    shape, subject = tuple(model.inputs[0].shape[1:]), f"{method} of {model.name}"
    if hasattr(data, "element_spec") and hasattr(data, "cardinality"):
        look = functools.partial(_warn, subject, preprocessing=preprocessing)
        return with_look(data, lambda batch: _images(_first_part(batch), shape), look)
    first = data if isinstance(data, tuple) else (data,)
    if isinstance(data, types.GeneratorType):
        batches = list(itertools.islice(data, 1))
        first = batches[0] if batches else ()
        data = (batch for batch in itertools.chain(batches, data))  # Keras does not accept a chain
    elif isinstance(data, keras.utils.PyDataset) and len(data):
        first = data[0]
    images = _images(_first_part(first), shape)
    if images is not None:
        _warn(subject, images[:32], preprocessing)
    return data


def _first_part(batch):
    return batch[0] if isinstance(batch, (tuple, list)) and batch else batch


def _images(data, shape):
    """Return the one input array, also from a list or dict, if it has floats and the shape of images; else None."""
    leaves = keras.tree.flatten(data["patches"] if isinstance(data, dict) and "patches" in data else data)
    if len(leaves) != 1 or len(getattr(leaves[0], "shape", None) or ()) != 1 + len(shape):
        return None
    is_float = "float" in str(getattr(leaves[0].dtype, "name", leaves[0].dtype))
    return leaves[0] if is_float else None


def _warn(subject, images, preprocessing):
    images = np.asarray(keras.ops.convert_to_numpy(images), "float32")
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


def warn_of_loss(loss, config):
    """Warn if a loss would clip logits to probabilities, or compares classes although the model has one logit.

    Args:
        loss: the `loss` of `compile`: a name, a function, a `keras.losses.Loss`, None, or a structure of them.
        config: `ImageConfig` of the compiled model.
    """
    if not config.include_top:
        return
    for part in keras.tree.flatten(loss):
        found = keras.losses.get(part) if isinstance(part, str) else part
        name = part if isinstance(part, str) else getattr(part, "__name__", type(part).__name__)
        if config.classes == 1 and _kind(found) in _BETWEEN_CLASSES:
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
        warnings.warn(f"loss {name} {problem}", stacklevel=3)


def _takes_probabilities(loss):
    if isinstance(loss, keras.losses.Loss):
        return getattr(loss, "from_logits", True) is False
    return _kind(loss) in (*_BETWEEN_CLASSES, "binarycrossentropy")  # the default of these functions


def _kind(loss):
    """Return the name of a loss, the same for its class and its function."""
    return getattr(loss, "__name__", type(loss).__name__).replace("_", "").lower()
