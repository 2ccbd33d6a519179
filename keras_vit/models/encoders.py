"""Search inside a Keras model: the models of this package and the layers that it calls."""

import itertools

import keras

from keras_vit.compat.graph import graph_calls
from keras_vit.models.base import ImageModel
from keras_vit.models.masked_patches import MaskedPatchPrediction


def find_encoder(model):
    """Return the one model of this package that `model` is or contains; None if there is none or several."""
    found = find_encoders(model)
    return found[0] if len(found) == 1 else None


def find_encoders(model):
    """Return every model of this package that `model` is or contains, at any depth.

    The teacher of a `Distiller` is not included.
    """
    if isinstance(model, ImageModel):
        return [model]
    if isinstance(model, MaskedPatchPrediction):  # its graph contains the layers of its encoder, not the encoder
        return [model.encoder]
    layers = getattr(model, "layers", ())
    return list(itertools.chain.from_iterable(find_encoders(layer) for layer in layers))


def called_layers(model):
    """Yield the layers that a model calls, in call order; an inner model yields its own layers.

    A model without a graph yields the layers of the one model of this package that it contains, if any.
    """
    nodes = graph_calls(model)
    if nodes is None:
        encoder = find_encoder(model)
        yield from () if encoder is None else called_layers(encoder)
        return
    for node in nodes:
        yield from called_layers(node.operation) if isinstance(node.operation, keras.Model) else (node.operation,)
