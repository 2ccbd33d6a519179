"""Recipe: how a model is trained, as data."""

import dataclasses
import numbers

import keras

from keras_vit import checks
from keras_vit.config import Config, ViTConfig
from keras_vit.data.digits import from_digits
from keras_vit.data.pipeline import AUGMENTATIONS
from keras_vit.training.losses import classification_loss
from keras_vit.training.optimizers import OPTIMIZERS, create_optimizer
from keras_vit.training.schedules import warmup_cosine

DATASETS = {"digits": from_digits}  # name -> function that returns (train, held-out) image sources


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe(Config):
    """How a model is trained: optimizer, schedule, loss, augmentation, seed.

    `recipe.replace(epochs=5)` returns a changed copy; unknown names are refused with the list of the known.

    Args:
        name: name in the table `RECIPES`.
        source: where the numbers come from.
        optimizer: `"adamw"` or `"sgd"`.
        learning_rate: highest learning rate; it warms up linearly and falls along half a cosine.
        batch_size: pictures per step.
        epochs: passes over the training pictures. Give this or `steps`.
        steps: optimizer steps of the whole run.
        warmup_steps: steps of the warm-up. Give this or `warmup_fraction` or neither.
        warmup_fraction: share in [0, 1) of all steps.
        weight_decay: decoupled, follows the learning rate, on kernels alone.
        momentum: of `"sgd"`, in [0, 1); None is the paper's 0.9.
        clip_norm: largest global norm of the gradients, None for no clipping.
        label_smoothing: in [0, 1).
        augment: names of augmentations in their order, see `keras_vit.data.train_pipeline`.
        dropout_rate, attention_dropout_rate, stochastic_depth_rate: what the model must have been built with;
            None leaves the choice to the model.
        seed: of the initial weights, the order of the pictures and the augmentation.
        dataset: name of the recipe's own pictures, None if it has none.
        model: `ViTConfig` of the recipe's own model, None if it has none.

    Raises:
        ValueError: on a value out of range, an unknown choice or a contradiction between arguments.
    """

    name: str
    source: str
    optimizer: str
    learning_rate: float
    batch_size: int
    epochs: int | None = None
    steps: int | None = None
    warmup_steps: int = 0
    warmup_fraction: float = 0.0
    weight_decay: float = 0.0
    momentum: float | None = None
    clip_norm: float | None = None
    label_smoothing: float = 0.0
    augment: tuple = ()
    dropout_rate: float | None = None
    attention_dropout_rate: float | None = None
    stochastic_depth_rate: float | None = None
    seed: int = 0
    dataset: str | None = None
    model: ViTConfig | None = None

    def __post_init__(self):
        for name, check in _CHECKS.items():
            self._set(**{name: check(name, getattr(self, name))})
        for name, check in _OPTIONAL_CHECKS.items():
            if getattr(self, name) is not None:
                self._set(**{name: check(name, getattr(self, name))})
        self._check_contradictions()

    def _check_contradictions(self):
        if (self.epochs is None) == (self.steps is None):
            raise ValueError(
                f"exactly one of epochs and steps must be given; got epochs={self.epochs}, steps={self.steps}"
            )
        if self.warmup_steps and self.warmup_fraction:
            raise ValueError(
                "at most one of warmup_steps and warmup_fraction may be given; "
                f"got warmup_steps={self.warmup_steps}, warmup_fraction={self.warmup_fraction}"
            )
        if self.momentum is not None and self.optimizer != "sgd":
            raise ValueError(
                "momentum belongs to optimizer 'sgd'; "
                f"got momentum={self.momentum}, optimizer={self.optimizer!r}"
            )

    def to_dict(self):
        """Returns the fields as a dict of JSON values: `from_dict(to_dict())` builds an equal recipe."""
        return {**super().to_dict(), "model": self.model and self.model.to_dict()}

    def compile(self, model, steps=None):
        """Compiles `model` with the recipe's optimizer, schedule and loss, and with accuracy as its metric.

        Args:
            model: a built classifier with one logit per class.
            steps: optimizer steps of the whole run, the length of the schedule; None takes the recipe's own
                `steps`.

        Returns:
            `model`, ready for `model.fit`.

        Raises:
            ValueError: if the number of steps is not known, or the model contradicts the recipe.
        """
        if steps is None and self.steps is None:
            raise ValueError(
                f"steps must be given: recipe {self.name!r} counts epochs "
                f"(steps = epochs * steps_per_epoch, here epochs={self.epochs})"
            )
        self._check_regularisation(model)
        steps = checks.check_integer("steps", self.steps if steps is None else steps)
        warmup_steps = self.warmup_steps or round(self.warmup_fraction * steps)
        optimizer = create_optimizer(
            self.optimizer,
            warmup_cosine(self.learning_rate, steps, warmup_steps),
            model,
            weight_decay=self.weight_decay,
            momentum=self.momentum,
            clip_norm=self.clip_norm,
        )
        model.compile(
            optimizer=optimizer,
            loss=classification_loss(self.label_smoothing, _gives_logits(model)),
            metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
        )
        return model

    @property
    def regularisation(self):
        """The rates this recipe fixes, as arguments of a model: `config.replace(**recipe.regularisation)`."""
        return {name: getattr(self, name) for name in _RATES if getattr(self, name) is not None}

    def _check_regularisation(self, model):
        for name, rate in self.regularisation.items():
            built_with = getattr(getattr(model, "config", None), name, None)
            if built_with != rate:
                raise ValueError(
                    f"recipe {self.name!r} trains with {name}={rate}; "
                    f"the model was built with {name}={built_with}: "
                    f"build it with that rate or take recipe.replace({name}=None)"
                )


def _gives_logits(model):
    activation = getattr(getattr(model, "config", None), "classifier_activation", None)
    if activation not in (None, "softmax"):
        raise ValueError(
            f"model must give logits or softmax to be trained; got classifier_activation={activation!r}"
        )
    return activation is None


def _check_amount(name, value):
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 <= value < float("inf"):
        raise ValueError(f"{name} must be a finite number of at least 0; got {name}={value!r}")
    return float(value)


def _check_count(name, value):
    return checks.check_integer(name, value, minimum=0)


def _check_text(name, value):
    if not isinstance(value, str) or not value:
        raise ValueError(f"{name} must be a text; got {name}={value!r}")
    return value


def _check_augment(name, value):
    if not isinstance(value, (tuple, list)):
        raise ValueError(f"{name} must be a tuple of names, such as ('flip',); got {name}={value!r}")
    return tuple(checks.check_choice(name, item, tuple(AUGMENTATIONS)) for item in value)


def _check_model(name, value):
    if isinstance(value, dict):
        return ViTConfig.from_dict(value)
    if not isinstance(value, ViTConfig):
        raise ValueError(f"{name} must be a keras_vit.ViTConfig; got {name}={value!r}")
    return value


_RATES = ("dropout_rate", "attention_dropout_rate", "stochastic_depth_rate")
_CHECKS = {
    "name": _check_text,
    "source": _check_text,
    "optimizer": lambda name, value: checks.check_choice(name, value, OPTIMIZERS),
    "learning_rate": checks.check_positive,
    "batch_size": checks.check_integer,
    "warmup_steps": _check_count,
    "warmup_fraction": checks.check_rate,
    "weight_decay": _check_amount,
    "label_smoothing": checks.check_rate,
    "augment": _check_augment,
    "seed": _check_count,
}
_OPTIONAL_CHECKS = {
    "epochs": checks.check_integer,
    "steps": checks.check_integer,
    "momentum": checks.check_rate,
    "clip_norm": checks.check_positive,
    **dict.fromkeys(_RATES, checks.check_rate),
    "dataset": lambda name, value: checks.check_choice(name, value, DATASETS),
    "model": _check_model,
}
