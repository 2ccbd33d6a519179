"""Copies of a model: clone, merge_lora, and copy_of, which every changed copy is made with."""

import functools
from typing import TypeVar

import keras
import numpy as np
from keras import ops

from keras_vit.compat.graph import inner_layers, owned_variables, sublayers
from keras_vit.compat.initial_values import build_deferred, initialise
from keras_vit.layers.patches import resize_patch_kernel
from keras_vit.models.encoders import Encoder, check_model
from keras_vit.models.layer_states import enable_lora_as_in, has_lora

HEADS = ("head", "head_dist")  # a distilled model has both

# any subclass of ImageModel; the functions return the class of their argument
ModelT = TypeVar("ModelT", bound=Encoder)


def clone(model: ModelT) -> ModelT:
    """Return a copy of a model that shares nothing with it.

    The copy has the same class, config, preprocessing, labels and weights.

    Args:
        model: a model of this package.

    Raises:
        TypeError: if `model` is not a model of this package.
    """
    return copy_of(model)


def merge_lora(model: ModelT) -> ModelT:
    """Return a copy of a model with LoRA merged into its kernels.

    It has no LoRA, and its outputs are the same. Layers that had nothing but LoRA to train are frozen in the copy.

    Args:
        model: a model of this package, with or without LoRA.

    Raises:
        TypeError: if `model` is not a model of this package.
        ValueError: if it is quantised.
    """
    check_not_quantized(model, "merge_lora (quantize the copy)")
    merged = copy_of(model, keeps_lora=False)
    for old, new in zip(inner_layers(model), inner_layers(merged), strict=True):
        if has_lora(old.layer):
            new.layer.kernel.assign(old.layer.kernel)
    return merged


def check_not_quantized(model: keras.Model, wanted: str) -> None:
    """Raise an error if a layer of the model is quantised.

    Args:
        model: a keras model.
        wanted: the purpose, for the error message.

    Raises:
        ValueError: if a layer is quantised.
    """
    if any(getattr(layer, "quantization_mode", None) for layer in sublayers(model)):
        raise ValueError(f"model must not be quantised for {wanted}; layers of {model.name} are")


def copy_of(model, changes=None, given=None, method="auto", keeps_lora=True):
    """Return a copy of a model with changes in its `get_config`; tables of another size are resized.

    Args:
        model: a model of this package.
        changes: dict of changed values of `get_config`, or None.
        given: dict from the paths of the new head's variables to arrays, or None.
        method: as in `resize`.
        keeps_lora: whether the copy has LoRA where the model has it.
    """
    description, skip = {**check_model(model).get_config(), **(changes or {})}, HEADS if given else ()
    build = functools.partial(type(model).from_config, description)
    copied, pending = build_deferred(lambda: enable_lora_as_in(model, build(), skip) if keeps_lora else build())
    old = {owned.stored_name: owned.variable for owned in owned_variables(model)}
    values = {}
    for owned in owned_variables(copied):
        new = owned.variable
        is_new = new.path in (given or {})
        source = np.asarray(given[new.path], new.dtype) if is_new else old[owned.stored_name]
        if is_new and source.shape != tuple(new.shape):
            raise ValueError(f"{new.name} of the head must have shape {tuple(new.shape)}; got {source.shape}")
        if keeps_lora and not is_new:  # LoRA freezes single weights of layers
            new.trainable = source.trainable
        if tuple(source.shape) == tuple(new.shape):
            values[id(new)] = lambda source=source: ops.convert_to_numpy(source).copy()
        elif new.path == "patch_encoder/projection/kernel":
            size = tuple(new.shape)[:2]
            values[id(new)] = lambda source=source, size=size: resize_patch_kernel(ops.convert_to_numpy(source), size)
        else:  # resized below
            values[id(new)] = lambda new=new: ops.zeros(new.shape, new.dtype)
    initialise(pending, values)
    if given is None:
        method = {} if method == "auto" else {"method": method}
        tables = ([x for x in sublayers(one) if x.weights and hasattr(x, "resize_from")] for one in (copied, model))
        for new, old in zip(*tables, strict=True):
            new.resize_from(old, **method)
    copied.weights_path = model.weights_path
    return copied


def is_of_head(path):
    return path.partition("/")[0] in HEADS
