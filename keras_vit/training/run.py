"""train: train a model with a recipe into a folder; the same call resumes an interrupted run."""

import contextlib
import dataclasses
import importlib.util
import json
import math
import pathlib
from typing import Any

import keras
import tensorflow as tf

from keras_vit import checks
from keras_vit.config import ImageConfig
from keras_vit.data.corrupt import data_error
from keras_vit.data.sources import ImageSource
from keras_vit.logs import LOGGER
from keras_vit.models import Distiller
from keras_vit.models.derived import of_pixels
from keras_vit.models.distillation import labelled_in_training, result_of
from keras_vit.models.encoders import find_encoder
from keras_vit.training import progress
from keras_vit.training.checkpoint_files import CHECKPOINTS, held, write_text
from keras_vit.training.distribution import DISTRIBUTIONS, Devices, distribution
from keras_vit.training.identity import run_identity
from keras_vit.training.images import RunImages, open_images
from keras_vit.training.model import model_to_train
from keras_vit.training.monitor import Monitor
from keras_vit.training.recipe import Recipe
from keras_vit.training.recipe_checks import CROPPED, TASKS
from keras_vit.training.recipes import RECIPES
from keras_vit.training.result import TrainResult, read_result, write_result
from keras_vit.training.resume import Resume
from keras_vit.training.workers import save_model
from keras_vit.typing import PathLike

_FILES = "steps.csv history.csv history.json recipe.json curves.png best.keras model.keras start.json".split()


def train(
    recipe: str | Recipe,
    source: PathLike | ImageSource | None,
    workdir: PathLike,
    *,
    model: str | ImageConfig | keras.Model | None = None,
    weights: PathLike | None = None,
    validation: PathLike | ImageSource | None = None,
    strategy: str | Devices = "auto",
    checkpoint_every: int = 500,
    max_corrupt: float = 0.01,
    verbose: int | str = "auto",
) -> TrainResult:
    """Train a model with a recipe; the same call resumes an interrupted run.

    The random seed of Keras, NumPy and Python is set to the recipe's. These files are written to `workdir`:

    - `recipe.json`: every field of the recipe;
    - `checkpoints/`: the checkpoints to resume from, see `Resume`;
    - `steps.csv`, `history.csv`: one row per step and per epoch; `logs/`: for TensorBoard, if it is installed (not in
      several processes on JAX);
    - `best.keras`: the model of the epoch with the highest validation accuracy; if accuracies are equal or missing, the
      lower validation loss decides. `model.keras`: the model of the last epoch;
    - `start.json`: of a `SelfDistillation`, the values before the first step, see below;
    - `history.json`: recipe, accuracy and history, written last. Once it exists, the same call returns its result;
    - `curves.png`, if matplotlib is installed.

    With the recipe's `ema_momentum`, the averaged weights are validated and saved. For a `Distiller`, only the student
    is validated and saved, also in the checkpoints: pass the same teacher again to resume.

    For a `SelfDistillation`, the features of its teacher (the input of the head) are measured before the first step and
    after every epoch. `val_accuracy` is the accuracy of a vote of the 20 nearest other validation images, weighted as
    in `keras_vit.evaluation.knn_scores`. `rankme` is the RankMe of the features (arXiv 2210.02885). Without validation,
    there is only `rankme`, of at most 1,000 training images. `collapsed` is 1 in an epoch whose entropies are those of
    a collapse. `best.keras` is the teacher, an ordinary model, of the epoch with the highest `val_accuracy`; if
    accuracies are equal or missing, the highest `rankme` of an epoch without a collapse decides. With validation, it is
    the teacher before the first step if no epoch is better; without, only if all epochs collapse. `model.keras` is the
    whole `SelfDistillation` after the last epoch. Measuring keeps the features and one batch of images in memory. In
    several processes, nothing is measured, there is no `best.keras`, and `validation` must be None.

    Args:
        recipe: name in `keras_vit.training.RECIPES`, or a `Recipe`.
        source: folder of class folders, or `ImageSource`, of the training images; None uses the recipe's own. For the
            loss of a task model, a `TaskSource`.
        workdir: folder for the results; created if absent. All workers of a run share it.
        model: a name of the zoo, such as `"ViT-B_16"`; a config; a built model, created under the same strategy, which
            may be a `Distiller`; or None for the recipe's own. A model that is built here gets one class per class of
            `source`, and the rates, image size, dtype and remat of the recipe. The class names of `source` become the
            model's `labels`. The losses `masked_patches`, `masked_autoencoder` and `self_distillation` train a
            `MaskedPatchPrediction`, a `MaskedAutoencoder` or a `SelfDistillation`. Pass a built one; otherwise, `train`
            makes it from the model and the recipe's `pretraining` (for a `SelfDistillation`, from a copy of the model
            for images of any size; the model may be a built one, also with LoRA or frozen layers). These models ignore
            the labels of `source`.
        weights: for a model given by name or config, as in `create_model`; None for random weights.
        validation: folder or `ImageSource` to measure the accuracy on after every epoch. If it is None, the
            held-out part of the recipe's own images is used; with a `source` of your own, there is no validation. For a
            `SelfDistillation`, any two classes or more; they may differ from those of `source`.
        strategy: name of a `keras_vit.distribution`, such as `"mirrored"`, or the `Devices` that it yielded. Enter
            `multi_worker` before you create a source.
        checkpoint_every: steps between two checkpoints.
        max_corrupt: maximum share of unreadable images in a source, in [0, 1], see `train_pipeline`.
        verbose: 1 shows a progress bar, 2 prints one line per epoch, 0 is silent. `"auto"` shows the bar in a terminal
            and a notebook, and prints lines to files and pipes. All other messages go to the logger `keras_vit`.

    Returns:
        A `TrainResult`.

    Warns:
        UserWarning: if the teacher of a `SelfDistillation` collapses, or its `val_accuracy` is at least 0.02 lower than
            before the first step.

    Raises:
        TypeError: if the model is not one of this package, or the images are neither folder nor source.
        ValueError: on an unknown recipe, strategy or `verbose`; if an argument is None and the recipe does not define
            it; if the classes of model, source and validation differ; on a source without images or with too many
            unreadable ones; on `ema_momentum` with `model_parallel` in several processes; on a `workdir` of another
            run, with another recipe, model, weights file, source or validation (see `ImageSource.fingerprint`).
        FileNotFoundError: if a folder of images does not exist.
        BlockingIOError: if another process trains in `workdir`.
        CheckpointError: if the disk is full or not writable (earlier checkpoints are kept), or the newest checkpoint is
            damaged.
        NonFiniteError: if the loss or a weight is infinite or NaN.
        Preempted: after SIGTERM, with everything saved; as a `SystemExit` it ends the process with exit code 75.
        Interrupted: after Ctrl-C during training, with everything saved; it is a `KeyboardInterrupt`. A second Ctrl-C,
            or one before `fit` starts or after it returns, raises Python's `KeyboardInterrupt` at once.
    """
    if not isinstance(recipe, Recipe):
        recipe = RECIPES[checks.check_choice("recipe", recipe, RECIPES)]
    checks.check_integer("checkpoint_every", checkpoint_every)
    shown = progress.verbosity(verbose)
    workdir = checks.check_workdir(workdir, (CHECKPOINTS, "logs"), _FILES)
    if weights is not None:
        checks.check_path("weights", weights)
    if not isinstance(strategy, Devices):
        checks.check_choice("strategy", strategy, DISTRIBUTIONS)
    with contextlib.nullcontext(strategy) if isinstance(strategy, Devices) else distribution(strategy) as devices:
        images = open_images(recipe, source, validation)
        keras.utils.set_random_seed(recipe.seed)
        steps = math.prod(recipe.total_steps(images.size(recipe))) if recipe.loss in TASKS else None
        model = model_to_train(recipe, images.train.class_names, model, weights, steps)
        run = _Run(recipe, images, model, run_identity(recipe, images, model, weights), workdir, devices, shown)
        return run.result(checkpoint_every, max_corrupt)


@dataclasses.dataclass(frozen=True)
class _Run:
    """A run whose images are open and whose model is built."""

    recipe: Recipe
    images: RunImages
    model: Any
    identity: dict[str, Any]
    workdir: pathlib.Path
    devices: Devices
    shown: int  # `verbose` of `fit`

    def result(self, checkpoint_every, max_corrupt):
        """Return the `TrainResult`, that of a finished run without training."""
        recipe, is_rescaled = self.recipe, self.recipe.input_dtype == "uint8" and not isinstance(self.model, Distiller)
        trained = of_pixels(self.model) if is_rescaled else self.model
        epochs, steps_per_epoch = recipe.total_steps(self.images.size(recipe))
        recipe.compile(trained, steps=epochs * steps_per_epoch, steps_per_epoch=steps_per_epoch)
        finished = read_result(self.workdir, self.identity, self.model)
        if finished is not None:
            self._log(f"the run in {self.workdir} is already finished")
            return finished
        with held(self.workdir, self.devices.is_chief):
            resume = Resume(self.workdir, checkpoint_every, run=self.identity)
            preprocessing = labelled_in_training(self.model).preprocessing
            data = self.images.batches(recipe, preprocessing, self.devices, resume.step, max_corrupt)
            history = self._fit(trained, data, epochs, steps_per_epoch, resume)
            result = TrainResult(result_of(self.model), history, history.get("val_accuracy", [None])[-1])
            save_model(result.model, self.workdir / "model.keras")
            if self.devices.is_chief:
                self._log(write_result(self.workdir, result, recipe, self.identity, steps_per_epoch))
            return result

    def _fit(self, trained, data, epochs, steps_per_epoch, resume):
        """Train and validate on data, a pair; return the history with the digits of float32."""
        size = " x ".join(map(str, find_encoder(self.model).config.fixed_size or ("any",)))
        callbacks = self._callbacks(data[1], epochs, steps_per_epoch, resume)
        self._log(
            f"{epochs * steps_per_epoch:,} steps of {self.recipe.batch_size} images, "
            f"{epochs} x {self.images.size(self.recipe):,} images of {size} pixels"
            + (f"; resumes from the checkpoint of step {resume.step}" if resume.step else "")
        )
        try:
            history = trained.fit(
                data[0],
                epochs=epochs,
                steps_per_epoch=steps_per_epoch,
                validation_data=None if self.recipe.loss == CROPPED else data[1],
                shuffle=False,  # the pipeline shuffles; Keras can only shuffle arrays, and would warn
                callbacks=[*callbacks, resume],
                verbose=self.shown if self.devices.is_chief else 0,
            ).history
        except tf.errors.OpError as error:
            raise data_error(error) or error from None
        return {name: [progress.shortest(value) for value in values] for name, values in history.items()}

    def _callbacks(self, held_out, epochs, steps_per_epoch, resume):
        """Return the callbacks that precede `resume`, and write `recipe.json`."""
        recipe, devices, workdir = self.recipe, self.devices, self.workdir
        told, validates = epochs if self.shown and devices.is_chief else None, held_out is not None
        callbacks: list[Any] = []
        if recipe.ema_momentum is not None:
            if devices.workers > 1 and devices.name == "model_parallel":
                raise ValueError(
                    "ema_momentum must be None with model_parallel in several processes, as Keras swaps averages in "
                    f"one process only; got {recipe.ema_momentum} (use data_parallel)"
                )
            callbacks.append(keras.callbacks.SwapEMAWeights(swap_on_epoch=True))
        callbacks.append(progress.Progress(recipe.batch_size, steps_per_epoch, told, validates, resume.step))
        if validates and recipe.loss == CROPPED:
            has_labels = self.images.validation is not None
            callbacks.append(Monitor(workdir, self.model, held_out, has_labels, resume.step == 0, self._log))
        if devices.is_chief:
            callbacks.append(progress.Tables(workdir, resume, steps_per_epoch))
            # On JAX, a single process must not compute with arrays of all, as TensorBoard does with the learning rate.
            if importlib.util.find_spec("tensorboard") and (devices.workers == 1 or devices.strategy is not None):
                callbacks.append(keras.callbacks.TensorBoard(workdir / "logs", write_graph=False))
            write_text(workdir / "recipe.json", json.dumps(recipe.to_dict(), indent=2))
        if validates and recipe.loss != CROPPED:
            callbacks.append(progress.BestModel(workdir / "best.keras", result_of(self.model)))
        return callbacks

    def _log(self, text):
        if self.shown and self.devices.is_chief:
            LOGGER.info(text)
