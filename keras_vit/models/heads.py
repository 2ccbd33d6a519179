"""with_head: the same model with another head."""

from collections.abc import Sequence

import keras
import numpy as np

from keras_vit.compat.initial_values import build_deferred, initialise
from keras_vit.compat.sublayers import inner_layers, owned_variables
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
    """Returns the same weights as a model whose head is a given linear one, with or without a head before.

    A distilled model gets it twice: the mean of its two heads is then that of one head on the mean of their inputs.

    Args:
        model: a model of this package.
        kernel: array (dim, classes), dim that of the features which the head reads.
        bias: array (classes,).
        labels: sequence of names, one per class, or None.
        preprocessing: `Preprocessing` of its images; None is the model's.

    Returns:
        A model of the same class and config but for `classes`, `include_top=True` and `classifier_activation=None`;
        layers are frozen, quantised or have LoRA as in `model`, the head is trainable and new.

    Raises:
        TypeError: if the model is none of this package.
        ValueError: if it does not pool its tokens, or kernel and bias have other shapes.
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
    """Refuses a model whose head does not read one vector per image, or would not with a head.

    Args:
        model: a model of this package.

    Raises:
        TypeError: if the model is none of this package.
        ValueError: if it does not pool its tokens.
    """
    config = check_model(model).config
    if getattr(config, "pooling", None) in UNPOOLED:
        raise ValueError(
            "model must pool its tokens before the head, as pooling 'token', 'gap' and 'map' do; "
            f"{config.name} has pooling={config.pooling!r}"
        )


def _values(built, model, head):
    """{id of a variable of `built`: function that gives its value}."""
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
    """Enables LoRA in the layers of `built` that have it in `model`, but not in heads."""
    old = {inner.path: inner.layer for inner in inner_layers(model)}
    for inner in inner_layers(built):
        source = None if _is_of_head(inner.path) else old[inner.path]
        if getattr(source, "lora_enabled", False):
            inner.layer.enable_lora(source.lora_rank, source.lora_alpha)
    return built


def _is_of_head(path):
    return path.partition("/")[0] in _HEADS
