"""Checks of a recipe's fields, alone and in combination."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from keras_vit import checks
from keras_vit.compat.saved_objects import CROSS_ENTROPIES
from keras_vit.config.base import Check, one_config_of, one_of
from keras_vit.data.augment import parse_augment, parse_mix
from keras_vit.data.local import from_digits
from keras_vit.data.task_batches import parse_task_augment
from keras_vit.losses import (
    DetectionLoss,
    HeatmapLoss,
    MaskLoss,
    ScaleShiftInvariantLoss,
    SegmentationLoss,
    SiLogLoss,
)
from keras_vit.models import (
    DPT,
    MODELS,
    YOLOS,
    DPTSegmentation,
    EoMT,
    EoMTTraining,
    LinearSegmentation,
    MaskedAutoencoder,
    MaskedPatchPrediction,
    Model,
    SelfDistillation,
    TaskModel,
    ViTPose,
)

DATASETS = {"digits": from_digits}  # name -> function that returns (train, held-out) image sources
# loss without labels -> the model that computes it itself; Recipe.pretraining has arguments of the model
SELF_SUPERVISED: dict[str, type[Model]] = {
    "masked_patches": MaskedPatchPrediction,
    "masked_autoencoder": MaskedAutoencoder,
    "self_distillation": SelfDistillation,
}


class Task(NamedTuple):
    """What the loss of a task model means for a run.

    Args:
        targets: name of the targets of `keras_vit.data.task_pipeline`.
        models: classes of the task models; the first one is built if `Recipe.head` names none.
        make_loss: function of the model to its loss.
        trained: classes of the models that `fit` gets.
    """

    targets: str
    models: tuple[type[TaskModel], ...]
    make_loss: Callable[[Any], Any]
    trained: tuple[type[Model], ...]


def _task(targets, models, make_loss, trained=None):
    return Task(targets, models, make_loss, trained or models)


# loss of a task model -> its `Task`
TASKS = {
    "segmentation": _task("label_map", (LinearSegmentation, DPTSegmentation), lambda model: SegmentationLoss()),
    "masks": _task("masks", (EoMT,), lambda model: MaskLoss(), (EoMTTraining,)),
    "boxes": _task("boxes", (YOLOS,), lambda model: DetectionLoss()),
    "heatmaps": _task("keypoints", (ViTPose,), lambda model: HeatmapLoss(model.preprocessing.image_size)),
    "silog": _task("depth", (DPT,), lambda model: SiLogLoss()),
    "scale_shift_invariant": _task("depth", (DPT,), lambda model: ScaleShiftInvariantLoss()),
}
CROPPED = "self_distillation"  # its images come from `multi_crop_pipeline`
RATES = ("dropout_rate", "attention_dropout_rate", "drop_path_rate")

# at most one field of each group is set: a new value replaces the others
EXCLUSIVE = (("epochs", "steps"), ("warmup_steps", "warmup_fraction", "warmup_epochs"))
# field -> the field whose value it needs, and these values; at its default, it needs none
_NEEDS = {
    "final_learning_rate": ("schedule", ("cosine", "linear", "polynomial")),
    "decay_factor": ("schedule", ("step",)),
    "momentum": ("optimizer", ("sgd",)),
    "beta_2": ("optimizer", ("adamw",)),
    "head_bias": ("loss", ("sigmoid",)),  # it does not change a softmax
    "pretraining": ("loss", (*SELF_SUPERVISED, "masks")),
    **dict.fromkeys(("head", "max_objects", "frozen"), ("loss", tuple(TASKS))),
    **dict.fromkeys(("encoder_rate", "encoder_warmup_steps"), ("loss", (CROPPED, *TASKS))),
    **dict.fromkeys(("clip_module_norm", "crops"), ("loss", (CROPPED,))),
    **dict.fromkeys(("label_smoothing", "mix"), ("loss", CROSS_ENTROPIES)),  # the others use no labels
    "input_dtype": ("loss", CROSS_ENTROPIES),  # the others need standardised images
}


def rules(r):
    """Return a dict from rules to whether a recipe breaks them, the argument of `Config._refuse`."""
    warmups = [name for name in EXCLUSIVE[1] if getattr(r, name)]
    norms = [norm for norm in (r.clip_norm, r.clip_module_norm, r.clip_weight_norm) if norm]
    needs = {
        f"{{{name}}} requires {{{other}}} {' or '.join(map(repr, values))}": getattr(r, other) not in values
        for name, (other, values) in _NEEDS.items()
        if getattr(r, name) != getattr(type(r), name)
    }
    return needs | {
        "exactly one of {epochs} and {steps} must be given": (r.epochs is None) == (r.steps is None),
        "at most one of {warmup_steps}, {warmup_fraction} and {warmup_epochs} may be given": len(warmups) > 1,
        "{warmup_steps} must be below {steps}": r.steps is not None and r.warmup_steps >= r.steps,
        "{warmup_epochs} must be below {epochs}": r.epochs is not None and r.warmup_epochs >= r.epochs,
        "{warmup_epochs} requires a recipe with {epochs}": r.epochs is None and r.warmup_epochs,
        "{warmup_learning_rate} requires a warm-up": r.warmup_learning_rate and not warmups,
        "{warmup_learning_rate} must not exceed {learning_rate}": r.warmup_learning_rate > r.learning_rate,
        "{final_learning_rate} must not exceed {learning_rate}": r.final_learning_rate > r.learning_rate,
        "{decay_at} must be given with {schedule} 'step', and only with it": bool(r.decay_at) != (r.schedule == "step"),
        "{repeats} requires another {loss}, with labels of images": r.loss in TASKS and r.repeats > 1,
        "{encoder_warmup_steps} requires an encoder that is not {frozen}": r.frozen and r.encoder_warmup_steps,
        "{augment} requires another {loss} (it is part of {crops})": r.loss == CROPPED and r.augment,
        "{repeats} requires another {loss}": r.loss == CROPPED and r.repeats > 1,
        "{final_weight_decay} requires {weight_decay}": r.final_weight_decay is not None and not r.weight_decay,
        "at most one of {clip_norm}, {clip_module_norm} and {clip_weight_norm} may be given": len(norms) > 1,
        "{microbatches} must divide {batch_size}": r.batch_size % r.microbatches,
        "{repeats} must not exceed {batch_size}": r.repeats > r.batch_size,
        "{steps_per_execution} must divide {steps}": r.steps is not None and r.steps % r.steps_per_execution,
    }


def _number(kind, is_valid):
    return partial(checks.check_number, kind=kind, is_valid=is_valid)


def _check_arguments(name, value):
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ValueError(f"{name} must be a dict of arguments by name; got {name}={value!r}")
    return value


def _check_mix(name, value):
    parse_mix(value)
    return tuple(value)


def check_augment(r):
    """Raise a `ValueError` if an augmentation of a recipe is unknown or has wrong arguments."""
    if r.loss in TASKS:
        parse_task_augment(r.augment, TASKS[r.loss].targets)
    else:
        parse_augment(r.augment)


def _check_shares(name, value):
    shares = checks.check_sequence(name, value, "shares", _number("number in (0, 1)", lambda x: 0 < x < 1))
    if list(shares) != sorted(set(shares)):
        raise ValueError(f"{name} must be ascending; got {name}={value!r}")
    return shares


_NAMES = {
    checks.check_string: "source",
    checks.check_positive: "learning_rate clip_norm clip_module_norm clip_weight_norm",
    checks.check_integer: "max_objects batch_size epochs steps repeats microbatches steps_per_execution",
    checks.check_rate: "warmup_fraction momentum beta_2 label_smoothing ema_momentum",
    _number("finite number of at least 0", lambda x: x >= 0): "final_learning_rate warmup_epochs warmup_learning_rate "
    "weight_decay final_weight_decay",
    _check_arguments: "crops head pretraining",
    _number("finite number in (0, 1]", lambda x: 0 < x <= 1): "decay_factor encoder_rate layer_decay patch_rate",
}

# checks of the fields of `Recipe` that `ARGUMENTS` does not have, or for which it has a weaker check
CHECKS: dict[str, Check] = {name: check for check, names in _NAMES.items() for name in names.split()} | {
    "augment": partial(checks.check_sequence, kind="strings", check=checks.check_string),
    "dataset": one_of(DATASETS),
    "decay_at": _check_shares,
    "gradient_accumulation_steps": partial(checks.check_integer, minimum=2),
    "head_bias": _number("finite number", lambda x: True),
    "input_dtype": one_of(("float32", "uint8")),
    "loss": one_of((*CROSS_ENTROPIES, *SELF_SUPERVISED, *TASKS)),
    "encoder_warmup_steps": partial(checks.check_integer, minimum=0),
    "frozen": checks.check_flag,
    "mix": _check_mix,
    "model": one_config_of(*MODELS),
    "optimizer": one_of(("adamw", "sgd")),
    "schedule": one_of(("cosine", "linear", "polynomial", "step", "constant")),
    "seed": partial(checks.check_integer, minimum=0, maximum=2**32 - 1),  # NumPy's limit
    "sweep": partial(checks.check_sequence, kind="learning rates", check=checks.check_positive),
    "warmup_steps": partial(checks.check_integer, minimum=0),
}
