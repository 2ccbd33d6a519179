"""`keras-vit train` and `keras-vit export`: folders out."""

import contextlib
import json
import pathlib
import sys

import keras

import keras_vit
from keras_vit import checks
from keras_vit.cli.models import open_model

_RECIPE_CHANGES = ("epochs", "batch_size", "learning_rate", "weight_decay", "seed")


def train(args):
    """Trains by a recipe, or shows it."""
    recipes = keras_vit.training.RECIPES
    recipe = recipes[checks.check_choice("--recipe", args.recipe, recipes)]
    changes = {name: getattr(args, name) for name in _RECIPE_CHANGES if getattr(args, name) is not None}
    recipe = recipe.replace(**changes)
    if args.show:
        print(json.dumps(recipe.to_dict(), indent=2))
        return
    if args.workdir is None:
        raise ValueError("--workdir must be given, or --show to see the recipe")
    with contextlib.redirect_stdout(sys.stderr):
        result = keras_vit.train(recipe, None, args.workdir, verbose=1 if sys.stderr.isatty() else 2)
    if result.accuracy is not None:
        print(f"accuracy: {100 * result.accuracy:.1f} %")
    print(f"saved: {pathlib.Path(args.workdir) / 'model.keras'}")


def export(args):
    """Writes a SavedModel and prints its folder."""
    if keras.backend.backend() != "tensorflow":
        raise ValueError(f"export needs KERAS_BACKEND=tensorflow; got {keras.backend.backend()!r}")
    model = open_model(args)
    with contextlib.redirect_stdout(sys.stderr):
        folder = keras_vit.export(model, args.output, version=args.version, top=args.top)
    print(folder)
