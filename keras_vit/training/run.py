"""train: train a model by a recipe into a folder; the same call resumes an interrupted run."""

import contextlib
import dataclasses
import importlib.util
import json
import os
import pathlib
import zipfile
from typing import Any

import keras
import tensorflow as tf

from keras_vit import checks
from keras_vit.config import ImageConfig
from keras_vit.data import eval_pipeline, from_directory, train_pipeline
from keras_vit.data.corrupt import data_error
from keras_vit.data.sources import ImageSource
from keras_vit.files import remove_partial
from keras_vit.logs import LOGGER
from keras_vit.models.derived import of_pixels
from keras_vit.models.distillation import Distiller, student_of
from keras_vit.models.encoders import find_encoder
from keras_vit.training.build import build, check_classes
from keras_vit.training.checkpoint_files import held, write_atomically
from keras_vit.training.curves import draw_curves
from keras_vit.training.distribution import DISTRIBUTIONS, Devices, distribution
from keras_vit.training.progress import (
    BestModel,
    EpochTable,
    Progress,
    StepTable,
    TimeLeft,
    history_rows,
    merit,
    shortest,
    verbosity,
)
from keras_vit.training.recipe import DATASETS, Recipe
from keras_vit.training.recipes import RECIPES
from keras_vit.training.resume import Resume
from keras_vit.training.saving import save_model
from keras_vit.training.state import check_same_run, run_identity
from keras_vit.typing import PathLike

_METRICS = ("loss", "accuracy", "mean_absolute_error")
_SHOWN = ("epoch", "step", *_METRICS, *(f"val_{name}" for name in _METRICS))


@dataclasses.dataclass(frozen=True)
class TrainResult:
    """Result of `train`.

    Values have the digits of float32: 0.98 instead of Keras's 0.9800000190734863.

    Attributes:
        model: the trained model, with the weights of `workdir/model.keras`. It is compiled, unless the recipe's
            `input_dtype` is `uint8`: then only the model around it is compiled. For a `Distiller`, its student, which
            is not compiled.
        history: dict from metric name to one float per epoch.
        accuracy: top-1 accuracy of the trained model on the validation images, in [0, 1]; for a
            `MaskedPatchPrediction`, the accuracy on their corrupted patches. None without validation, or if masked
            pixels are predicted.
    """

    model: keras.Model
    history: dict[str, list[float]]
    accuracy: float | None


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
    """Train a model by a recipe; the same call resumes an interrupted run.

    The random seed of Keras, NumPy and Python is set to the recipe's. These files are written to `workdir`:

    - `recipe.json`: every field of the recipe;
    - `checkpoints/`: the checkpoints to resume from, see `Resume`;
    - `steps.csv`, `history.csv`: one row per step and per epoch; `logs/`: for TensorBoard, if it is installed;
    - `best.keras`: the model of the epoch with the highest validation accuracy; equal epochs, and those without
      accuracy, are compared by validation loss. `model.keras`: the model of the last epoch;
    - `history.json`: recipe, accuracy and history, written last. Once it exists, the same call returns its result;
    - `curves.png`, if matplotlib is installed.

    With the recipe's `ema_momentum`, the averaged weights are validated and saved. For a `Distiller`, only the student
    is validated and saved, also in the checkpoints: pass the same teacher again to resume.

    Args:
        recipe: name in `keras_vit.training.RECIPES`, or a `Recipe`.
        source: folder of class folders, or `ImageSource`, of the training images; None uses the recipe's own.
        workdir: folder for the results; created if absent. All workers of a run share it.
        model: a name of the zoo, such as `"ViT-B_16"`; a config; a built model, created under the same strategy, which
            may be a `Distiller`; or None for the recipe's own. A model that is built here gets one class per class of
            `source`, and the rates, image size, dtype and remat of the recipe. `labels` become the class names of
            `source`. A recipe with the loss `masked_patches` trains a `MaskedPatchPrediction`: a built one, or one with
            default settings around the model built here; it ignores the labels of `source`.
        weights: for a model given by name or config, as in `create_model`; None for random weights.
        validation: folder or `ImageSource` to measure the accuracy on after every epoch. None uses the held-out part of
            the recipe's own images, or no validation with a `source` of your own.
        strategy: name of the devices, see `keras_vit.distribution`, or the `Devices` that it yielded. Enter
            `multi_worker` before you create a source.
        checkpoint_every: steps between two checkpoints.
        max_corrupt: maximum share of unreadable images in a source, in [0, 1], see `train_pipeline`.
        verbose: 1 shows a progress bar, 2 prints one line per epoch, 0 is silent. `"auto"` shows the bar in a terminal
            and a notebook, and prints lines to files and pipes. All other messages go to the logger `keras_vit`.

    Returns:
        A `TrainResult`.

    Raises:
        TypeError: if the model is not one of this package, or the images are neither folder nor source.
        ValueError: on an unknown recipe, strategy or `verbose`; if the recipe lacks an argument that was left None; if
            the classes of model, source and validation differ; on a source without images or with too many unreadable
            ones; on a `workdir` of another run, with another recipe, model, weights file, source or validation (see
            `ImageSource.fingerprint`).
        FileNotFoundError: if a folder of images does not exist.
        BlockingIOError: if another process trains in `workdir`.
        CheckpointError: if the disk is full or not writable (earlier checkpoints are kept), or the newest checkpoint is
            damaged.
        NonFiniteError: if the loss or a weight is infinite or NaN.
        Preempted: after SIGTERM, with everything saved; as a `SystemExit` it ends the process with exit code 75.
        Interrupted: after Ctrl-C during training, with everything saved; it is a `KeyboardInterrupt`. A second Ctrl-C,
            or one before the first or after the last step, raises Python's `KeyboardInterrupt` at once.
    """
    recipe = _find_recipe(recipe)
    checks.check_integer("checkpoint_every", checkpoint_every)
    verbose = verbosity(verbose)
    workdir = checks.check_workdir(workdir)
    if weights is not None:
        checks.check_path("weights", weights)
    with _enter(strategy) as devices:
        source, validation = _find_sources(recipe, source, validation)
        keras.utils.set_random_seed(recipe.seed)
        model = build(recipe, source, model, weights)
        check_classes(model, source, validation)
        identity = run_identity(recipe, source, validation, model, weights)
        options: dict[str, Any] = {"checkpoint_every": checkpoint_every, "max_corrupt": max_corrupt, "verbose": verbose}
        run = _Run(recipe, source, validation, model, workdir, devices, identity, **options)
        return run.finished() or run.train()


def _enter(strategy):
    """Return a context of `Devices`."""
    if isinstance(strategy, Devices):
        return contextlib.nullcontext(strategy)
    checks.check_choice("strategy", strategy, DISTRIBUTIONS)
    return distribution(strategy)


@dataclasses.dataclass(frozen=True)
class _Run:
    """One call of `train`."""

    recipe: Recipe
    source: object
    validation: object
    model: keras.Model
    workdir: pathlib.Path
    devices: object
    identity: dict
    checkpoint_every: int
    max_corrupt: float
    verbose: int

    def train(self):
        with held(self.workdir) if self.devices.is_chief else contextlib.nullcontext():
            return self.finished() or self._train()  # another process may have finished it in the meantime

    def _train(self):
        resume = Resume(self.workdir, self.checkpoint_every, run=self.identity)
        trained, epochs, steps_per_epoch = self._compiled()
        data = self.devices.dataset(lambda shard: self._training_data(resume.step, shard))
        measured = self.validation and self.devices.dataset(self._validation_data)
        if self.devices.is_chief:
            remove_partial(self.workdir)
            _write_json(self.workdir / "recipe.json", self.recipe.to_dict())
            self._say(self._plan(epochs, steps_per_epoch, resume.step))
        try:
            history = trained.fit(
                data,
                epochs=epochs,
                steps_per_epoch=steps_per_epoch,
                validation_data=measured,
                shuffle=False,  # the pipeline shuffles; Keras can shuffle arrays only, and warns
                callbacks=[*self._callbacks(epochs, steps_per_epoch, resume), resume],
                verbose=self.verbose if self.devices.is_chief else 0,
            ).history
        except tf.errors.OpError as error:
            raise data_error(error) or error from None
        history = {name: [shortest(value) for value in values] for name, values in history.items()}
        if self.devices.is_chief:
            self._finish(history, history_rows(history, steps_per_epoch))
        return TrainResult(student_of(self.model), history, _last_accuracy(history))

    def finished(self):
        """Return the result of a finished run in `workdir`, with its weights in the model; None otherwise."""
        path = self.workdir / "history.json"
        if not path.exists():
            return None
        with _named(path, path):
            report = json.loads(path.read_text(encoding="utf-8"))
            identity, history, accuracy = (report[name] for name in ("run", "history", "accuracy"))
        check_same_run(self.workdir, identity, self.identity)
        self._compiled()
        with _named(self.workdir / "model.keras", path):
            saved = keras.models.load_model(self.workdir / "model.keras", compile=False)
        model = student_of(self.model)
        for variable, value in zip(model.weights, saved.weights, strict=True):
            variable.assign(keras.ops.convert_to_numpy(value))
        find_encoder(model).labels = find_encoder(saved).labels
        self._say(f"the run in {self.workdir} is already finished")
        return TrainResult(model, history, accuracy)

    def _plan(self, epochs, steps_per_epoch, step):
        """Return the plan of the run in one line."""
        size = " x ".join(map(str, find_encoder(self.model).config.image_size))
        steps = f"{epochs * steps_per_epoch:,} steps of {self.recipe.batch_size} images"
        images = f"{epochs} x {self.source.size:,} images of {size} pixels"
        return f"{steps}, {images}" + (f"; resumes from the checkpoint of step {step}" if step else "")

    def _say(self, sentence):
        if self.verbose and self.devices.is_chief:
            LOGGER.info(sentence)

    def _compiled(self):
        """Return the compiled model, which may contain the saved one, and its epochs and steps per epoch."""
        epochs, steps_per_epoch = self.recipe.total_steps(self.source.size)
        is_rescaled = self.recipe.input_dtype == "uint8" and not isinstance(self.model, Distiller)
        model = of_pixels(self.model) if is_rescaled else self.model
        self.recipe.compile(model, steps=epochs * steps_per_epoch, steps_per_epoch=steps_per_epoch)
        return model, epochs, steps_per_epoch

    def _training_data(self, start_step, shard):
        recipe = self.recipe
        return train_pipeline(
            self.source,
            find_encoder(self.model).preprocessing,
            recipe.batch_size,
            seed=recipe.seed,
            augment=recipe.augment,
            mix=recipe.mix,
            repeats=recipe.repeats,
            start_step=start_step,
            shard=shard,
            dtype=recipe.input_dtype,
            max_corrupt=self.max_corrupt,
        )

    def _validation_data(self, shard):
        preprocessing = find_encoder(self.model).preprocessing
        return eval_pipeline(
            self.validation,
            preprocessing,
            self.recipe.batch_size,
            shard=shard,
            dtype=self.recipe.input_dtype,
            max_corrupt=self.max_corrupt,
        )

    def _callbacks(self, epochs, steps_per_epoch, resume):
        averaging = [] if self.recipe.ema_momentum is None else [keras.callbacks.SwapEMAWeights(swap_on_epoch=True)]
        shown = [*averaging, Progress(self.recipe.batch_size, steps_per_epoch)]
        if not self.devices.is_chief:
            return shown
        if self.verbose:
            shown.append(TimeLeft(self.recipe.batch_size, steps_per_epoch, epochs, self.validation is not None))
        shown += [
            StepTable(self.workdir / "steps.csv", resume, steps_per_epoch),
            EpochTable(self.workdir / "history.csv", steps_per_epoch),
        ]
        if self.validation is not None:
            shown.append(BestModel(self.workdir / "best.keras", student_of(self.model)))
        if importlib.util.find_spec("tensorboard"):
            shown.append(keras.callbacks.TensorBoard(self.workdir / "logs", write_graph=False))
        return shown

    def _finish(self, history, rows):
        save_model(student_of(self.model), self.workdir / "model.keras")
        has_curves = draw_curves(rows, self.workdir / "curves.png")
        report = {
            "recipe": self.recipe.to_dict(),
            "accuracy": _last_accuracy(history),
            "history": history,
            "run": self.identity,
        }
        _write_json(self.workdir / "history.json", report)
        self._say(_table(rows))
        self._say(f"Saved in {self.workdir}" + ("" if has_curves else " (no curves.png: pip install matplotlib)"))


@contextlib.contextmanager
def _named(path, report):
    """Raise an error that names a file of a finished run that cannot be read, and how to write it again."""
    try:
        yield
    except PermissionError:  # it names the file, which may be intact
        raise
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{path} must be the file that a finished run wrote; got {type(error).__name__}: {error}: "
            f"delete {report}, and the same command writes both again from the last checkpoint"
        ) from error


def _find_recipe(recipe: str | Recipe) -> Recipe:
    if isinstance(recipe, Recipe):
        return recipe
    return RECIPES[checks.check_choice("recipe", recipe, RECIPES)]


def _find_sources(recipe, source, validation):
    if source is None:
        if recipe.dataset is None:
            raise ValueError(f"source must be given: recipe {recipe.name!r} has no images of its own")
        source, held_out = DATASETS[recipe.dataset]()
        validation = held_out if validation is None else validation
    return _open("source", source), None if validation is None else _open("validation", validation)


def _open(name, images):
    """Return the `ImageSource` of an argument, which may be a folder."""
    if isinstance(images, (str, os.PathLike)):
        return from_directory(checks.check_path(name, images))
    if not isinstance(images, ImageSource):
        raise TypeError(
            f"{name} must be a folder of class folders or an ImageSource, such as from keras_vit.data.from_arrays; "
            f"got {type(images).__name__}"
        )
    if images.size == 0:
        raise ValueError(f"{name} must have images; got none")
    return images


def _last_accuracy(history):
    return history["val_accuracy"][-1] if "val_accuracy" in history else None


def _table(rows):
    """Return a table of the last epoch, and of the best one if there was a validation."""
    last = rows[-1]
    named = {"last": last}
    if merit(last) is not None:
        named = {"best": max(rows, key=merit), **named}
    columns = [name for name in _SHOWN if name in last]
    lines = [["", *columns]]
    lines += [[name, *(_figure(row[column]) for column in columns)] for name, row in named.items()]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


def _figure(value):
    return str(value) if isinstance(value, int) else f"{value:.4f}"


def _write_json(path, values):
    write_atomically(path, lambda partial: partial.write_text(json.dumps(values, indent=2), encoding="utf-8"))
