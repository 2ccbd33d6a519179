"""The model of this package that another keras model contains."""

import itertools

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
