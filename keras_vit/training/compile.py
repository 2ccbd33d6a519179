"""Compile a model for a recipe: check that it fits, and set its schedule, optimizer with decays, loss and metric."""

import keras
import numpy as np
from keras import ops

from keras_vit import checks
from keras_vit.compat import saved_objects
from keras_vit.compat.graph import inner_layers
from keras_vit.layers import AxialBottleneck, AxialTransformerBlock, PreActivationUnit, SwinBlock, TransformerBlock
from keras_vit.layers.position_bias import AttentionBias
from keras_vit.models import AxialResNet, BiTResNet, Distiller, Model, SwinTransformer, TaskModel, VisionTransformer
from keras_vit.models.distillation import result_of
from keras_vit.models.encoders import find_encoder, find_encoders, output_activation, output_calls
from keras_vit.training.recipe_checks import CROPPED, SELF_SUPERVISED, TASKS

_MOMENTUM = 0.9  # SGD: arXiv 2010.11929, section 4.1
_DECAY_FACTOR = 0.1
_POWER = 0.9  # of schedule "polynomial", as in the segmentation of DeepLab (arXiv 1606.00915) and EoMT

# model -> the layers that count as its blocks; the ResNet of a hybrid counts as its embedding
_BLOCKS = {
    VisionTransformer: (TransformerBlock, AxialTransformerBlock),
    SwinTransformer: (SwinBlock,),
    BiTResNet: (PreActivationUnit,),
    AxialResNet: (AxialBottleneck,),
}


def compile_model(recipe, model, steps=None, steps_per_epoch=None):
    """Compile `model` for a recipe; see `Recipe.compile` for arguments, result and errors."""
    steps, warmup_steps = _count_steps(recipe, steps, steps_per_epoch)
    schedule = create_schedule(recipe, steps, warmup_steps)
    _check_model(recipe, model)
    arguments = {"steps_per_execution": recipe.steps_per_execution}
    if recipe.microbatches > 1:
        arguments["microbatches"] = recipe.microbatches
    if recipe.loss in TASKS:
        arguments["loss"] = TASKS[recipe.loss].make_loss(model)
    elif recipe.loss not in SELF_SUPERVISED:  # those models have their own losses and metrics
        activation = output_activation(model)
        if activation not in ("linear", recipe.loss):
            raise ValueError(f"model must return logits or {recipe.loss} for loss={recipe.loss!r}; got {activation}")
        loss = saved_objects.CrossEntropy(recipe.loss, activation == "linear", recipe.label_smoothing)
        arguments |= {"loss": loss, "metrics": [saved_objects.Accuracy(name="accuracy")]}
    if recipe.loss == CROPPED:
        per_epoch = steps_per_epoch or steps // (recipe.epochs or 1)
        arguments |= {"epochs": -(-steps // per_epoch), "steps_per_epoch": per_epoch}
    optimizer = create_optimizer(recipe, schedule, model, steps, warmup_steps)
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
            f"steps must be given: recipe {recipe.name!r} has epochs={recipe.epochs} (epochs * steps_per_epoch)"
        )
    if recipe.warmup_epochs:
        return steps, round(recipe.warmup_epochs * (steps_per_epoch or steps / recipe.epochs))
    return steps, recipe.warmup_steps or round(recipe.warmup_fraction * steps)


def _check_model(recipe, model):
    config = getattr(find_encoder(model), "config", None)
    for loss, wanted in SELF_SUPERVISED.items():
        if (recipe.loss == loss) != isinstance(model, wanted):
            raise ValueError(
                f"loss must be {loss!r} for a keras_vit.{wanted.__name__}, and for no other model; "
                f"got {type(model).__name__} with loss={recipe.loss!r} in recipe {recipe.name!r}"
            )
    task = TASKS.get(recipe.loss)
    if (task is not None) != isinstance(result_of(model), TaskModel) or task and not isinstance(model, task.trained):
        kinds = ", ".join(f"{kind.__name__} for {loss!r}" for loss, one in TASKS.items() for kind in one.trained)
        raise ValueError(
            f"loss must be that of the model ({kinds}); got {type(model).__name__} with loss={recipe.loss!r} in recipe "
            f"{recipe.name!r}"
        )
    if recipe.microbatches > 1 and not isinstance(model, Model):
        raise ValueError(f"microbatches={recipe.microbatches} needs a keras_vit.Model; got {type(model).__name__}")
    if recipe.input_dtype == "uint8" and (isinstance(model, Distiller) or getattr(config, "distilled", False)):
        raise ValueError(
            "input_dtype must be 'float32' for a Distiller, because its teacher expects standardised images, and for a "
            "distilled model, because with 'uint8' the mean of both heads would be trained; "
            f"got input_dtype='uint8' for {model.name!r}"
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
        raise ValueError(f"head_bias needs heads with a bias; {model.name!r} ends in {[head.name for head in heads]}")
    for bias in biases:
        if not np.any(ops.convert_to_numpy(bias)):
            bias.assign(ops.full(bias.shape, value, dtype=bias.dtype))


def head_layers(model):
    """Return the last layers with weights before each output: one head, or the two of a distilled model.

    The list is empty if the model is not functional.
    """
    waiting, found = output_calls(model), {}
    while waiting:
        node = waiting.pop()
        if isinstance(node.operation, keras.Model):
            found.update((id(head), head) for head in head_layers(node.operation))
        elif isinstance(node.operation, keras.Layer) and node.operation.weights:
            found[id(node.operation)] = node.operation
        else:
            waiting += node.parent_nodes
    return list(found.values())


def create_schedule(recipe, steps, warmup_steps=0):
    """Build a learning rate schedule: a linear warm-up, then the decay.

    With t the step, T `steps`, w `warmup_steps` and p = (t - w) / (T - w), clipped to [0, 1]:

        t < w      warmup_learning_rate + (learning_rate - warmup_learning_rate) * t / w
        cosine     final_learning_rate + (learning_rate - final_learning_rate) * (1 + cos(pi p)) / 2
        linear     final_learning_rate + (learning_rate - final_learning_rate) * (1 - p)
        polynomial final_learning_rate + (learning_rate - final_learning_rate) * (1 - p)^0.9
        step       learning_rate * decay_factor^k, where k is the number of shares in `decay_at` with t > share * T
        constant   learning_rate

    `cosine` with a warm-up from 0 and a final learning rate of 0 is the official fine-tuning schedule, `linear` the
    pre-training one (google-research/vision_transformer, vit_jax/utils.py), `step` that of BiT
    (google-research/big_transfer). Where Keras has a matching class, it is used: `CosineDecay`, `PolynomialDecay`,
    `PiecewiseConstantDecay`.

    Args:
        recipe: `Recipe` with the fields above.
        steps: optimizer steps of the whole run; later steps keep the last learning rate.
        warmup_steps: steps of the warm-up, fewer than `steps`; 0 for none.

    Returns:
        A `keras.optimizers.schedules.LearningRateSchedule`; for `constant` without warm-up a float.

    Raises:
        ValueError: if the warm-up is as long as the run, or longer than the first share of `decay_at`.
    """
    if warmup_steps >= steps:
        raise ValueError(f"warmup_steps must be below the steps of the run; got {warmup_steps} of {steps} steps")
    schedules, rest = keras.optimizers.schedules, steps - warmup_steps
    start, peak, final = recipe.warmup_learning_rate, recipe.learning_rate, recipe.final_learning_rate
    match recipe.schedule:
        case "cosine" if warmup_steps:
            return schedules.CosineDecay(start, rest, alpha=final / peak, warmup_target=peak, warmup_steps=warmup_steps)
        case "cosine":
            after = schedules.CosineDecay(peak, rest, alpha=final / peak)
        case "linear":
            after = schedules.PolynomialDecay(peak, rest, final)
        case "polynomial":
            after = schedules.PolynomialDecay(peak, rest, final, power=_POWER)
        case "step":
            boundaries = [round(share * steps) - warmup_steps for share in recipe.decay_at]
            if boundaries[0] < 0:
                shares = f"decay_at must be shares of the steps after the warm-up; got decay_at={recipe.decay_at}"
                raise ValueError(f"{shares} with a warm-up of {warmup_steps} of {steps} steps")
            factor = _DECAY_FACTOR if recipe.decay_factor is None else recipe.decay_factor
            rates = [peak * factor**count for count in range(len(boundaries) + 1)]
            after = schedules.PiecewiseConstantDecay(boundaries, rates)
        case _:
            after = peak
    return saved_objects.Warmup(start, peak, warmup_steps, after) if warmup_steps else after


def create_optimizer(recipe, learning_rate, model, steps=None, warmup_steps=0):
    """Build the optimizer that trains `model`.

    Weight decay is decoupled and scales with the learning rate: each step subtracts `LR(t) * weight_decay * kernel`.
    Biases, norms, tokens and position embeddings are not decayed (big_vision decays only `*/kernel`). With weight decay
    or layer decay the result is a subclass of Keras's optimizer, and `load_model` restores both decays. Otherwise it is
    Keras's own optimizer. AdamW has the betas 0.9 and `beta_2`, 0.999 unless given, and the epsilon 1e-8.

    Args:
        recipe: `Recipe`.
        learning_rate: number or Keras schedule.
        model: a built keras model; freeze its layers before this call.
        steps: steps of the whole run, for a weight decay that changes, and for `encoder_warmup_steps`.
        warmup_steps: steps of the warm-up of the heads, for `encoder_warmup_steps`.

    Returns:
        A `keras.optimizers.Optimizer` that is not built yet.

    Raises:
        ValueError: if the model has no variables yet; or with a layer decay if the model does not contain exactly one
            model of this package.
    """
    if not model.variables:
        raise ValueError("model must be built before it is compiled for a recipe; got a model without variables")
    decay = recipe.weight_decay
    if recipe.final_weight_decay is not None:
        decay = keras.optimizers.schedules.CosineDecay(decay, steps, alpha=recipe.final_weight_decay / decay)
    arguments = {
        "learning_rate": learning_rate,
        "weight_decay": decay,
        "global_clipnorm": recipe.clip_norm or recipe.clip_module_norm,
        "clipnorm": recipe.clip_weight_norm,
        "gradient_accumulation_steps": recipe.gradient_accumulation_steps,
    }
    if recipe.ema_momentum is not None:
        arguments |= {"use_ema": True, "ema_momentum": recipe.ema_momentum}
    encoder = find_encoder(model)
    inside = set() if encoder is None else set(map(id, encoder.variables))
    of_encoder = [id(variable) in inside for variable in model.trainable_variables]
    if recipe.layer_decay is not None or recipe.encoder_rate != 1 or recipe.patch_rate != 1:
        rates = layer_rates(model, recipe.layer_decay or 1.0)
        for place, (variable, is_inside) in enumerate(zip(model.trainable_variables, of_encoder, strict=True)):
            rates[place] *= recipe.encoder_rate if is_inside else 1
            rates[place] *= recipe.patch_rate if is_inside and "patch_encoder/" in variable.path else 1
        arguments["rate_factors"] = rates
    if recipe.clip_module_norm is not None:
        heads = {id(weight): head.name for head in model.trained_heads for weight in head.weights}
        arguments["modules"] = [heads.get(id(variable), "encoder") for variable in model.trainable_variables]
    if recipe.encoder_warmup_steps:  # the rate of the encoder is 0 while the heads warm up
        rate = create_schedule(recipe, steps - warmup_steps, recipe.encoder_warmup_steps)
        arguments["encoder_rate"] = saved_objects.Warmup(0.0, 0.0, warmup_steps, rate) if warmup_steps else rate
        arguments["of_encoder"] = of_encoder
    is_own = recipe.weight_decay or {"rate_factors", "encoder_rate", "modules"} & {*arguments}
    library = saved_objects if is_own else keras.optimizers
    if recipe.optimizer == "adamw":
        beta_2 = 0.999 if recipe.beta_2 is None else recipe.beta_2
        return library.AdamW(beta_1=0.9, beta_2=beta_2, epsilon=1e-8, **arguments)
    return library.SGD(momentum=_MOMENTUM if recipe.momentum is None else recipe.momentum, **arguments)


def layer_rates(model, decay):
    """Return learning rate factors that decrease by `decay` per block from the head to the embedding.

    Block l of L, counted from 1, has the factor decay^(L + 1 - l). Layers before the first block have decay^(L + 1).
    Layers after the last block, and layers around the model of this package, have 1. A layer between two blocks, such
    as the downsampling of Swin, has the factor of the block before it; a position bias of BEiT has that of its block,
    or 1 if all blocks share it. The fine-tuning of BEiT (arXiv 2106.08254) and
    MAE (arXiv 2111.06377) uses the same factors.

    Args:
        model: a model of this package, or a model that contains one.
        decay: in (0, 1].

    Returns:
        One factor per trainable variable, in the order of `model.trainable_variables`.

    Raises:
        ValueError: if `model` contains no model of this package, or several.
    """
    encoder = find_encoder(model)
    if encoder is None:
        raise ValueError(f"layer_decay needs one keras_vit model; {model.name!r} contains {len(find_encoders(model))}")
    depths, num_blocks = _depths(encoder)
    return [decay ** (num_blocks + 1 - depths.get(id(v), num_blocks + 1)) for v in model.trainable_variables]


def _depths(encoder):
    """Return the block of each variable by id (0 before the first block, then from 1), and the number of blocks."""
    kinds = next(blocks for model, blocks in _BLOCKS.items() if isinstance(encoder, model))
    blocks, depths = [], {}
    for inner in inner_layers(encoder):  # outer layers come before inner ones
        is_inside = blocks and inner.path.startswith(blocks[-1] + "/")  # an axial block contains two other blocks
        if isinstance(inner.layer, kinds) and not is_inside:
            blocks.append(inner.path)
        # Inner layers come later and overwrite the depth of their variables.
        depths |= dict.fromkeys(map(id, inner.layer.weights), len(blocks) + isinstance(inner.layer, AttentionBias))
    names = [layer.name for layer in encoder.layers]
    after = encoder.layers[names.index(blocks[-1].split("/")[0]) + 1 :]
    after += [layer for layer in encoder.layers if isinstance(layer, AttentionBias) and layer.name == "attention_bias"]
    for layer in after:
        depths |= dict.fromkeys(map(id, layer.weights), len(blocks) + 1)
    return depths, len(blocks)
