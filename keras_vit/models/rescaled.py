"""with_rescaling: a model that takes the pixels of pictures, so that a quarter of the bytes goes to the device."""

import keras

from keras_vit.models.base import Model, check_model


def with_rescaling(model):
    """Returns a model of uint8 pictures around `model`, whose weights it shares.

    Args:
        model: a model of this package; its `preprocessing` says what the pixels become.

    Returns:
        `keras_vit.Model` of uint8 (batch, height, width, channels), levels 0 to 255, that gives what `model` gives for
        (pixels / 255 - mean) / std; of a distilled model the mean of its heads, in training too.
    """
    preprocessing = check_model(model).preprocessing
    pixels = keras.Input(model.input_shape[1:], dtype="uint8", name="pixels")
    rescaling = keras.layers.Rescaling(
        scale=[1 / (255 * std) for std in preprocessing.std],
        offset=[-mean / std for mean, std in zip(preprocessing.mean, preprocessing.std, strict=True)],
        dtype="float32",  # in bfloat16 the levels above 128 would come in twos
        name="rescaling",
    )
    return Model(pixels, model(rescaling(pixels)), name=f"{model.name}_of_pixels")
