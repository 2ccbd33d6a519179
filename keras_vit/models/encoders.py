"""What a keras model contains: the model of this package, the layers that it calls."""

import itertools

import keras

from keras_vit.compat.graph import graph_calls
from keras_vit.models.base import ImageModel
from keras_vit.models.masked_patches import MaskedPatchPrediction


def find_encoder(model):
    """Returns the one model of this package that `model` is or contains, None if there is none or several."""
    found = find_encoders(model)
    return found[0] if len(found) == 1 else None


def find_encoders(model):
    """Returns every model of this package that `model` is or contains as a layer, however deep.

    The teacher of a `Distiller` is none of its layers.
    """
    if isinstance(model, ImageModel):
        return [model]
    if isinstance(model, MaskedPatchPrediction):  # its graph has the layers of its encoder in place of the encoder
        return [model.encoder]
    layers = getattr(model, "layers", ())
    return list(itertools.chain.from_iterable(find_encoders(layer) for layer in layers))


def called_layers(model):
    """Yields the layers that a model calls, in the order of the calls; a model inside it gives its own in its place.

    A model without a graph gives those of the one model of this package that it contains, if any.
    """
    nodes = graph_calls(model)
    if nodes is None:
        encoder = find_encoder(model)
        yield from () if encoder is None else called_layers(encoder)
        return
    for node in nodes:
        yield from called_layers(node.operation) if isinstance(node.operation, keras.Model) else (node.operation,)
