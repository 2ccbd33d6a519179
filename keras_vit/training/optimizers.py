"""The schedule and the optimizer of a recipe, with its decays: of the weights, and of the rates by layer."""

import keras

from keras_vit.compat import saved_objects
from keras_vit.compat.graph import inner_layers
from keras_vit.compat.saved_objects import Warmup
from keras_vit.layers import AxialTransformerBlock, TransformerBlock
from keras_vit.layers.axial_resnet import AxialBottleneck
from keras_vit.layers.bottleneck import PreActivationUnit
from keras_vit.layers.swin_block import SwinBlock
from keras_vit.models import AxialResNet, BiTResNet, SwinTransformer, VisionTransformer
from keras_vit.models.encoders import find_encoder, find_encoders

_MOMENTUM = 0.9  # SGD: arXiv 2010.11929, section 4.1
_DECAY_FACTOR = 0.1

# model -> the layers that count as its blocks; the ResNet of a hybrid counts as its embedding
_BLOCKS = {
    VisionTransformer: (TransformerBlock, AxialTransformerBlock),
    SwinTransformer: (SwinBlock,),
    BiTResNet: (PreActivationUnit,),
    AxialResNet: (AxialBottleneck,),
}


def create_schedule(recipe, steps, warmup_steps=0):
    """Build a learning rate schedule: a linear warm-up, then the decay.

    With t the step, T `steps`, w `warmup_steps` and p = (t - w) / (T - w), clipped to [0, 1]:

        t < w      warmup_learning_rate + (learning_rate - warmup_learning_rate) * t / w
        cosine     final_learning_rate + (learning_rate - final_learning_rate) * (1 + cos(pi p)) / 2
        linear     final_learning_rate + (learning_rate - final_learning_rate) * (1 - p)
        step       learning_rate * decay_factor^k, where k of the shares in `decay_at` have t > share * T
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
        raise ValueError(
            f"warmup_steps must be below the steps of the run; got warmup_steps={warmup_steps}, steps={steps}"
        )
    schedules, rest = keras.optimizers.schedules, steps - warmup_steps
    start, peak, final = recipe.warmup_learning_rate, recipe.learning_rate, recipe.final_learning_rate
    match recipe.schedule:
        case "cosine" if warmup_steps:
            return schedules.CosineDecay(start, rest, alpha=final / peak, warmup_target=peak, warmup_steps=warmup_steps)
        case "cosine":
            after = schedules.CosineDecay(peak, rest, alpha=final / peak)
        case "linear":
            after = schedules.PolynomialDecay(peak, rest, final)
        case "step":
            boundaries = [round(share * steps) - warmup_steps for share in recipe.decay_at]
            if boundaries[0] < 0:
                raise ValueError(
                    "the shares in decay_at must come after the warm-up; "
                    f"got decay_at={recipe.decay_at}, warmup_steps={warmup_steps}, steps={steps}"
                )
            factor = _DECAY_FACTOR if recipe.decay_factor is None else recipe.decay_factor
            rates = [peak * factor**count for count in range(len(boundaries) + 1)]
            after = schedules.PiecewiseConstantDecay(boundaries, rates)
        case _:
            after = peak
    return Warmup(start, peak, warmup_steps, after) if warmup_steps else after


def create_optimizer(recipe, learning_rate, model):
    """Build the optimizer that trains `model`.

    Weight decay is decoupled and scales with the learning rate: each step subtracts `LR(t) * weight_decay * kernel`.
    Biases, norms, tokens and position embeddings are not decayed (big_vision decays only `*/kernel`). With weight decay
    or layer decay the result is a subclass of Keras's optimizer, and `load_model` restores both decays. Otherwise it is
    Keras's own optimizer. AdamW has the betas 0.9 and 0.999 and the epsilon 1e-8.

    Args:
        recipe: `Recipe`.
        learning_rate: number or Keras schedule.
        model: a built keras model; freeze its layers before this call.

    Returns:
        A `keras.optimizers.Optimizer` that is not built yet.

    Raises:
        ValueError: if the model has no variables yet; or with a layer decay if the model does not contain exactly one
            model of this package.
    """
    if not model.variables:
        raise ValueError("model must be built before it is compiled for a recipe; got a model without variables")
    arguments = {
        "learning_rate": learning_rate,
        "weight_decay": recipe.weight_decay,
        "global_clipnorm": recipe.clip_norm,
        "gradient_accumulation_steps": recipe.gradient_accumulation_steps,
    }
    if recipe.ema_momentum is not None:
        arguments |= {"use_ema": True, "ema_momentum": recipe.ema_momentum}
    if recipe.layer_decay is not None:
        arguments["rate_factors"] = layer_rates(model, recipe.layer_decay)
    library = saved_objects if recipe.weight_decay or recipe.layer_decay else keras.optimizers
    if recipe.optimizer == "adamw":
        return library.AdamW(beta_1=0.9, beta_2=0.999, epsilon=1e-8, **arguments)
    return library.SGD(momentum=_MOMENTUM if recipe.momentum is None else recipe.momentum, **arguments)


def layer_rates(model, decay):
    """Return learning rate factors that decrease by `decay` per block from the head to the embedding.

    Block l of L, counted from 1, has the factor decay^(L + 1 - l). Layers before the first block have decay^(L + 1).
    Layers after the last block, and layers around the model of this package, have 1. A layer between two blocks, such
    as the downsampling of Swin, has the factor of the block before it. The fine-tuning of BEiT (arXiv 2106.08254) and
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
        raise ValueError(
            "layer_decay requires a model of keras_vit, or a model that contains exactly one; "
            f"{model.name!r} contains {len(find_encoders(model))}"
        )
    depths, num_blocks = _depths(encoder)
    return [decay ** (num_blocks + 1 - depths.get(id(v), num_blocks + 1)) for v in model.trainable_variables]


def _depths(encoder):
    """Return the block of each variable by id (0 before the first block, then from 1), and the number of blocks."""
    kinds = next(blocks for family, blocks in _BLOCKS.items() if isinstance(encoder, family))
    blocks, depths = [], {}
    for inner in inner_layers(encoder):  # outer layers come before inner ones
        is_inside = blocks and inner.path.startswith(blocks[-1] + "/")  # an axial block contains two other blocks
        if isinstance(inner.layer, kinds) and not is_inside:
            blocks.append(inner.path)
        # Inner layers come later and overwrite the depth of their variables.
        depths |= dict.fromkeys(map(id, inner.layer.weights), len(blocks))
    names = [layer.name for layer in encoder.layers]
    after = encoder.layers[names.index(blocks[-1].split("/")[0]) + 1 :]
    for layer in after:
        depths |= dict.fromkeys(map(id, layer.weights), len(blocks) + 1)
    return depths, len(blocks)
