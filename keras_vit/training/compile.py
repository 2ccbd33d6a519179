"""Compiling a model for a recipe: optimizer, schedule, loss, metric, and a check that the model fits the recipe."""

import numpy as np
from keras import ops

from keras_vit import checks
from keras_vit.models import MaskedPatchPrediction
from keras_vit.models.base import Model
from keras_vit.models.distillation import Distiller
from keras_vit.models.encoders import find_encoder, output_activation
from keras_vit.training.encoders import head_layers
from keras_vit.training.losses import MASKED_PATCHES, classification_loss
from keras_vit.training.metrics import accuracy
from keras_vit.training.optimizers import create_optimizer
from keras_vit.training.schedules import DECAY_FACTOR, create_schedule


def compile_model(recipe, model, steps=None, steps_per_epoch=None):
    """Compile `model` for a recipe; see `Recipe.compile` for arguments, result and errors."""
    steps, warmup_steps = _count_steps(recipe, steps, steps_per_epoch)
    _check_model(recipe, model)
    optimizer = create_optimizer(
        recipe.optimizer,
        create_schedule(
            recipe.schedule,
            recipe.learning_rate,
            steps,
            warmup_steps=warmup_steps,
            warmup_learning_rate=recipe.warmup_learning_rate,
            final_learning_rate=recipe.final_learning_rate,
            decay_at=recipe.decay_at,
            decay_factor=DECAY_FACTOR if recipe.decay_factor is None else recipe.decay_factor,
        ),
        model,
        weight_decay=recipe.weight_decay,
        momentum=recipe.momentum,
        clip_norm=recipe.clip_norm,
        layer_decay=recipe.layer_decay,
        ema_momentum=recipe.ema_momentum,
        gradient_accumulation_steps=recipe.gradient_accumulation_steps,
    )
    objective = _objective(recipe, model)
    if recipe.head_bias is not None:
        _set_head_bias(model, recipe.head_bias)
    arguments = {"steps_per_execution": recipe.steps_per_execution}
    if recipe.microbatches > 1:
        arguments["microbatches"] = recipe.microbatches
    model.compile(optimizer=optimizer, **objective, **arguments)
    return model


def _count_steps(recipe, steps, steps_per_epoch):
    """Return the steps of the run and of its warm-up."""
    if steps_per_epoch is not None:
        checks.check_integer("steps_per_epoch", steps_per_epoch)
    if steps is None:
        steps = recipe.steps
    if steps is None and steps_per_epoch is not None:
        steps = recipe.epochs * steps_per_epoch
    if steps is None:
        raise ValueError(
            f"steps must be given: recipe {recipe.name!r} counts epochs "
            f"(steps = epochs * steps_per_epoch, here epochs={recipe.epochs})"
        )
    steps = checks.check_integer("steps", steps)
    if not recipe.warmup_epochs:
        return steps, recipe.warmup_steps or round(recipe.warmup_fraction * steps)
    return steps, round(recipe.warmup_epochs * (steps_per_epoch or steps / recipe.epochs))


def _check_model(recipe, model):
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
    config = getattr(find_encoder(model), "config", None)
    if recipe.input_dtype == "uint8" and isinstance(model, Distiller):
        raise ValueError(
            "input_dtype must be 'float32' for a Distiller, whose student and teacher expect standardised images; "
            "got input_dtype='uint8'"
        )
    if recipe.input_dtype == "uint8" and getattr(config, "distilled", False):
        raise ValueError(
            f"input_dtype must be 'float32' for a distilled model, such as {model.name!r}: "
            "with 'uint8' it would train the mean of its two heads; got input_dtype='uint8'"
        )
    for name, value in recipe.model_fields.items():
        built_with = getattr(config, name, type(value)())  # a field that the config lacks counts as off
        if name != "image_size" and built_with != value:
            raise ValueError(
                f"recipe {recipe.name!r} trains with {name}={value}; the model was built with {name}={built_with}: "
                f"build it from recipe.configure(config), or use recipe.replace({name}=None)"
            )


def _objective(recipe, model):
    """Return loss and metrics as arguments of `compile`; a model that predicts masked patches has its own."""
    if recipe.loss == MASKED_PATCHES:
        return {}
    from_logits = _gives_logits(recipe.loss, model)
    loss = classification_loss(recipe.loss, recipe.label_smoothing, from_logits)
    return {"loss": loss, "metrics": [accuracy()]}


def _gives_logits(loss, model):
    activation = output_activation(model)
    if activation not in ("linear", loss):
        raise ValueError(f"model must give logits or {loss} to be trained with loss={loss!r}; got {activation}")
    return activation == "linear"


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
