"""Optimizers by name, with the weight decay of the official recipes: decoupled, on kernels alone."""

import keras

from keras_vit import checks

OPTIMIZERS = ("adamw", "sgd")


def create_optimizer(name, learning_rate, model, *, weight_decay=0.0, momentum=None, clip_norm=None):
    """Builds the optimizer that trains `model`.

    Weight decay is decoupled and follows the learning rate: each step subtracts `LR(t) * weight_decay *
    kernel`. Biases, norms, tokens and positions are not decayed (big_vision decays only `*/kernel`). Keras
    does not save this exclusion with a model: compile a reloaded model anew before training on.

    Args:
        name: `"adamw"` (beta 0.9 and 0.999, epsilon 1e-8) or `"sgd"`.
        learning_rate: number or Keras schedule.
        model: a built keras model.
        weight_decay: 0 or above.
        momentum: of SGD, in [0, 1); None is the paper's 0.9.
        clip_norm: largest global norm of the gradients, None for no clipping.

    Returns:
        A `keras.optimizers.Optimizer` that is not built yet.

    Raises:
        ValueError: on an unknown name, or if the model has no variables yet.
    """
    checks.check_choice("optimizer", name, OPTIMIZERS)
    if not model.variables:
        raise ValueError(
            "model must be built before it is compiled for a recipe; got a model without variables"
        )
    common = {"learning_rate": learning_rate, "weight_decay": weight_decay, "global_clipnorm": clip_norm}
    if name == "adamw":
        optimizer = keras.optimizers.AdamW(beta_1=0.9, beta_2=0.999, epsilon=1e-8, **common)
    else:
        optimizer = keras.optimizers.SGD(momentum=0.9 if momentum is None else momentum, **common)
    optimizer.exclude_from_weight_decay(var_list=[v for v in model.variables if v.name != "kernel"])
    return optimizer
