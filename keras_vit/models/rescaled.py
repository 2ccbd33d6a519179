"""of_pixels: a model of pixel values around another, whose weights it shares: for exports and for training on uint8."""

import keras

from keras_vit import checks
from keras_vit.models.base import ImageModel, Model, check_model, standardisation

DTYPES = ("uint8", "float32")


def of_pixels(model: ImageModel, dtype: str = "uint8") -> Model:
    """Returns a model of images as they are decoded around `model`, or the model if it has `include_preprocessing`.

    Args:
        model: a model of this package; its `preprocessing` says what the pixels become.
        dtype: of the pixels: `"uint8"`, or `"float32"` for the values between that resizing gives.

    Returns:
        `keras_vit.Model` of (batch, height, width, channels), pixel values 0 to 255, that gives what `model` gives for
        (pixels / 255 - mean) / std; of a distilled model the mean of its heads, in training too.

    Raises:
        TypeError: if the model is none of this package.
        ValueError: on another dtype.
    """
    checks.check_choice("dtype", dtype, DTYPES)
    if check_model(model).config.include_preprocessing:
        return model
    scale, offset = standardisation(model.preprocessing)
    pixels = keras.Input(model.input_shape[1:], dtype=dtype, name="pixels")
    # in bfloat16 the pixel values above 128 would come in twos
    rescaling = keras.layers.Rescaling(scale, offset, dtype="float32", name="rescaling")
    return Model(pixels, model(rescaling(pixels)), name=f"{model.name}_of_pixels")
