"""`keras-vit train` and `keras-vit export`: folders out."""

import contextlib
import json
import pathlib
import sys

import keras

import keras_vit
from keras_vit import checks
from keras_vit.cli.models import open_model
from keras_vit.cli.recipes import open_recipe
from keras_vit.cli.sources import check_sources, open_sources

_OPTIONS = ("checkpoint_every", "max_corrupt")  # of keras_vit.train, which has their defaults


def train(args):
    """Trains by a recipe, or shows it."""
    recipe = open_recipe(args)
    check_sources(args)
    if args.model is not None:
        checks.check_choice("--model", args.model, keras_vit.list_models())
    if args.show:
        print(json.dumps(recipe.to_dict(), indent=2))
        return
    if args.workdir is None:
        raise ValueError("--workdir must be given, or --show to see the recipe")
    if args.model is None and recipe.model is None:
        raise ValueError(f"--model must be given: recipe {recipe.name!r} has none of its own")
    options = {name: getattr(args, name) for name in _OPTIONS if getattr(args, name) is not None}
    # Several workers must find each other before TensorFlow makes anything, such as a source.
    with _failures_in_one_line(), keras_vit.distribution(args.strategy) as devices:
        source, validation = open_sources(args, recipe.seed)
        if source is None and recipe.dataset is None:
            raise ValueError(
                f"--folder, --tfds or --tfrecord must be given: recipe {recipe.name!r} has no pictures of its own"
            )
        with contextlib.redirect_stdout(sys.stderr):
            result = keras_vit.train(
                recipe,
                source,
                args.workdir,
                model=args.model,
                weights=args.weights,
                validation=validation,
                strategy=devices,
                verbose=1 if sys.stderr.isatty() else 2,
                **options,
            )
    if result.accuracy is not None:
        print(f"accuracy: {100 * result.accuracy:.1f} %")
    print(f"saved: {pathlib.Path(args.workdir) / 'model.keras'}")


@contextlib.contextmanager
def _failures_in_one_line():
    """A full disk, a loss that is no number or an absent TPU is no fault of ours: no traceback."""
    training = keras_vit.training
    try:
        yield
    except (training.CheckpointError, training.NonFiniteError, training.MissingDevicesError) as error:
        raise ValueError(str(error)) from error


def export(args):
    """Writes a SavedModel and prints its folder."""
    if keras.backend.backend() != "tensorflow":
        raise ValueError(f"export needs KERAS_BACKEND=tensorflow; got {keras.backend.backend()!r}")
    model = open_model(args)
    with contextlib.redirect_stdout(sys.stderr):
        folder = keras_vit.export(model, args.output, version=args.version, top=args.top)
    print(folder)
