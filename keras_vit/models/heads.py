"""with_head: replaces the head of a model."""

from collections.abc import Sequence

import keras
import numpy as np

from keras_vit.compat.graph import inner_layers, owned_variables
from keras_vit.compat.initial_values import build_deferred, initialise
from keras_vit.config import UNPOOLED, Preprocessing
from keras_vit.models.base import check_model
from keras_vit.models.copies import ModelT

_HEADS = ("head", "head_dist")  # a distilled model has both


def with_head(
    model: ModelT,
    kernel: np.ndarray,
    bias: np.ndarray,
    labels: Sequence[str] | None = None,
    preprocessing: Preprocessing | None = None,
) -> ModelT:
    """Return a copy of a model with a given linear head.

    The model may have a head or not. A distilled model gets the head twice: the mean of both outputs is that of one
    head on the mean of their inputs.

    Args:
        model: a model of this package.
        kernel: array (dim, classes); dim is the number of features that the head reads.
        bias: array (classes,).
        labels: sequence of names, one per class, or None.
        preprocessing: `Preprocessing` of its images; None uses the model's.

    Returns:
        A model of the same class and config, except for `classes`, `include_top=True` and `classifier_activation=None`.
        Its layers are frozen, quantised or adapted with LoRA as in `model`; the head is new and trainable.

    Raises:
        TypeError: if `model` is not a model of this package.
        ValueError: if the model does not pool its tokens, or kernel and bias have other shapes.
    """
    check_pools(model)
    description = model.get_config()
    config = model.config.replace(include_top=True, classes=len(bias), classifier_activation=None)
    description["config"], description["labels"] = config.to_dict(), labels
    states = description["layer_states"].items()
    description["layer_states"] = {path: state for path, state in states if not _is_of_head(path)}
    built, pending = build_deferred(lambda: _with_lora_of(model, type(model).from_config(description)))
    initialise(pending, _values(built, model, {"kernel": kernel, "bias": bias}))
    if preprocessing is not None:
        built.preprocessing = preprocessing
    return built


def check_pools(model: keras.Model) -> None:
    """Raise an error unless the head of the model reads one vector per image.

    Args:
        model: a model of this package, with or without a head.

    Raises:
        TypeError: if `model` is not a model of this package.
        ValueError: if it does not pool its tokens.
    """
    config = check_model(model).config
    if getattr(config, "pooling", None) in UNPOOLED:
        raise ValueError(
            "model must pool its tokens before the head, as pooling 'token', 'gap' and 'map' do; "
            f"{config.name} has pooling={config.pooling!r}"
        )


def _values(built, model, head):
    """Return {id of a variable of `built`: function that returns its value}."""
    old = {owned.stored_name: owned.variable for owned in owned_variables(model)}
    values = {}
    for owned in owned_variables(built):
        new = owned.variable
        if _is_of_head(owned.stored_name):
            source = np.asarray(head[new.name], new.dtype)
            if source.shape != tuple(new.shape):
                raise ValueError(f"{new.name} of the head must have shape {tuple(new.shape)}; got {source.shape}")
        else:
            source = old[owned.stored_name]
        values[id(new)] = lambda source=source: keras.ops.convert_to_numpy(source).copy()
    return values


def _with_lora_of(model, built):
    """Enable LoRA in the layers of `built` that have it in `model`, except in heads."""
    old = {inner.path: inner.layer for inner in inner_layers(model)}
    for inner in inner_layers(built):
        source = None if _is_of_head(inner.path) else old[inner.path]
        if getattr(source, "lora_enabled", False):
            inner.layer.enable_lora(source.lora_rank, source.lora_alpha)
    return built


def _is_of_head(path):
    return path.partition("/")[0] in _HEADS
