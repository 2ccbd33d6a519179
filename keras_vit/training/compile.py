"""Compiling a model for a recipe: optimizer, schedule, loss, metric, and a check that the model fits the recipe."""

import keras
import numpy as np
from keras import ops

from keras_vit import checks
from keras_vit.compat.graph import graph_calls
from keras_vit.compat.saved_objects import Accuracy, CrossEntropy
from keras_vit.models import MaskedPatchPrediction
from keras_vit.models.base import Model
from keras_vit.models.distillation import Distiller
from keras_vit.models.encoders import find_encoder, output_activation
from keras_vit.training.optimizers import create_optimizer, create_schedule
from keras_vit.training.recipe_checks import MASKED_PATCHES


def compile_model(recipe, model, steps=None, steps_per_epoch=None):
    """Compile `model` for a recipe; see `Recipe.compile` for arguments, result and errors."""
    schedule = create_schedule(recipe, *_count_steps(recipe, steps, steps_per_epoch))
    _check_model(recipe, model)
    arguments = {"steps_per_execution": recipe.steps_per_execution}
    if recipe.microbatches > 1:
        arguments["microbatches"] = recipe.microbatches
    if recipe.loss != MASKED_PATCHES:  # a model that predicts masked patches has its own loss and metrics
        activation = output_activation(model)
        if activation not in ("linear", recipe.loss):
            raise ValueError(
                f"model must give logits or {recipe.loss} to be trained with loss={recipe.loss!r}; got {activation}"
            )
        loss = CrossEntropy(recipe.loss, activation == "linear", recipe.label_smoothing)
        arguments |= {"loss": loss, "metrics": [Accuracy(name="accuracy")]}
    optimizer = create_optimizer(recipe, schedule, model)
    if recipe.head_bias is not None:
        _set_head_bias(model, recipe.head_bias)
    model.compile(optimizer=optimizer, **arguments)
    return model


def _count_steps(recipe, steps, steps_per_epoch):
    """Return the steps of the run and of its warm-up."""
    if steps_per_epoch is not None:
        checks.check_integer("steps_per_epoch", steps_per_epoch)
    if steps is not None:
        steps = checks.check_integer("steps", steps)
    steps = steps or recipe.steps or (recipe.epochs * steps_per_epoch if steps_per_epoch else None)
    if steps is None:
        raise ValueError(
            f"steps must be given: recipe {recipe.name!r} counts epochs "
            f"(steps = epochs * steps_per_epoch, here epochs={recipe.epochs})"
        )
    if recipe.warmup_epochs:
        return steps, round(recipe.warmup_epochs * (steps_per_epoch or steps / recipe.epochs))
    return steps, recipe.warmup_steps or round(recipe.warmup_fraction * steps)


def _check_model(recipe, model):
    config = getattr(find_encoder(model), "config", None)
    if (recipe.loss == MASKED_PATCHES) != isinstance(model, MaskedPatchPrediction):
        raise ValueError(
            f"loss must be {MASKED_PATCHES!r} for a keras_vit.MaskedPatchPrediction, and for no other model; "
            f"got {type(model).__name__} with loss={recipe.loss!r} in recipe {recipe.name!r}"
        )
    if recipe.microbatches > 1 and not isinstance(model, Model):
        raise ValueError(
            "microbatches above 1 requires a model of keras_vit, such as keras_vit.Model(inputs, outputs); "
            f"got {type(model).__name__} with microbatches={recipe.microbatches}"
        )
    if recipe.input_dtype == "uint8" and (isinstance(model, Distiller) or getattr(config, "distilled", False)):
        raise ValueError(
            "input_dtype must be 'float32' for a Distiller, whose teacher expects standardised images, and for a "
            f"distilled model, whose mean of two heads would be trained; got input_dtype='uint8' for {model.name!r}"
        )
    for name, value in recipe.model_fields.items():
        built_with = getattr(config, name, type(value)())  # a field that the config lacks counts as off
        if name != "image_size" and built_with != value:
            raise ValueError(
                f"recipe {recipe.name!r} trains with {name}={value}; the model was built with {name}={built_with}: "
                f"build it from recipe.configure(config), or use recipe.replace({name}=None)"
            )


def _set_head_bias(model, value):
    """Set the bias of untrained heads: those whose bias is still all zeros."""
    heads = head_layers(model)
    biases = [getattr(head, "bias", None) for head in heads]
    if not heads or any(bias is None for bias in biases):
        raise ValueError(
            "head_bias requires a model that ends in dense layers with a bias; "
            f"{model.name!r} ends in {[head.name for head in heads]}"
        )
    for bias in biases:
        if not np.any(ops.convert_to_numpy(bias)):
            bias.assign(ops.full(bias.shape, value, dtype=bias.dtype))


def head_layers(model):
    """Return the last layers with weights before each output: one head, or the two of a distilled model.

    The list is empty if the model is not functional.
    """
    nodes = graph_calls(model) or []
    outputs = {id(tensor) for tensor in model.outputs} if nodes else set()
    waiting = [node for node in nodes if any(id(tensor) in outputs for tensor in node.outputs)]
    found = {}
    while waiting:
        node = waiting.pop()
        if isinstance(node.operation, keras.Model):
            found.update((id(head), head) for head in head_layers(node.operation))
        elif isinstance(node.operation, keras.Layer) and node.operation.weights:
            found[id(node.operation)] = node.operation
        else:
            waiting += node.parent_nodes
    return list(found.values())
