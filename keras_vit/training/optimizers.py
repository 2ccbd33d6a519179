"""Optimizers by name, with the weight decay of the official recipes: decoupled, on kernels alone."""

import keras

from keras_vit import checks
from keras_vit.compat import per_variable
from keras_vit.training.encoders import layer_rates

OPTIMIZERS = ("adamw", "sgd")
MOMENTUM = 0.9  # of SGD: arXiv 2010.11929, section 4.1


def create_optimizer(
    name,
    learning_rate,
    model,
    *,
    weight_decay=0.0,
    momentum=None,
    clip_norm=None,
    layer_decay=None,
    ema_momentum=None,
    gradient_accumulation_steps=None,
):
    """Builds the optimizer that trains `model`.

    Weight decay is decoupled and follows the learning rate: each step subtracts `LR(t) * weight_decay * kernel`.
    Biases, norms, tokens and positions are not decayed (big_vision decays only `*/kernel`). With weight decay or layer
    decay the result is a subclass of Keras's optimizer that `load_model` brings back with both, else Keras's own.

    Args:
        name: `adamw` (beta 0.9 and 0.999, epsilon 1e-8) or `sgd`.
        learning_rate: number or Keras schedule.
        model: a built keras model, with its layers frozen as they will be trained.
        weight_decay: 0 or above.
        momentum: of `sgd`, in [0, 1); None is the paper's 0.9.
        clip_norm: largest global norm of the gradients, None for no clipping.
        layer_decay: in (0, 1], see `keras_vit.training.encoders.layer_rates`; None for one learning rate.
        ema_momentum: in [0, 1), share of the old average in Keras's Polyak average of the weights; None for none.
        gradient_accumulation_steps: at least 2: the weights change at every such step alone, by the mean of the
            gradients since; None for every step.

    Returns:
        A `keras.optimizers.Optimizer` that is not built yet.

    Raises:
        ValueError: on an unknown name, if the model has no variables yet, or with a layer decay if there is no one
            model of this package in it.
    """
    checks.check_choice("optimizer", name, OPTIMIZERS)
    if momentum is not None and name != "sgd":
        raise ValueError(f"momentum belongs to optimizer 'sgd'; got momentum={momentum}, optimizer={name!r}")
    if not model.variables:
        raise ValueError("model must be built before it is compiled for a recipe; got a model without variables")
    arguments = {
        "learning_rate": learning_rate,
        "weight_decay": weight_decay,
        "global_clipnorm": clip_norm,
        "gradient_accumulation_steps": gradient_accumulation_steps,
    }
    if ema_momentum is not None:
        arguments |= {"use_ema": True, "ema_momentum": ema_momentum}
    if name == "adamw":
        arguments |= {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-8}
    else:
        arguments["momentum"] = MOMENTUM if momentum is None else momentum
    library = per_variable if weight_decay or layer_decay else keras.optimizers
    if layer_decay is not None:
        arguments["rate_factors"] = layer_rates(model, layer_decay)
    return {"adamw": library.AdamW, "sgd": library.SGD}[name](**arguments)
