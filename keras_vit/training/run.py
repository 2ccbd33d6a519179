"""train: a recipe and pictures in, a trained model in a folder out."""

import dataclasses
import json
import os
import pathlib

import keras

from keras_vit import checks
from keras_vit.data import eval_pipeline, train_pipeline
from keras_vit.models import VisionTransformer
from keras_vit.models.base import ImageModel
from keras_vit.training.recipe import DATASETS, Recipe
from keras_vit.training.recipes import RECIPES


@dataclasses.dataclass(frozen=True)
class TrainResult:
    """What `train` returns.

    Attributes:
        model: the trained model, as saved in `workdir/model.keras`.
        history: dict from metric name to one float per epoch.
        accuracy: share of the validation pictures that the trained model names rightly, in [0, 1]; None
            without any.
    """

    model: keras.Model
    history: dict
    accuracy: float | None


def train(recipe, source, workdir, *, model=None, validation=None, verbose=1):
    """Trains a model by a recipe and writes `workdir/model.keras` and `workdir/history.json`.

    The random seed of Keras, NumPy and Python is set to the recipe's. Files of an earlier run in `workdir`
    are replaced, each in one piece, once the training is done.

    Args:
        recipe: name in `keras_vit.training.RECIPES`, or a `Recipe`.
        source: `ImageSource` of the training pictures; None takes the recipe's own pictures.
        workdir: folder for the results; it is made if absent.
        model: classifier of this package to train, with one class per class of `source`; None builds the
            recipe's own model with that many classes. Its `labels` become the class names of `source`.
        validation: `ImageSource` to measure the accuracy on after every epoch; None takes the held-out part
            of the recipe's own pictures, and measures nothing with a source of your own.
        verbose: of `model.fit`: 1 draws a progress bar, 2 prints a line per epoch, 0 is silent.

    Returns:
        A `TrainResult`.

    Raises:
        TypeError: if the model is none of this package.
        ValueError: on an unknown recipe, a recipe without what was left None, or a model, source and
            validation whose classes differ.
    """
    recipe = _find_recipe(recipe)
    source, validation = _find_sources(recipe, source, validation)
    keras.utils.set_random_seed(recipe.seed)
    model = _own_model(recipe, source) if model is None else model
    _check_classes(model, source, validation)
    epochs, steps_per_epoch = _count_steps(recipe, source)
    recipe.compile(model, steps=epochs * steps_per_epoch)
    model.labels = source.class_names

    workdir = pathlib.Path(workdir)
    workdir.mkdir(parents=True, exist_ok=True)
    measured = None
    if validation is not None:
        measured = eval_pipeline(validation, model.preprocessing, recipe.batch_size)
    history = model.fit(
        train_pipeline(
            source, model.preprocessing, recipe.batch_size, seed=recipe.seed, augment=recipe.augment
        ),
        epochs=epochs,
        steps_per_epoch=steps_per_epoch,
        validation_data=measured,
        shuffle=False,  # the pipeline shuffles; Keras's own shuffling is for arrays, and it warns
        verbose=verbose,
    ).history
    history = {name: [float(value) for value in values] for name, values in history.items()}
    accuracy = history["val_accuracy"][-1] if measured is not None else None

    _write(workdir / "model.keras", model.save)
    report = {"recipe": recipe.to_dict(), "accuracy": accuracy, "history": history}
    _write(
        workdir / "history.json", lambda path: path.write_text(json.dumps(report, indent=2), encoding="utf-8")
    )
    return TrainResult(model, history, accuracy)


def _find_recipe(recipe):
    if isinstance(recipe, Recipe):
        return recipe
    return RECIPES[checks.check_choice("recipe", recipe, RECIPES)]


def _find_sources(recipe, source, validation):
    if source is not None:
        return source, validation
    if recipe.dataset is None:
        raise ValueError(f"source must be given: recipe {recipe.name!r} has no pictures of its own")
    own, held_out = DATASETS[recipe.dataset]()
    return own, held_out if validation is None else validation


def _own_model(recipe, source):
    if recipe.model is None:
        raise ValueError(f"model must be given: recipe {recipe.name!r} has none of its own")
    return VisionTransformer(recipe.model.replace(classes=len(source.class_names), **recipe.regularisation))


def _check_classes(model, source, validation):
    if not isinstance(model, ImageModel):
        raise TypeError(f"model must be a model of keras_vit or None; got {type(model).__name__}")
    if model.config.classes != len(source.class_names):
        raise ValueError(
            "model must have one class per class of source; "
            f"got {model.config.classes} classes in the model, {len(source.class_names)} in source"
        )
    if validation is not None and tuple(validation.class_names) != tuple(source.class_names):
        raise ValueError(
            "validation must have the classes of source; "
            f"got {_shortened(validation.class_names)} in validation, "
            f"{_shortened(source.class_names)} in source"
        )


def _count_steps(recipe, source):
    """Returns epochs and steps per epoch; a recipe that counts steps is one epoch long."""
    if recipe.steps is not None:
        return 1, recipe.steps
    if source.size < recipe.batch_size:
        raise ValueError(
            "batch_size must not exceed the number of pictures; "
            f"got batch_size={recipe.batch_size}, {source.size} pictures "
            "(recipe.replace(batch_size=...) changes it)"
        )
    return recipe.epochs, source.size // recipe.batch_size


def _shortened(names):
    return list(names) if len(names) <= 8 else f"{len(names)} classes from {names[0]!r} to {names[-1]!r}"


def _write(path, write):
    """Calls `write` with a temporary path of the same suffix, then renames: `path` is never half a file."""
    partial = path.with_name(f"{path.stem}.partial-{os.getpid()}{path.suffix}")
    try:
        write(partial)
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
