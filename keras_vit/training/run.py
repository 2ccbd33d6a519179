"""train: a recipe and images in, a trained model in a folder out; the same call goes on after a kill."""

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
from keras_vit.models.distillation import Distiller, student_of
from keras_vit.models.encoders import find_encoder
from keras_vit.models.rescaled import of_pixels
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
    """What `train` returns. Figures have the digits of float32: 0.98, where Keras has 0.9800000190734863.

    Attributes:
        model: the trained model, with the weights of `workdir/model.keras`; compiled, unless the recipe's `input_dtype`
            is `uint8`, with which the model around it is. Of a `Distiller` its student, which is not compiled.
        history: dict from metric name to one float per epoch.
        accuracy: share of the validation images that the trained model names rightly, in [0, 1], or of their
            corrupted patches that a `MaskedPatchPrediction` predicts rightly; None without any, or where that one
            predicts pixels.
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
    """Trains a model by a recipe. After a kill, the same call goes on where the last checkpoint was written.

    The random seed of Keras, NumPy and Python is set to the recipe's. `workdir` gets

    - `recipe.json`: every field of the recipe;
    - `checkpoints/`: what the run goes on from, see `Resume`;
    - `steps.csv`, `history.csv`: a row per step and per epoch; `logs/`: for TensorBoard, where it is installed;
    - `best.keras`: the model of the epoch with the highest validation accuracy, of several the one with the lowest
      validation loss, which decides alone where there is no accuracy; `model.keras`: that of the last;
    - `history.json`: recipe, accuracy and history, written last; with it, the same call returns its result at once;
    - `curves.png`, where matplotlib is installed.

    With the recipe's `ema_momentum`, the averaged weights are validated and saved. Of a `Distiller` the student alone
    is validated and saved, also in the checkpoints: to go on, give the same teacher again.

    Args:
        recipe: name in `keras_vit.training.RECIPES`, or a `Recipe`.
        source: folder of class folders, or `ImageSource`, of the training images; None takes the recipe's own.
        workdir: folder for the results; it is made if absent. Workers that train together share it.
        model: a name of the zoo, such as `"ViT-B_16"`; a config; a built model, made under the same strategy, also a
            `Distiller`; or None for the recipe's own. What is not built yet gets one class per class of `source`, and
            what the recipe fixes of rates, image size, dtype and remat. `labels` become the class names of `source`.
            A recipe with the loss `masked_patches` trains a `MaskedPatchPrediction`: a built one, or with its defaults
            around what is not built yet; the labels of `source` are not looked at.
        weights: of a model by name or config, what `create_model` takes; None for random ones.
        validation: folder or `ImageSource` to measure the accuracy on after every epoch; None takes the held-out part
            of the recipe's own images, and measures nothing with a source of your own.
        strategy: name of the devices, see `keras_vit.distribution`, or the `Devices` that it gave: `multi_worker` must
            be entered before a source is made.
        checkpoint_every: steps from one checkpoint to the next.
        max_corrupt: largest share in [0, 1] of the images of a source that may be unreadable, see `train_pipeline`.
        verbose: 1 draws a progress bar, 2 prints a line per epoch, 0 is silent; `"auto"` draws the bar on a terminal
            and in a notebook, and prints lines into files and pipes. All else goes to the logger `keras_vit`.

    Returns:
        A `TrainResult`.

    Raises:
        TypeError: if the model is none of this package, or the images are neither folder nor source.
        ValueError: on an unknown recipe, strategy or `verbose`, a recipe without what was left None, a model, source
            and validation whose classes differ, a source without images or with too many unreadable ones, and a
            `workdir` of another run: of another recipe, model, file of weights, source or validation (see
            `ImageSource.fingerprint`).
        FileNotFoundError: if there is no such folder of images.
        BlockingIOError: if another process trains in `workdir`.
        CheckpointError: if the disk is full or refuses, and what was there before is still whole; if the newest
            checkpoint is damaged.
        NonFiniteError: when the loss or a weight is no finite number.
        Preempted: after SIGTERM, with everything saved; as `SystemExit` it ends the process with exit code 75.
        Interrupted: after Ctrl-C while the steps are done, with everything saved; it is a `KeyboardInterrupt`. A second
            Ctrl-C ends at once, and one before the first or after the last step is Python's own.
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
    """Returns a context of `Devices`."""
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
            return self.finished() or self._train()  # it may have ended since it was looked at

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
                shuffle=False,  # the pipeline shuffles; Keras's own shuffling is for arrays, and it warns
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
        """The result of a run that has come to its end in `workdir`, with its weights in the model; None otherwise."""
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
        self._say(f"{self.workdir} holds this run, finished")
        return TrainResult(model, history, accuracy)

    def _plan(self, epochs, steps_per_epoch, step):
        """What is going to be done, in one line."""
        size = " x ".join(map(str, find_encoder(self.model).config.image_size))
        steps = f"{epochs * steps_per_epoch:,} steps of {self.recipe.batch_size} images"
        images = f"{epochs} x {self.source.size:,} images of {size} pixels"
        return f"{steps}, {images}" + (f"; goes on from step {step} with the weights of then" if step else "")

    def _say(self, sentence):
        if self.verbose and self.devices.is_chief:
            LOGGER.info(sentence)

    def _compiled(self):
        """The compiled model, which may have the one that is saved inside, and its epochs and steps per epoch."""
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
    """Names a file of a finished run that cannot be read; without the report, the run writes both anew."""
    try:
        yield
    except PermissionError:  # names the file, which may be whole
        raise
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{path} must be the file that a finished run has written; got {type(error).__name__}: {error}: "
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
    """The `ImageSource` of one argument, which may be a folder."""
    if isinstance(images, (str, os.PathLike)):
        return from_directory(checks.check_path(name, images))
    if not isinstance(images, ImageSource):
        raise TypeError(
            f"{name} must be a folder of class folders or an ImageSource, such as keras_vit.data.from_arrays gives; "
            f"got {type(images).__name__}"
        )
    if images.size == 0:
        raise ValueError(f"{name} must have images; got none")
    return images


def _last_accuracy(history):
    return history["val_accuracy"][-1] if "val_accuracy" in history else None


def _table(rows):
    """The last epoch, and the best one where there was a validation."""
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
