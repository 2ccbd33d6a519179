"""Copies of a model: clone, resize, with_dtype."""

import functools
from typing import Any, TypeVar

import keras

from keras_vit import checks
from keras_vit.compat.graph import sublayers
from keras_vit.compat.initial_values import build_deferred, initialise
from keras_vit.layers.position_grid import RESIZE_METHODS
from keras_vit.models.base import ImageModel, check_model
from keras_vit.models.layer_states import enable_lora_as_in, layer_states
from keras_vit.typing import Size

# any subclass of ImageModel; the functions return the class of their argument
ModelT = TypeVar("ModelT", bound=ImageModel)


def clone(model: ModelT) -> ModelT:
    """Return a copy of a model that shares nothing with it.

    The copy has the same class, config, preprocessing, labels and weights.

    Args:
        model: a model of this package.

    Raises:
        TypeError: if `model` is not a model of this package.
    """
    return _copy(model, check_model(model).get_config(), "auto")


def resize(model: ModelT, image_size: Size, method: str = "auto") -> ModelT:
    """Return a copy of a model for another image size.

    Only the position embeddings are resized.

    Args:
        model: a model of this package, such as `VisionTransformer`.
        image_size: (height, width) in pixels or one integer, divisible by the patch size.
        method: resize method, see `resize_position_embedding`; `auto` is the method of the architecture's authors:
            `bicubic` for Swin, `align_corners` for the others.

    Raises:
        TypeError: if `model` is not a model of this package.
        ValueError: if the method is unknown or the architecture does not support the size.
    """
    checks.check_choice("method", method, ("auto", *RESIZE_METHODS))
    description = check_model(model).get_config()
    config = model.config.replace(image_size=image_size)
    description["config"] = config.to_dict()
    description["preprocessing"] = model.preprocessing.at(config.image_size).to_dict()
    return _copy(model, description, method)


def with_dtype(model: ModelT, dtype: Any) -> ModelT:
    """Return a copy of a model with another dtype policy and the same weights.

    Args:
        model: a model of this package.
        dtype: name of a Keras dtype policy, such as `"mixed_bfloat16"`, or the policy.

    Raises:
        TypeError: if `model` is not a model of this package.
        ValueError: if `dtype` is not a policy, or the model is quantised.
    """
    check_not_quantized(model, f"dtype={dtype!r}")
    description = model.get_config()
    description["config"] = model.config.replace(dtype=keras.dtype_policies.get(dtype).name).to_dict()
    return _copy(model, description, "auto")


def check_not_quantized(model: keras.Model, wanted: str) -> None:
    """Raise an error if a layer of the model is quantised.

    Args:
        model: a model of this package.
        wanted: the purpose, for the error message.

    Raises:
        TypeError: if `model` is not a model of this package.
        ValueError: if a layer is quantised.
    """
    if any("quantization" in state for state in layer_states(check_model(model)).values()):
        raise ValueError(f"model must not be quantised for {wanted}; layers of {model.name} are")


def _copy(model, description, method):
    copied, pending = build_deferred(lambda: enable_lora_as_in(model, type(model).from_config(description)))
    values = {}
    for new, old in zip(copied.weights, model.weights, strict=True):
        if new.shape == old.shape:
            values[id(new)] = lambda old=old: keras.ops.convert_to_numpy(old).copy()
        else:  # resized below
            values[id(new)] = functools.partial(keras.ops.zeros, new.shape, new.dtype)
    initialise(pending, values)
    method = {} if method == "auto" else {"method": method}
    for new, old in zip(sublayers(copied), sublayers(model), strict=True):
        if new.weights and hasattr(new, "resize_from"):
            new.resize_from(old, **method)
    return copied
