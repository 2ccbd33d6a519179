"""Recipe: how a model is trained, as data."""

import dataclasses
import math
import warnings
from collections.abc import Sequence
from typing import Any, Self, TypeVar

from keras_vit import checks
from keras_vit.config import Config, ImageConfig
from keras_vit.data.digits import from_digits
from keras_vit.training.compile import compile_model
from keras_vit.training.recipe_checks import EXCLUSIVE, RATES, check_contradictions, check_fields
from keras_vit.typing import Pair

DATASETS = {"digits": from_digits}  # name -> function that returns (train, held-out) image sources

ModelT = TypeVar("ModelT")
ConfigT = TypeVar("ConfigT", bound=ImageConfig)

_MODEL_FIELDS = (*RATES, "dtype", "remat", "image_size")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe(Config):
    """How a model is trained: optimizer, schedule, loss, augmentation, seed.

    `recipe.replace(epochs=5)` returns a changed copy; unknown names are refused with the list of the known. A step is a
    batch, also with `gradient_accumulation_steps`.

    Args:
        name: name in the table `RECIPES`.
        source: where the numbers come from.
        optimizer: `adamw` or `sgd`.
        learning_rate: highest learning rate.
        batch_size: images per step.
        epochs: passes over the training images. Give this or `steps`.
        steps: steps of the whole run.
        schedule: how the learning rate falls after the warm-up: `cosine`, `linear`, `step` or `constant`, see
            `keras_vit.training.schedules.create_schedule`.
        final_learning_rate: where `cosine` and `linear` end.
        warmup_steps: steps of the linear warm-up. Give this, `warmup_fraction`, `warmup_epochs` or none.
        warmup_fraction: share in [0, 1) of all steps.
        warmup_epochs: passes over the training images; need not be whole.
        warmup_learning_rate: where the warm-up starts.
        decay_at: shares of the run in (0, 1) at which schedule `step` decays.
        decay_factor: what it multiplies the learning rate by; None is 0.1.
        weight_decay: decoupled, follows the learning rate, on kernels alone: LR(t) * weight_decay * kernel per step.
        momentum: of `sgd`, in [0, 1); None is the paper's 0.9.
        clip_norm: largest global norm of the gradients, None for no clipping.
        loss: `softmax`, or `sigmoid` summed over the classes, both on integer labels and on mixed ones; or
            `masked_patches`, what a `keras_vit.MaskedPatchPrediction` compares: it looks at no labels.
        head_bias: with loss `sigmoid`, the bias that a fresh head starts from; a head whose bias is not all zeros
            keeps its own.
        label_smoothing: e in [0, 1): targets are (1 - e) * label + e / classes.
        augment: augmentations in their order, see `keras_vit.data.augment`.
        mix: mixes of two images and their labels, of which one is drawn per batch; see there.
        repeats: how often an image stands in a batch, each time augmented anew (arXiv 1901.09335). An epoch has as
            many images as without.
        image_size: pixels, (height, width) or one integer, of the model that `keras_vit.train` builds; a model that is
            built already keeps its own. None leaves it to the model.
        dropout_rate, attention_dropout_rate, drop_path_rate: what the model must have been built with; None
            leaves the choice to the model.
        ema_momentum: in [0, 1), of Keras's average of the weights over the steps (Polyak averaging), which becomes the
            weights when `fit` ends. `keras.callbacks.SwapEMAWeights()` validates with it on the way. None for none.
        layer_decay: in (0, 1], factor of the learning rate from block to block, from the head down; see
            `keras_vit.training.encoders.layer_rates`. None for one learning rate.
        microbatches: parts that a batch is split into to save memory; the step is that of the whole batch.
        gradient_accumulation_steps: Keras's own: the weights change at every such step alone. None for every step.
        steps_per_execution: steps per call of the compiled function.
        dtype: Keras dtype policy that the model must have been built with, such as `mixed_bfloat16`; None leaves it to
            the model.
        remat: whether the model recomputes its blocks in the backward pass to save memory; None leaves it to the model.
        input_dtype: of the batches: `float32`, standardised, or `uint8` for a model that rescales by itself.
        seed: of the initial weights, the order of the images and the augmentation.
        dataset: name of the recipe's own images, None if it has none.
        model: config of the recipe's own model, such as a `ViTConfig`; None if it has none.
        sweep: the learning rates among which the source chose the best by validation.

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
    schedule: str = "cosine"
    final_learning_rate: float = 0.0
    warmup_steps: int = 0
    warmup_fraction: float = 0.0
    warmup_epochs: float = 0.0
    warmup_learning_rate: float = 0.0
    decay_at: Sequence[float] = ()
    decay_factor: float | None = None
    weight_decay: float = 0.0
    momentum: float | None = None
    clip_norm: float | None = None
    loss: str = "softmax"
    head_bias: float | None = None
    label_smoothing: float = 0.0
    augment: Sequence[str] = ()
    mix: Sequence[str] = ()
    repeats: int = 1
    image_size: Pair | None = None
    dropout_rate: float | None = None
    attention_dropout_rate: float | None = None
    drop_path_rate: float | None = None
    ema_momentum: float | None = None
    layer_decay: float | None = None
    microbatches: int = 1
    gradient_accumulation_steps: int | None = None
    steps_per_execution: int = 1
    dtype: str | None = None
    remat: bool | None = None
    input_dtype: str = "float32"
    seed: int = 0
    dataset: str | None = None
    model: ImageConfig | None = None
    sweep: Sequence[float] = ()

    def __post_init__(self):
        self._set(**check_fields(self))
        if self.dataset is not None:
            checks.check_choice("dataset", self.dataset, DATASETS)
        check_contradictions(self)

    def replace(self, **changes: Any) -> Self:
        """Returns a copy with the named fields changed.

        Of `epochs` and `steps`, and of the three ways to state a warm-up, the one that is given takes the place of the
        others: `recipe.replace(steps=400)` trains 400 steps, whatever the recipe counted in.

        Args:
            **changes: the new values by the names of the fields.

        Raises:
            ValueError: on a name that is no field, which the message lists, and on what a recipe refuses.
        """
        for group in EXCLUSIVE:
            if any(changes.get(name) is not None for name in group):  # 0 is given too: no warm-up
                changes = {**{name: _DEFAULTS[name] for name in group}, **changes}
        return super().replace(**changes)

    def compile(self, model: ModelT, steps: int | None = None, steps_per_epoch: int | None = None) -> ModelT:
        """Compiles `model` with the recipe's optimizer, schedule and loss, and with the metric that belongs to it.

        Args:
            model: a built classifier with one logit per class: a model of this package, or a keras model around one,
                such as `keras_vit.Model(inputs, outputs)` with a new head, or a `Distiller`; for loss `masked_patches`
                a `keras_vit.MaskedPatchPrediction`, whose target says what is compared.
            steps: steps of the whole run, the length of the schedule; None takes the recipe's own `steps`, or its
                `epochs` times `steps_per_epoch`.
            steps_per_epoch: steps of one pass over the images; None takes `steps` over the recipe's `epochs`.

        Returns:
            `model`, ready for `model.fit`.

        Raises:
            ValueError: if the number of steps is not known, or the model contradicts the recipe.
        """
        return compile_model(self, model, steps, steps_per_epoch)

    def total_steps(self, source_size: int) -> tuple[int, int]:
        """Returns (epochs, steps per epoch) of `model.fit` for a number of training images.

        A recipe that counts epochs drops the images that do not fill a last batch. One that counts steps has exactly
        so many, in equal epochs that come as near to one pass over the images as divisors of `steps` can; where that
        is less than half a pass, or more than two, a warning names a number of steps that has better ones.

        Args:
            source_size: number of training images.

        Raises:
            ValueError: if there are fewer images than a batch takes, or `steps_per_execution` does not divide the
                steps of an epoch.
        """
        checks.check_integer("source_size", source_size)
        if self.steps is not None:
            return self._equal_epochs(source_size)
        if source_size < self.batch_size:
            raise ValueError(
                "batch_size must not exceed the number of images; "
                f"got batch_size={self.batch_size}, {source_size} images "
                "(recipe.replace(batch_size=...) changes it)"
            )
        steps_per_epoch = source_size // self.batch_size
        if steps_per_epoch % self.steps_per_execution:
            raise ValueError(
                "steps_per_execution must divide the steps of an epoch; "
                f"got steps_per_execution={self.steps_per_execution}, {steps_per_epoch} steps per epoch"
            )
        return self.epochs, steps_per_epoch  # type: ignore[return-value] # epochs are given where steps are not

    def _equal_epochs(self, source_size):
        executions = self.steps // self.steps_per_execution
        passes = min(max(self.steps * self.batch_size / source_size, 1.0), executions)
        divisors = (count for count in range(1, executions + 1) if executions % count == 0)
        epochs = min(divisors, key=lambda count: abs(math.log(count / passes)))
        if not 0.5 <= epochs / passes <= 2.0:
            of_a_pass = max(source_size // self.batch_size // self.steps_per_execution, 1) * self.steps_per_execution
            warnings.warn(
                f"{self.steps} steps are trained in epochs of {self.steps // epochs}, a pass takes about {of_a_pass}; "
                f"recipe.replace(steps={round(self.steps / of_a_pass) * of_a_pass}) has epochs of a pass",
                stacklevel=3,
            )
        return epochs, self.steps // epochs

    def configure(self, config: ConfigT) -> ConfigT:
        """Returns a model's config with what this recipe fixes of it: its rates, dtype, remat and image size.

        Args:
            config: such as a `ViTConfig`.

        Raises:
            ValueError: if the recipe asks for what this architecture does not have.
        """
        return config.replace(**self.model_arguments(type(config)))

    def model_arguments(self, config_class: type[ImageConfig]) -> dict[str, Any]:
        """Returns what this recipe fixes of a model as arguments of its config, such as `ViTConfig`.

        What the architecture does not have, such as the dropout of a ResNet, is left out where the recipe has it off.

        Args:
            config_class: such as `ViTConfig`.

        Raises:
            ValueError: where the recipe asks for it.
        """
        known = {field.name for field in dataclasses.fields(config_class)}
        for name, value in self.model_fields.items():
            if name not in known and value:
                raise ValueError(
                    f"recipe {self.name!r} trains with {name}={value}, which {config_class.__name__} does not have: "
                    f"take recipe.replace({name}=None)"
                )
        return {name: value for name, value in self.model_fields.items() if name in known}

    @property
    def model_fields(self) -> dict[str, Any]:
        """What this recipe fixes of the model, by the names of a config."""
        return {name: getattr(self, name) for name in _MODEL_FIELDS if getattr(self, name) is not None}

    @property
    def length(self) -> str:
        """How long it trains, in words: `"7 epochs"` or `"20,000 steps"`."""
        return f"{self.epochs} epochs" if self.steps is None else f"{self.steps:,} steps"

    @property
    def regularisation(self) -> dict[str, Any]:
        """The rates this recipe fixes, as arguments of a model: `config.replace(**recipe.regularisation)`."""
        return {name: value for name, value in self.model_fields.items() if name in RATES}


_DEFAULTS = {field.name: field.default for field in dataclasses.fields(Recipe)}
