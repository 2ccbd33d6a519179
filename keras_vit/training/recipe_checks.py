"""Checks of a recipe's fields, alone and in combination."""

import numbers

import keras

from keras_vit import checks
from keras_vit.config import ImageConfig
from keras_vit.data.augment import parse_augment, parse_mix
from keras_vit.models import MODELS
from keras_vit.training.losses import LOSSES, MASKED_PATCHES
from keras_vit.training.optimizers import OPTIMIZERS
from keras_vit.training.schedules import SCHEDULES

INPUT_DTYPES = ("float32", "uint8")
RATES = ("dropout_rate", "attention_dropout_rate", "drop_path_rate")

# at most one field of each group is set: a new value replaces the others
EXCLUSIVE = (("epochs", "steps"), ("warmup_steps", "warmup_fraction", "warmup_epochs"))

_MAX_SEED = 2**32 - 1  # NumPy's
_CONFIGS = {config.__name__: config for config in MODELS}


def check_fields(recipe):
    """Return the converted fields; raise `ValueError` on a value out of range or an unknown choice."""
    values = {name: check(name, getattr(recipe, name)) for name, check in _CHECKS.items()}
    given = {name: getattr(recipe, name) for name in _OPTIONAL_CHECKS if getattr(recipe, name) is not None}
    return values | {name: _OPTIONAL_CHECKS[name](name, value) for name, value in given.items()}


def check_contradictions(recipe):
    """Raise `ValueError` if fields contradict each other."""
    for is_contradiction, expectation, names in _CONTRADICTIONS:
        if is_contradiction(recipe):
            got = ", ".join(f"{name}={getattr(recipe, name)!r}" for name in names)
            raise ValueError(f"{expectation}; got {got}")


def _check_amount(name, value):
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 <= value < float("inf"):
        raise ValueError(f"{name} must be a finite number of at least 0; got {name}={value!r}")
    return float(value)


def _check_number(name, value):
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not abs(value) < float("inf"):
        raise ValueError(f"{name} must be a finite number; got {name}={value!r}")
    return float(value)


def _check_count(name, value):
    return checks.check_integer(name, value, minimum=0)


def _check_seed(name, value):
    if checks.check_integer(name, value, minimum=0) > _MAX_SEED:
        raise ValueError(f"{name} must be an integer from 0 to {_MAX_SEED}; got {name}={value!r}")
    return int(value)


def _check_several(name, value):
    return checks.check_integer(name, value, minimum=2)


def _check_factor(name, value):
    if checks.check_positive(name, value) > 1:
        raise ValueError(f"{name} must be a number in (0, 1]; got {name}={value!r}")
    return float(value)


def _check_text(name, value):
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} must be a non-empty string; got {name}={value!r}")
    return value


def _parsed_by(parse):
    def check(name, value):
        parse(value)
        return tuple(value)

    return check


def _check_shares(name, value):
    is_sequence = isinstance(value, (tuple, list)) and all(isinstance(share, numbers.Real) for share in value)
    if not is_sequence or list(value) != sorted(set(value)) or not all(0 < share < 1 for share in value):
        raise ValueError(f"{name} must be an ascending tuple of shares in (0, 1); got {name}={value!r}")
    return tuple(float(share) for share in value)


def _check_sweep(name, value):
    if not isinstance(value, (tuple, list)):
        raise ValueError(f"{name} must be a tuple of learning rates; got {name}={value!r}")
    return tuple(checks.check_positive(name, rate) for rate in value)


def _check_dtype(name, value):
    try:
        return keras.dtype_policies.get(value).name
    except (ValueError, TypeError, AttributeError):
        raise ValueError(
            f"{name} must be the name of a Keras dtype policy, such as 'mixed_bfloat16'; got {name}={value!r}"
        ) from None


def _check_model(name, value):
    if isinstance(value, dict):
        value = dict(value)
        checks.check_choice(f"class_name of {name}", value.get("class_name"), _CONFIGS)
        value = _CONFIGS[value.pop("class_name")].from_dict(value)
    if not isinstance(value, ImageConfig):
        raise ValueError(f"{name} must be a config of keras_vit, such as ViTConfig; got {name}={value!r}")
    return value


def _choice(choices):
    return lambda name, value: checks.check_choice(name, value, choices)


def _way_out(name):
    return f"change it with recipe.replace({name}=...), on the command line with --set {name}=..."


_CHECKS = {
    "name": _check_text,
    "source": _check_text,
    "optimizer": _choice(OPTIMIZERS),
    "learning_rate": checks.check_positive,
    "batch_size": checks.check_integer,
    "schedule": _choice(SCHEDULES),
    "final_learning_rate": _check_amount,
    "warmup_steps": _check_count,
    "warmup_fraction": checks.check_rate,
    "warmup_epochs": _check_amount,
    "warmup_learning_rate": _check_amount,
    "decay_at": _check_shares,
    "weight_decay": _check_amount,
    "loss": _choice(LOSSES),
    "label_smoothing": checks.check_rate,
    "augment": _parsed_by(parse_augment),
    "mix": _parsed_by(parse_mix),
    "repeats": checks.check_integer,
    "microbatches": checks.check_integer,
    "steps_per_execution": checks.check_integer,
    "input_dtype": _choice(INPUT_DTYPES),
    "seed": _check_seed,
    "sweep": _check_sweep,
}
_OPTIONAL_CHECKS = {
    "epochs": checks.check_integer,
    "steps": checks.check_integer,
    "decay_factor": _check_factor,
    "momentum": checks.check_rate,
    "clip_norm": checks.check_positive,
    "head_bias": _check_number,
    "image_size": checks.check_pair,
    **dict.fromkeys(RATES, checks.check_rate),
    "ema_momentum": checks.check_rate,
    "layer_decay": _check_factor,
    "gradient_accumulation_steps": _check_several,
    "dtype": _check_dtype,
    "remat": checks.check_flag,
    "dataset": _check_text,
    "model": _check_model,
}

# (condition, what is expected, fields shown in the message)
_CONTRADICTIONS = (
    (
        lambda r: (r.epochs is None) == (r.steps is None),
        "exactly one of epochs and steps must be given",
        ("epochs", "steps"),
    ),
    (
        lambda r: sum(bool(getattr(r, name)) for name in EXCLUSIVE[1]) > 1,
        "at most one of warmup_steps, warmup_fraction and warmup_epochs may be given",
        EXCLUSIVE[1],
    ),
    (
        lambda r: r.steps is not None and r.warmup_steps >= r.steps,
        f"warmup_steps must be below steps ({_way_out('warmup_steps')})",
        ("warmup_steps", "steps"),
    ),
    (
        lambda r: r.epochs is not None and r.warmup_epochs >= r.epochs,
        f"warmup_epochs must be below epochs ({_way_out('warmup_epochs')})",
        ("warmup_epochs", "epochs"),
    ),
    (
        lambda r: r.steps is not None and r.warmup_epochs,
        "warmup_epochs requires a recipe with epochs",
        ("warmup_epochs", "steps"),
    ),
    (
        lambda r: r.warmup_learning_rate and not any(getattr(r, name) for name in EXCLUSIVE[1]),
        "warmup_learning_rate requires a warm-up",
        ("warmup_learning_rate", *EXCLUSIVE[1]),
    ),
    (
        lambda r: r.warmup_learning_rate > r.learning_rate,
        "warmup_learning_rate must not exceed learning_rate",
        ("warmup_learning_rate", "learning_rate"),
    ),
    (
        lambda r: r.final_learning_rate > r.learning_rate,
        "final_learning_rate must not exceed learning_rate",
        ("final_learning_rate", "learning_rate"),
    ),
    (
        lambda r: r.final_learning_rate and r.schedule not in ("cosine", "linear"),
        "final_learning_rate requires schedule 'cosine' or 'linear'",
        ("final_learning_rate", "schedule"),
    ),
    (
        lambda r: bool(r.decay_at) != (r.schedule == "step"),
        "decay_at must be given with schedule 'step', and only with it",
        ("decay_at", "schedule"),
    ),
    (
        lambda r: r.decay_factor is not None and r.schedule != "step",
        "decay_factor requires schedule 'step'",
        ("decay_factor", "schedule"),
    ),
    (
        lambda r: r.momentum is not None and r.optimizer != "sgd",
        "momentum requires optimizer 'sgd'",
        ("momentum", "optimizer"),
    ),
    (
        lambda r: r.head_bias is not None and r.loss != "sigmoid",
        "head_bias requires loss 'sigmoid': a bias that all classes share does not change a softmax",
        ("head_bias", "loss"),
    ),
    (
        lambda r: r.loss == MASKED_PATCHES and (r.label_smoothing or r.mix),
        "loss 'masked_patches' uses no labels, so label_smoothing must be 0 and mix empty",
        ("loss", "label_smoothing", "mix"),
    ),
    (
        lambda r: r.loss == MASKED_PATCHES and r.input_dtype != "float32",
        "loss 'masked_patches' computes its targets from standardised images, so input_dtype must be 'float32'",
        ("loss", "input_dtype"),
    ),
    (
        lambda r: r.batch_size % r.microbatches,
        "microbatches must divide batch_size",
        ("microbatches", "batch_size"),
    ),
    (
        lambda r: r.repeats > r.batch_size,
        "repeats must not exceed batch_size",
        ("repeats", "batch_size"),
    ),
    (
        lambda r: r.steps is not None and r.steps % r.steps_per_execution,
        "steps_per_execution must divide steps",
        ("steps_per_execution", "steps"),
    ),
)
