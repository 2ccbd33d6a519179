"""Copies of a model: clone, resize, with_dtype."""

from typing import Any, TypeVar

import keras

from keras_vit import checks
from keras_vit.compat.initial_values import build_deferred, initialise
from keras_vit.compat.sublayers import sublayers
from keras_vit.layers.position_grid import RESIZE_METHODS
from keras_vit.models.base import ImageModel, check_model
from keras_vit.models.layer_states import enable_lora_as_in, layer_states
from keras_vit.typing import Size

# a function that gives a model of the class it is given
ModelT = TypeVar("ModelT", bound=ImageModel)


def clone(model: ModelT) -> ModelT:
    """Returns a copy of a model: same class, config, preprocessing, labels and weights, sharing nothing.

    Args:
        model: a model of this package.

    Raises:
        TypeError: if the model is none of this package.
    """
    return _copy(model, check_model(model).get_config(), "auto")


def resize(model: ModelT, image_size: Size, method: str = "auto") -> ModelT:
    """Returns the same weights as a model for another input size; only the tables of positions change.

    Args:
        model: a model of this package, such as `VisionTransformer`.
        image_size: (height, width) in pixels or one integer, divisible by the patch size.
        method: how the tables are resized, see `resize_position_embedding`; `auto` is the way of the authors of the
            architecture: `bicubic` for Swin, `align_corners` for the others.

    Raises:
        TypeError: if the model is none of this package.
        ValueError: on another method, or a size that the architecture does not take.
    """
    checks.check_choice("method", method, ("auto", *RESIZE_METHODS))
    description = check_model(model).get_config()
    config = model.config.replace(image_size=image_size)
    description["config"] = config.to_dict()
    description["preprocessing"] = model.preprocessing.at(config.image_size).to_dict()
    return _copy(model, description, method)


def with_dtype(model: ModelT, dtype: Any) -> ModelT:
    """Returns the same weights as a model that computes in another dtype policy, such as `"mixed_bfloat16"`.

    Args:
        model: a model of this package.
        dtype: name of a Keras dtype policy, or the policy.

    Raises:
        TypeError: if the model is none of this package.
        ValueError: if dtype is no policy, or the model is quantised.
    """
    check_not_quantized(model, f"dtype={dtype!r}")
    description = model.get_config()
    description["config"] = model.config.replace(dtype=keras.dtype_policies.get(dtype).name).to_dict()
    return _copy(model, description, "auto")


def check_not_quantized(model: keras.Model, wanted: str) -> None:
    """Refuses a model of which a layer is quantised.

    Args:
        model: a model of this package.
        wanted: what it would have to be for, as the message calls it.

    Raises:
        TypeError: if the model is none of this package.
        ValueError: if a layer is quantised.
    """
    if any("quantization" in state for state in layer_states(check_model(model)).values()):
        raise ValueError(f"model must not be quantised for {wanted}; layers of {model.name} are")


def _copy(model, description, method):
    copied, pending = build_deferred(lambda: enable_lora_as_in(model, type(model).from_config(description)))
    values = {}
    for new, old in zip(copied.weights, model.weights, strict=True):
        values[id(new)] = _value(old) if new.shape == old.shape else _zeros(new)
    initialise(pending, values)
    method = {} if method == "auto" else {"method": method}
    for new, old in zip(sublayers(copied), sublayers(model), strict=True):
        if new.weights and hasattr(new, "resize_from"):
            new.resize_from(old, **method)
    return copied


def _value(variable):
    return lambda: keras.ops.convert_to_numpy(variable).copy()


def _zeros(variable):
    return lambda: keras.ops.zeros(variable.shape, variable.dtype)
