"""Warnings about images in another range than the model expects in `fit`, `evaluate` and `predict`."""

import functools
import types
import warnings

import keras
import numpy as np

from keras_vit.compat.tensorflow_fit import with_look
from keras_vit.models.base import ADVICE
from keras_vit.models.masked_patches import MaskedPatchPrediction
from keras_vit.models.teacher_images import images_of

_CERTAIN = 4.0  # times the largest prepared value; no augmentation goes this far


def looked_at(model, method, data):
    """Check the first batch of the data for a method of `keras.Model`; return the data to pass on.

    No batch is lost. The check reads the first 32 images of arrays, the first batch of a `tf.data.Dataset` as it passes
    through, the first batch of a generator, and item 0 of a `keras.utils.PyDataset`, which is read a second time. Other
    data, such as a `torch.utils.data.DataLoader`, is not checked.

    Args:
        model: a Keras model.
        method: name of the method, for the message.
        data: arrays, or an iterable of batches of images or of (images, labels).
    """
    encoder = model.encoder if isinstance(model, MaskedPatchPrediction) else model
    preprocessing = images_of(encoder)
    if preprocessing is None or data is None:
        return data
    shape, subject = tuple(encoder.inputs[0].shape[1:]), f"{method} of {model.name}"
    if isinstance(data, types.GeneratorType):
        return _of_generator(data, subject, preprocessing, shape)
    if hasattr(data, "element_spec") and hasattr(data, "cardinality"):
        look = functools.partial(_warn, subject, preprocessing=preprocessing)
        return with_look(data, lambda batch: _images(_first_part(batch), shape), look)
    first = _first_part(data[0]) if isinstance(data, keras.utils.PyDataset) and len(data) else data
    images = _images(first, shape)
    if images is not None:
        _warn(subject, images[:32], preprocessing)
    return data


def _of_generator(data, subject, preprocessing, shape):
    first = next(data, None)
    images = _images(_first_part(first), shape)
    if images is not None:
        _warn(subject, images, preprocessing)

    def again():  # "yield from" would close the generator together with this one
        if first is not None:
            yield first
        for batch in data:  # noqa: UP028
            yield batch

    return again()


def _first_part(batch):
    return batch[0] if isinstance(batch, (tuple, list)) and batch else batch


def _images(data, shape):
    """Return the one input array, also from a list or dict, if it has floats and the shape of images; else None."""
    leaves = keras.tree.flatten(data)
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
        warnings.warn(
            f"{subject} got images with values from {least:.4g} to {greatest:.4g}, where the model takes {low:.4g} to "
            f"{high:.4g}: {_advice(preprocessing)}",
            stacklevel=2,
        )


def _advice(preprocessing):
    if preprocessing.in_model:
        return "it was built with include_preprocessing=True and takes pixel values from 0 to 255"
    return ADVICE
