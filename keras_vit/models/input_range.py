"""Warns where `fit`, `evaluate` or `predict` gets images in another range than the model takes."""

import functools
import types
import warnings

import keras
import numpy as np

from keras_vit.compat.first_batch import with_look
from keras_vit.models.base import ADVICE
from keras_vit.models.masked_patches import MaskedPatchPrediction
from keras_vit.models.teacher_images import images_of

_CERTAIN = 4.0  # times the largest value that preparing gives; no augmentation reaches as far


def looked_at(model, method, data):
    """Returns what a method of `keras.Model` is to take in place of its `x`, whose first batch is looked at.

    No batch is lost: of arrays the first 32 images are looked at, of a `tf.data.Dataset` the first batch on its way to
    the model, of a generator its first batch, of a `keras.utils.PyDataset` item 0, which is read once more. Other data,
    such as a `torch.utils.data.DataLoader`, is not looked at.

    Args:
        model: a keras model.
        method: what gets the images, for the message.
        data: arrays, or data that give batches of images or of (images, labels).
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

    def again():  # not "yield from", which would close the generator with this one
        if first is not None:
            yield first
        for batch in data:  # noqa: UP028
            yield batch

    return again()


def _first_part(batch):
    return batch[0] if isinstance(batch, (tuple, list)) and batch else batch


def _images(data, shape):
    """The one array among inputs, which may be listed or named, if it is of floats and of the shape of images."""
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
