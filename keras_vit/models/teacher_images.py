"""The images of a student as its teacher takes them: another size, another mean and standard deviation."""

import keras
import numpy as np
from keras import ops

from keras_vit.compat.graph import graph_calls
from keras_vit.models.encoders import find_encoder


def images_of(model):
    """Returns the `Preprocessing` of what a model takes; None where it is not known.

    It is that of the one model of this package that `model` is, or hands its inputs to as they are.
    """
    encoder = find_encoder(model)
    return encoder.preprocessing if encoder is not None and _is_fed_directly(model, encoder) else None


def convert(images, source, target):
    """Returns standardised images as another `Preprocessing` standardises them, in its size.

    The size is changed linearly with antialiasing, as by Pillow's bilinear filter without its rounding. Both products
    are of matrices, for TPUs and XLA know no antialiased resize.

    Args:
        images: (batch, height, width, channels), as `source` gives them.
        source, target: `Preprocessing` of the same number of channels.
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
    """Weights (new, old) of each old pixel in each new one: a triangle, wider where the size shrinks."""
    centres = (np.arange(new) + 0.5) * old / new - 0.5
    weights = np.maximum(0.0, 1.0 - np.abs(centres[:, None] - np.arange(old)) / max(old / new, 1.0))
    return (weights / weights.sum(axis=1, keepdims=True)).astype("float32")


def _is_fed_directly(model, encoder):
    if model is encoder:
        return True
    return any(isinstance(first, keras.Model) and _is_fed_directly(first, encoder) for first in _first_layers(model))


def _first_layers(model):
    """The layers that take the inputs of a model and nothing else."""
    if isinstance(model, keras.Sequential):
        return model.layers[:1]
    calls = [call for call in graph_calls(model) or [] if call.parent_nodes]
    is_input = lambda call: isinstance(call.operation, keras.layers.InputLayer)  # noqa: E731
    return [call.operation for call in calls if all(is_input(parent) for parent in call.parent_nodes)]
