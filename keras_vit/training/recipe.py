"""Recipe: the settings of a training run as data."""

import dataclasses
import math
import warnings
from collections.abc import Sequence
from typing import Any, Self, TypeVar

from keras_vit import checks
from keras_vit.config import Config, ImageConfig
from keras_vit.training.compile import compile_model
from keras_vit.training.recipe_checks import CHECKS, EXCLUSIVE, RATES, check_augment, rules
from keras_vit.typing import Pair

ModelT = TypeVar("ModelT")
ConfigT = TypeVar("ConfigT", bound=ImageConfig)

MODEL_FIELDS = (*RATES, "dtype", "remat", "image_size")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe(Config):
    """Hold the settings of a run: optimizer, schedule, loss, augmentation, seed.

    `recipe.replace(epochs=5)` returns a changed copy. Unknown names raise an error that lists the known ones. A step is
    one batch, also with `gradient_accumulation_steps`.

    Args:
        name: name in the table `RECIPES`.
        source: where the values come from.
        optimizer: `adamw` or `sgd`.
        learning_rate: highest learning rate.
        batch_size: images per step.
        epochs: passes over the training images. Give this or `steps`.
        steps: steps of the whole run.
        schedule: decay of the learning rate after the warm-up: `cosine`, `linear`, `polynomial`, `step` or `constant`,
            see `keras_vit.training.compile.create_schedule`.
        final_learning_rate: final value of `cosine`, `linear` and `polynomial`.
        warmup_steps: steps of the linear warm-up. Give at most one of this, `warmup_fraction` and `warmup_epochs`.
        warmup_fraction: share of all steps, in [0, 1).
        warmup_epochs: passes over the training images; may be a fraction.
        warmup_learning_rate: first learning rate of the warm-up.
        decay_at: shares of the run in (0, 1) at which schedule `step` decays.
        decay_factor: factor of the learning rate at each share of `decay_at`; None uses 0.1.
        weight_decay: decoupled, scales with the learning rate, kernels only: LR(t) * weight_decay * kernel per step.
        final_weight_decay: weight decay at the end of the run; it changes along a cosine. None keeps it constant.
        momentum: momentum of `sgd`, in [0, 1); None uses the paper's 0.9.
        beta_2: decay rate of the second moment of `adamw`, in [0, 1); None uses 0.999.
        clip_norm: maximum global norm of the gradients, None for no clipping.
        clip_module_norm: for loss `self_distillation`, maximum global norm of the gradients of the encoder, and of each
            head; None for no clipping.
        clip_weight_norm: maximum norm of the gradient of each weight, None for no clipping.
        loss: `softmax`, or `sigmoid` summed over the classes, both for integer and for mixed labels; or one that uses
            no labels: `masked_patches` of a `keras_vit.MaskedPatchPrediction`, `masked_autoencoder` of a
            `keras_vit.MaskedAutoencoder`, or `self_distillation` of a `keras_vit.SelfDistillation`; or that of a task
            model, see `keras_vit.tasks`: `segmentation` (`SegmentationLoss`), `masks` (`MaskLoss`), `boxes`
            (`DetectionLoss`), `heatmaps` (`HeatmapLoss`), `silog` or `scale_shift_invariant`.
        pretraining: dict of arguments of that model, if `keras_vit.train` builds it; None for its defaults. For loss
            `masks`, arguments of `keras_vit.EoMTTraining` without `steps`.
        head: for the loss of a task model, dict of arguments of the task model that `keras_vit.train` builds, without
            `classes` or `num_keypoints`, and maybe its `class_name`; None for its defaults.
        max_objects: for losses `masks` and `boxes`, see `keras_vit.data.task_pipeline`.
        encoder_rate: for the loss of a task model and `self_distillation`, factor of the learning rate of the encoder,
            in (0, 1].
        encoder_warmup_steps: for the same, steps of a warm-up of the encoder after the warm-up of the heads, in which
            the learning rate of the encoder is 0; 0 for one warm-up of both.
        frozen: for the loss of a task model, whether the encoder is not trained.
        crops: for loss `self_distillation`, dict of arguments of `keras_vit.data.multi_crop_pipeline`; None for its
            defaults.
        head_bias: with loss `sigmoid`, the initial bias of a new head; a head whose bias is not all zeros keeps it.
        label_smoothing: e in [0, 1): targets are (1 - e) * label + e / classes.
        augment: augmentations in order, see `keras_vit.data.augment`.
        mix: ways to mix two images and their labels; each batch draws one of them, see `keras_vit.data.augment`.
        repeats: how often an image appears in a pass, each time with a new augmentation (arXiv 1901.09335). The length
            of a pass stays the same, so a pass has size / repeats different images.
        image_size: pixels, (height, width) or one integer, of the model that `keras_vit.train` builds; a built model
            keeps its own. None uses the model's default.
        dropout_rate, attention_dropout_rate, drop_path_rate: rates that the model must be built with; None accepts
            any.
        ema_momentum: in [0, 1), momentum of Keras's moving average of the weights (Polyak averaging). The averages
            replace the weights when `fit` ends; `keras.callbacks.SwapEMAWeights()` also validates with them. None for
            no average.
        layer_decay: in (0, 1], factor of the learning rate per block, from the head to the embedding; see
            `keras_vit.training.compile.layer_rates`. None for one learning rate.
        patch_rate: factor of the learning rate of the patch embedding, in (0, 1], besides that of `layer_decay`.
        microbatches: number of parts that a batch is split into to save memory; the update equals that of the whole
            batch.
        gradient_accumulation_steps: number of steps between two updates of the weights, as in Keras's optimizers. None
            updates at every step.
        steps_per_execution: steps per call of the compiled function.
        dtype: Keras dtype policy that the model must be built with, such as `mixed_bfloat16`; None accepts any.
        remat: `remat` that the model must be built with, `attention` or `block`; None accepts any.
        input_dtype: dtype of the batches: `float32`, standardised, or `uint8` for a model that rescales its input.
        seed: seed of the initial weights, the order of the images and the augmentation.
        dataset: name of the recipe's own images, None if it has none.
        model: config of the recipe's own model, such as a `ViTConfig`; None if it has none.
        sweep: the learning rates that the source compared on a validation set.

    Raises:
        ValueError: on a value out of range, an unknown choice or contradicting arguments.
    """

    own_checks = CHECKS
    rule_hint = " (try recipe.replace({0}=...), or --set {0}=...)"

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
    final_weight_decay: float | None = None
    momentum: float | None = None
    beta_2: float | None = None
    clip_norm: float | None = None
    clip_module_norm: float | None = None
    clip_weight_norm: float | None = None
    loss: str = "softmax"
    pretraining: dict[str, Any] | None = None
    head: dict[str, Any] | None = None
    max_objects: int = 100
    encoder_rate: float = 1.0
    encoder_warmup_steps: int = 0
    frozen: bool = False
    crops: dict[str, Any] | None = None
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
    patch_rate: float = 1.0
    microbatches: int = 1
    gradient_accumulation_steps: int | None = None
    steps_per_execution: int = 1
    dtype: str | None = None
    remat: str | None = None
    input_dtype: str = "float32"
    seed: int = 0
    dataset: str | None = None
    model: ImageConfig | None = None
    sweep: Sequence[float] = ()

    def __post_init__(self):
        super().__post_init__()
        self._refuse(rules(self))
        check_augment(self)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with the named fields changed.

        A new value for `epochs` or `steps` replaces the other one, and a new value for one of the three lengths of the
        warm-up replaces the other two: `recipe.replace(steps=400)` trains 400 steps even if the recipe specified
        epochs.

        Args:
            **changes: new values by field name.

        Raises:
            ValueError: on an unknown field, with the list of the known ones, and on invalid values.
        """
        for group in EXCLUSIVE:
            if any(changes.get(name) is not None for name in group):  # 0 counts as given: no warm-up
                changes = {**{name: getattr(type(self), name) for name in group}, **changes}  # their defaults
        return super().replace(**changes)

    def compile(self, model: ModelT, steps: int | None = None, steps_per_epoch: int | None = None) -> ModelT:
        """Compile `model` with the optimizer, schedule, loss and metric of the recipe.

        Args:
            model: a built classifier with one logit per class: a model of this package, a keras model that contains
                one, such as `keras_vit.Model(inputs, outputs)` with a new head, or a `Distiller`. For a loss that uses
                no labels, the model that the loss names, such as a `MaskedAutoencoder`; for that of a task model, the
                task model, or the `EoMTTraining` of an `EoMT`.
            steps: steps of the whole run, the length of the schedule; None uses the recipe's `steps`, or its `epochs`
                times `steps_per_epoch`.
            steps_per_epoch: steps of one pass over the images; None uses `steps` divided by the recipe's `epochs`.

        Returns:
            `model`, ready for `model.fit`.

        Raises:
            ValueError: if the number of steps is unknown, or the model contradicts the recipe.
        """
        return compile_model(self, model, steps, steps_per_epoch)

    def total_steps(self, source_size: int) -> tuple[int, int]:
        """Return (epochs, steps per epoch) for `model.fit`.

        A recipe that specifies epochs drops the images that do not fill a last batch. A recipe that specifies steps is
        split into equal epochs whose length divides `steps` and is close to one pass over the images. If an epoch is
        shorter than half a pass or longer than two, a warning suggests a better number of steps.

        Args:
            source_size: number of training images.

        Raises:
            ValueError: if there are fewer images than `batch_size`, or `steps_per_execution` does not divide the steps
                of an epoch.
        """
        checks.check_integer("source_size", source_size)
        if self.steps is not None:
            return self._equal_epochs(source_size)
        if source_size < self.batch_size:
            raise ValueError(
                f"batch_size must be at most {source_size}, the images; got {self.batch_size} (use recipe.replace)"
            )
        steps_per_epoch = source_size // self.batch_size
        if steps_per_epoch % self.steps_per_execution:
            raise ValueError(
                f"steps_per_execution={self.steps_per_execution} must divide {steps_per_epoch} steps per epoch"
            )
        return self.epochs, steps_per_epoch  # type: ignore[return-value] # epochs are set where steps are None

    def _equal_epochs(self, source_size):
        executions = self.steps // self.steps_per_execution
        passes = min(max(self.steps * self.batch_size / source_size, 1.0), executions)
        divisors = (count for count in range(1, executions + 1) if executions % count == 0)
        epochs = min(divisors, key=lambda count: abs(math.log(count / passes)))
        if not 0.5 <= epochs / passes <= 2.0:
            of_a_pass = max(source_size // self.batch_size // self.steps_per_execution, 1) * self.steps_per_execution
            warnings.warn(
                f"{self.steps} steps form epochs of {self.steps // epochs} steps, but one pass over the images "
                f"has about {of_a_pass}; recipe.replace(steps={round(self.steps / of_a_pass) * of_a_pass}) fits better",
                stacklevel=3,
            )
        return epochs, self.steps // epochs

    def configure(self, config: ConfigT, **changes: Any) -> ConfigT:
        """Return `config` with the recipe's rates, dtype, remat and image size.

        Args:
            config: such as a `ViTConfig`.
            **changes: new values of other fields.

        Raises:
            ValueError: if the recipe sets a field that this architecture does not have.
        """
        return config.replace(**changes, **self.model_arguments(type(config)))

    def model_arguments(self, config_class: type[ImageConfig]) -> dict[str, Any]:
        """Return the recipe's model settings as arguments of a config.

        A setting that the architecture does not have, such as the dropout of a ResNet, is omitted if it is off.

        Args:
            config_class: such as `ViTConfig`.

        Raises:
            ValueError: if such a setting is not off.
        """
        known = {field.name for field in dataclasses.fields(config_class)}
        for name, value in self.model_fields.items():
            if name not in known and value:
                raise ValueError(
                    f"recipe {self.name!r} trains with {name}={value}, which {config_class.__name__} does not have: "
                    f"use recipe.replace({name}=None)"
                )
        return {name: value for name, value in self.model_fields.items() if name in known}

    @property
    def model_fields(self) -> dict[str, Any]:
        """Return the recipe's model settings by config field."""
        return {name: getattr(self, name) for name in MODEL_FIELDS if getattr(self, name) is not None}

    @property
    def length(self) -> str:
        """Return the length of the run as a string: `"7 epochs"` or `"20,000 steps"`."""
        return f"{self.epochs} epochs" if self.steps is None else f"{self.steps:,} steps"
