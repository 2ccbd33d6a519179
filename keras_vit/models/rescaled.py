"""of_pixels: a model that takes pixel values, for export and for training on uint8 images."""

import keras

from keras_vit import checks
from keras_vit.models.base import ImageModel, Model, check_model, standardisation

DTYPES = ("uint8", "float32")


def of_pixels(model: ImageModel, dtype: str = "uint8") -> Model:
    """Return a model around `model` that takes pixel values; weights are shared.

    If `model` has `include_preprocessing`, it is returned itself.

    Args:
        model: a model of this package; its `preprocessing` gives mean and std.
        dtype: dtype of the pixels: `"uint8"`, or `"float32"` for the fractional values of resized images.

    Returns:
        `keras_vit.Model` of (batch, height, width, channels), values 0 to 255, that returns the output of `model` for
        (pixels / 255 - mean) / std. For a distilled model this is the mean of its heads, also in training.

    Raises:
        TypeError: if `model` is not a model of this package.
        ValueError: if the dtype is another one.
    """
    checks.check_choice("dtype", dtype, DTYPES)
    if check_model(model).config.include_preprocessing:
        return model
    scale, offset = standardisation(model.preprocessing)
    pixels = keras.Input(model.input_shape[1:], dtype=dtype, name="pixels")
    # bfloat16 would lose precision of the normalised values
    rescaling = keras.layers.Rescaling(scale, offset, dtype="float32", name="rescaling")
    return Model(pixels, model(rescaling(pixels)), name=f"{model.name}_of_pixels")
