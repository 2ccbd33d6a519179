"""train: train a model with a recipe into a folder; the same call resumes an interrupted run."""

import contextlib
import dataclasses
import importlib.util
import json
import os
import zipfile

import keras
import tensorflow as tf

from keras_vit import checks
from keras_vit.checkpoints.load import load_weights
from keras_vit.config import ImageConfig
from keras_vit.data import eval_pipeline, from_directory, multi_crop_pipeline, train_pipeline
from keras_vit.data.corrupt import data_error
from keras_vit.data.sources import ImageSource
from keras_vit.logs import LOGGER
from keras_vit.models import Distiller, Model, build_model, resize
from keras_vit.models.derived import of_pixels
from keras_vit.models.distillation import student_of
from keras_vit.models.encoders import find_encoder
from keras_vit.models.layer_states import restart_lora
from keras_vit.training import progress
from keras_vit.training.checkpoint_files import CHECKPOINTS, held, write_text
from keras_vit.training.distribution import DISTRIBUTIONS, Devices, distribution
from keras_vit.training.identity import check_same_run, run_identity
from keras_vit.training.recipe import Recipe
from keras_vit.training.recipe_checks import CROPPED, DATASETS, SELF_SUPERVISED
from keras_vit.training.recipes import RECIPES
from keras_vit.training.resume import Resume
from keras_vit.training.workers import save_model, value_of
from keras_vit.typing import PathLike
from keras_vit.zoo import VARIANTS, create_model, variant_name

_FILES = ("steps.csv", "history.csv", "history.json", "recipe.json", "curves.png", "best.keras", "model.keras")


@dataclasses.dataclass(frozen=True)
class TrainResult:
    """Hold the result of `train`.

    Values have the digits of float32: 0.98 instead of Keras's 0.9800000190734863.

    Attributes:
        model: the trained model, with the weights of `workdir/model.keras`. It is compiled. With the recipe's
            `input_dtype="uint8"`, it is not: `train` compiles a model around it that takes pixel values. For a
            `Distiller`, its student, which is not compiled.
        history: dict from metric name to one float per epoch.
        accuracy: top-1 accuracy of the trained model on the validation images, in [0, 1]; for a
            `MaskedPatchPrediction`, the accuracy on their corrupted patches. None without validation, or if pixels are
            predicted.
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
    """Train a model with a recipe; the same call resumes an interrupted run.

    The random seed of Keras, NumPy and Python is set to the recipe's. These files are written to `workdir`:

    - `recipe.json`: every field of the recipe;
    - `checkpoints/`: the checkpoints to resume from, see `Resume`;
    - `steps.csv`, `history.csv`: one row per step and per epoch; `logs/`: for TensorBoard, if it is installed (not in
      several processes on JAX);
    - `best.keras`: the model of the epoch with the highest validation accuracy; if accuracies are equal or missing, the
      lower validation loss decides. `model.keras`: the model of the last epoch;
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
            `source`, and the rates, image size, dtype and remat of the recipe. The class names of `source` become the
            model's `labels`. The losses `masked_patches`, `masked_autoencoder` and `self_distillation` train a
            `MaskedPatchPrediction`, a `MaskedAutoencoder` or a `SelfDistillation`. Pass a built one; otherwise, `train`
            makes it from the model and the recipe's `pretraining` (for a `SelfDistillation`, from a model for images of
            any size). These models ignore the labels of `source`.
        weights: for a model given by name or config, as in `create_model`; None for random weights.
        validation: folder or `ImageSource` to measure the accuracy on after every epoch. If it is None, the
            held-out part of the recipe's own images is used; with a `source` of your own, there is no validation. A
            `SelfDistillation` has none.
        strategy: name of a `keras_vit.distribution`, such as `"mirrored"`, or the `Devices` that it yielded. Enter
            `multi_worker` before you create a source.
        checkpoint_every: steps between two checkpoints.
        max_corrupt: maximum share of unreadable images in a source, in [0, 1], see `train_pipeline`.
        verbose: 1 shows a progress bar, 2 prints one line per epoch, 0 is silent. `"auto"` shows the bar in a terminal
            and a notebook, and prints lines to files and pipes. All other messages go to the logger `keras_vit`.

    Returns:
        A `TrainResult`.

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
    verbose = progress.verbosity(verbose)
    workdir = checks.check_workdir(workdir, (CHECKPOINTS, "logs"), _FILES)
    if weights is not None:
        checks.check_path("weights", weights)
    if not isinstance(strategy, Devices):
        checks.check_choice("strategy", strategy, DISTRIBUTIONS)
    with contextlib.nullcontext(strategy) if isinstance(strategy, Devices) else distribution(strategy) as devices:
        options = checkpoint_every, max_corrupt, verbose
        return _train(recipe, source, validation, model, weights, workdir, devices, *options)


def _train(recipe, source, validation, model, weights, workdir, devices, checkpoint_every, max_corrupt, verbose):
    """Open the images, build and compile the model, make the pipelines, fit, and report."""
    source, validation = _open_images(recipe, source, validation)
    keras.utils.set_random_seed(recipe.seed)
    model = _build_model(recipe, source, validation, model, weights)
    identity = run_identity(recipe, source, validation, model, weights)
    is_rescaled = recipe.input_dtype == "uint8" and not isinstance(model, Distiller)
    trained = of_pixels(model) if is_rescaled else model
    epochs, steps_per_epoch = recipe.total_steps(source.size)
    recipe.compile(trained, steps=epochs * steps_per_epoch, steps_per_epoch=steps_per_epoch)
    log = LOGGER.info if verbose and devices.is_chief else lambda report: None
    result = _finished(workdir, identity, model)
    if result is not None:
        log(f"the run in {workdir} is already finished")
        return result
    with held(workdir, devices.is_chief):
        resume = Resume(workdir, checkpoint_every, run=identity)
        images = {"dtype": recipe.input_dtype, "max_corrupt": max_corrupt}
        drawn = {name: getattr(recipe, name) for name in ("seed", "augment", "mix", "repeats")}
        cropped = {"seed": recipe.seed, **(recipe.crops or {})}
        pipeline, drawn = (multi_crop_pipeline, cropped) if recipe.loss == CROPPED else (train_pipeline, drawn)
        prepared = find_encoder(model).preprocessing, recipe.batch_size
        data = devices.dataset(
            lambda shard: pipeline(source, *prepared, start_step=resume.step, shard=shard, **drawn, **images)
        )
        measured = validation and devices.dataset(
            lambda shard: eval_pipeline(validation, *prepared, shard=shard, **images)
        )
        told = epochs if verbose and devices.is_chief else None
        if recipe.ema_momentum is not None and devices.workers > 1 and devices.name == "model_parallel":
            raise ValueError(
                "ema_momentum must be None with model_parallel in several processes, as Keras swaps averages in one "
                f"process only; got {recipe.ema_momentum} (use data_parallel)"
            )
        callbacks = [progress.Progress(recipe.batch_size, steps_per_epoch, told, validation is not None, resume.step)]
        if recipe.ema_momentum is not None:
            callbacks.insert(0, keras.callbacks.SwapEMAWeights(swap_on_epoch=True))
        if devices.is_chief:
            callbacks.append(progress.Tables(workdir, resume, steps_per_epoch))
            # On JAX, a single process must not compute with arrays of all, as TensorBoard does with the learning rate.
            if importlib.util.find_spec("tensorboard") and (devices.workers == 1 or devices.strategy is not None):
                callbacks.append(keras.callbacks.TensorBoard(workdir / "logs", write_graph=False))
            write_text(workdir / "recipe.json", json.dumps(recipe.to_dict(), indent=2))
        if validation is not None:
            callbacks.append(progress.BestModel(workdir / "best.keras", student_of(model)))
        size = " x ".join(map(str, find_encoder(model).config.image_size or ("any",)))
        log(
            f"{epochs * steps_per_epoch:,} steps of {recipe.batch_size} images, "
            f"{epochs} x {source.size:,} images of {size} pixels"
            + (f"; resumes from the checkpoint of step {resume.step}" if resume.step else "")
        )
        try:
            history = trained.fit(
                data,
                epochs=epochs,
                steps_per_epoch=steps_per_epoch,
                validation_data=measured,
                shuffle=False,  # the pipeline shuffles; Keras can only shuffle arrays, and would warn
                callbacks=[*callbacks, resume],
                verbose=verbose if devices.is_chief else 0,
            ).history
        except tf.errors.OpError as error:
            raise data_error(error) or error from None
        history = {name: [progress.shortest(value) for value in values] for name, values in history.items()}
        result = TrainResult(student_of(model), history, history.get("val_accuracy", [None])[-1])
        save_model(result.model, workdir / "model.keras")
        if devices.is_chief:
            log(_report(result, progress.history_rows(history, steps_per_epoch), recipe, identity, workdir))
        return result


def _open_images(recipe, source, validation):
    """Return the training and the validation images as sources; for None, those of the recipe."""
    if validation is not None and recipe.loss == CROPPED:
        raise ValueError(f"validation must be None with loss={CROPPED!r}, which measures no accuracy")
    if source is None:
        if recipe.dataset is None:
            raise ValueError(f"source must be given: recipe {recipe.name!r} has no images of its own")
        source, held_out = DATASETS[recipe.dataset]()
        validation = held_out if validation is None and recipe.loss != CROPPED else validation
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


def _build_model(recipe, source, validation=None, model=None, weights=None):
    """Return the model to train, with the class names of `source` as its labels.

    A recipe whose loss uses no labels gets its model around the model, unless `model` is built. The classes are not
    checked for it.

    Args:
        recipe: `Recipe`. A model that is built here uses the recipe's dtype, rates and image size.
        source, validation: `ImageSource`; the model gets the classes of `source`.
        model, weights: as in `keras_vit.train`.

    Raises:
        TypeError: if the model does not contain exactly one model of this package.
        ValueError: if the classes of model, source and validation differ, or a built model is given with weights.
    """
    if not isinstance(model, Model):
        model = _create(recipe, source.class_names, model, weights)
    elif weights is not None:
        raise ValueError("weights must be None with a built model: load them first with keras_vit.load_weights")
    encoder = find_encoder(model)
    if encoder is None:
        raise TypeError(f"model must be or contain one model of keras_vit; {model.name!r} has none or several")
    if isinstance(model, tuple(SELF_SUPERVISED.values())):
        return model
    outputs = model.output_shape[-1]
    if outputs != len(source.class_names):
        raise ValueError(
            "model must have one class per class of source; "
            f"got {outputs} classes in the model, {len(source.class_names)} in source"
        )
    if validation is not None and tuple(validation.class_names) != tuple(source.class_names):
        raise ValueError(
            "validation must have the classes of source; "
            f"got {_shortened(validation.class_names)} in validation, "
            f"{_shortened(source.class_names)} in source"
        )
    if encoder is student_of(model):
        encoder.labels = source.class_names
    return model


def _create(recipe, labels, model, weights):
    if isinstance(model, str):
        fixed = recipe.model_arguments(VARIANTS[variant_name("model", model)].config_class)
        built = create_model(model, weights=weights, classes=len(labels), **fixed)
    else:
        config = recipe.model if model is None else model
        if config is None:
            raise ValueError(f"model must be given: recipe {recipe.name!r} does not define one")
        if not isinstance(config, ImageConfig):
            raise TypeError(
                f"model must be a model of keras_vit, a config, a name or None; got {type(model).__name__} "
                "(wrap other Keras layers in keras_vit.Model(inputs, outputs))"
            )
        built = build_model(recipe.configure(config.replace(classes=len(labels))))
        if weights is not None:
            load_weights(built, weights)
    built.labels = labels
    if recipe.loss not in SELF_SUPERVISED:
        return built
    built = resize(built, None) if recipe.loss == CROPPED and hasattr(built.config, "table_grid") else built
    return SELF_SUPERVISED[recipe.loss](built, **(recipe.pretraining or {}))


def _shortened(names):
    return list(names) if len(names) <= 8 else f"{len(names)} classes from {names[0]!r} to {names[-1]!r}"


def _finished(workdir, identity, model):
    """Return the result of a finished run in `workdir`, with its weights in the model; None otherwise."""
    path = workdir / "history.json"
    if not path.exists():
        return None
    with _named(path, path):
        report = json.loads(path.read_text(encoding="utf-8"))
        saved_identity, history, accuracy = (report[name] for name in ("run", "history", "accuracy"))
    check_same_run(workdir, saved_identity, identity)
    with _named(workdir / "model.keras", path):
        saved = keras.models.load_model(workdir / "model.keras", compile=False)
    model = student_of(model)
    own = [weight for weight in model.weights if not weight.name.startswith("lora_")]  # merged in the file
    for variable, value in zip(own, saved.weights, strict=True):
        variable.assign(value_of(value))
    restart_lora(model)
    find_encoder(model).labels = find_encoder(saved).labels
    return TrainResult(model, history, accuracy)


@contextlib.contextmanager
def _named(path, report):
    """Raise an error that names an unreadable file of a finished run and says how to write it again."""
    try:
        yield
    except PermissionError:  # its message names the file, which may be intact
        raise
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{path} must be the file that a finished run wrote; got {type(error).__name__}: {error}: "
            f"delete {report}, and the same command writes the files of the result again from the last checkpoint"
        ) from error


def _report(result, rows, recipe, identity, workdir):
    """Write the other files of a finished run, `history.json` last; return a summary."""
    has_curves = progress.draw_curves(rows, workdir / "curves.png")
    values = {"recipe": recipe.to_dict(), "accuracy": result.accuracy, "history": result.history, "run": identity}
    write_text(workdir / "history.json", json.dumps(values, indent=2))
    note = "" if has_curves else " (no curves.png: pip install matplotlib)"
    return f"{progress.summary(rows)}\nSaved in {workdir}{note}"
