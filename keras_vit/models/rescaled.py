"""with_rescaling: a model that takes the pixels of pictures, so that a quarter of the bytes goes to the device."""

import keras

from keras_vit import checks
from keras_vit.models.base import ImageModel, Model, check_model

DTYPES = ("uint8", "float32")


def with_rescaling(model: ImageModel, dtype: str = "uint8") -> Model:
    """Returns a model of pictures as they are decoded around `model`, whose weights it shares.

    Args:
        model: a model of this package; its `preprocessing` says what the pixels become.
        dtype: of the pixels: `"uint8"`, or `"float32"` for the levels between that resizing gives.

    Returns:
        `keras_vit.Model` of (batch, height, width, channels), levels 0 to 255, that gives what `model` gives for
        (pixels / 255 - mean) / std; of a distilled model the mean of its heads, in training too.

    Raises:
        TypeError: if the model is none of this package.
        ValueError: on another dtype.
    """
    preprocessing = check_model(model).preprocessing
    checks.check_choice("dtype", dtype, DTYPES)
    pixels = keras.Input(model.input_shape[1:], dtype=dtype, name="pixels")
    rescaling = keras.layers.Rescaling(
        scale=[1 / (255 * std) for std in preprocessing.std],
        offset=[-mean / std for mean, std in zip(preprocessing.mean, preprocessing.std, strict=True)],
        dtype="float32",  # in bfloat16 the levels above 128 would come in twos
        name="rescaling",
    )
    return Model(pixels, model(rescaling(pixels)), name=f"{model.name}_of_pixels")
