"""Optimizers by name, with the weight decay of the official recipes: decoupled and on kernels only."""

import keras

from keras_vit import checks
from keras_vit.compat import saved_objects
from keras_vit.training.encoders import layer_rates

OPTIMIZERS = ("adamw", "sgd")
MOMENTUM = 0.9  # SGD: arXiv 2010.11929, section 4.1


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
    """Build the optimizer that trains `model`.

    Weight decay is decoupled and scales with the learning rate: each step subtracts `LR(t) * weight_decay * kernel`.
    Biases, norms, tokens and position embeddings are not decayed (big_vision decays only `*/kernel`). With weight decay
    or layer decay the result is a subclass of Keras's optimizer, and `load_model` restores both decays. Otherwise it is
    Keras's own optimizer.

    Args:
        name: `adamw` (beta 0.9 and 0.999, epsilon 1e-8) or `sgd`.
        learning_rate: number or Keras schedule.
        model: a built keras model; freeze its layers before this call.
        weight_decay: 0 or above.
        momentum: of `sgd`, in [0, 1); None uses the paper's 0.9.
        clip_norm: maximum global norm of the gradients, None for no clipping.
        layer_decay: in (0, 1], see `keras_vit.training.encoders.layer_rates`; None for one learning rate.
        ema_momentum: in [0, 1), weight of the old average in Keras's moving average of the weights; None for none.
        gradient_accumulation_steps: 2 or above: number of steps between two updates of the weights, which use the mean
            of the gradients since the last one; None updates at every step.

    Returns:
        A `keras.optimizers.Optimizer` that is not built yet.

    Raises:
        ValueError: on an unknown name; if the model has no variables yet; or with a layer decay if the model does not
            contain exactly one model of this package.
    """
    checks.check_choice("optimizer", name, OPTIMIZERS)
    if momentum is not None and name != "sgd":
        raise ValueError(f"momentum requires optimizer 'sgd'; got momentum={momentum}, optimizer={name!r}")
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
    library = saved_objects if weight_decay or layer_decay else keras.optimizers
    if layer_decay is not None:
        arguments["rate_factors"] = layer_rates(model, layer_decay)
    return {"adamw": library.AdamW, "sgd": library.SGD}[name](**arguments)
