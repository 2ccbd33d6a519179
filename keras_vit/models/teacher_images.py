"""Conversion of a student's images for its teacher: another size, another mean and std."""

import keras
import numpy as np
from keras import ops

from keras_vit.compat.graph import graph_calls
from keras_vit.models.encoders import find_encoder


def images_of(model):
    """Return the `Preprocessing` of a model's inputs, or None if it is unknown.

    It is known if `model` is a model of this package, or passes its inputs unchanged to exactly one.
    """
    encoder = find_encoder(model)
    return encoder.preprocessing if encoder is not None and _is_fed_directly(model, encoder) else None


def convert(images, source, target):
    """Convert standardised images to the size, mean and std of another `Preprocessing`.

    The resize is linear with antialiasing, as Pillow's bilinear filter without its rounding. It uses matrix products,
    because TPUs and XLA have no antialiased resize.

    Args:
        images: (batch, height, width, channels), prepared as `source` describes.
        source, target: `Preprocessing` with the same number of channels.
    """
    if source.image_size != target.image_size:
        vertical, horizontal = map(_triangles, source.image_size, target.image_size)
        images = ops.cast(images, "float32")
        images = ops.einsum("yr,brcd->bycd", vertical, images)
        images = ops.einsum("xc,bycd->byxd", horizontal, images)
    if source.statistics != target.statistics:
        (old_mean, old_std), (mean, std) = source.statistics, target.statistics
        scale = np.divide(old_std, std)
        offset = np.subtract(old_mean, mean) / np.asarray(std)
        images = ops.cast(images, "float32") * scale.astype("float32") + offset.astype("float32")
    return images


def _triangles(old, new):
    """Return the weights (new, old) of old pixels in new ones: a triangle, wider if the size shrinks."""
    centres = (np.arange(new) + 0.5) * old / new - 0.5
    weights = np.maximum(0.0, 1.0 - np.abs(centres[:, None] - np.arange(old)) / max(old / new, 1.0))
    return (weights / weights.sum(axis=1, keepdims=True)).astype("float32")


def _is_fed_directly(model, encoder):
    if model is encoder:
        return True
    return any(isinstance(first, keras.Model) and _is_fed_directly(first, encoder) for first in _first_layers(model))


def _first_layers(model):
    """Return the layers whose only inputs are the inputs of the model."""
    if isinstance(model, keras.Sequential):
        return model.layers[:1]
    calls = [call for call in graph_calls(model) or [] if call.parent_nodes]
    is_input = lambda call: isinstance(call.operation, keras.layers.InputLayer)  # noqa: E731
    return [call.operation for call in calls if all(is_input(parent) for parent in call.parent_nodes)]
