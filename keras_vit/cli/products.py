"""`keras-vit train`, `export` and `convert`."""

import contextlib
import json
import pathlib
import sys

import keras_vit
from keras_vit import files
from keras_vit.cli.failures import users_mistakes
from keras_vit.cli.models import build_model, check_zoo_name, open_model
from keras_vit.cli.recipes import open_recipe
from keras_vit.cli.sources import ANY_KIND, check_sources, open_sources

_OPTIONS = ("checkpoint_every", "max_corrupt")  # keras_vit.train defines their defaults
_EXPORT_OPTIONS = (
    "format",
    "version",
    "signatures",
    "top",
    "tokens",
    "on_error",
    "max_pixels",
    "jit_compile",
    "compute_dtype",
    "quantization",
    "calibration",
    "tolerance",
    "force",
)


def train(args):
    """Train by a recipe, or print the recipe."""
    recipe = open_recipe(args)
    check_sources(args)
    if args.model is not None:
        args.model = check_zoo_name("--model must be", args.model)
    if args.show:
        print(json.dumps(recipe.to_dict(), indent=2))
        return
    if args.workdir is None:
        raise ValueError("--workdir must be given, or --show to see the recipe")
    if args.model is None and recipe.model is None:
        raise ValueError(f"--model must be given: recipe {recipe.name!r} does not define one")
    options = {name: getattr(args, name) for name in _OPTIONS if getattr(args, name) is not None}
    # Several workers must connect before TensorFlow creates anything, such as a source.
    training = keras_vit.training
    failures = training.CheckpointError, training.NonFiniteError, training.MissingDevicesError
    with users_mistakes(*failures), _why_it_ended(), keras_vit.distribution(args.strategy) as devices:
        source, validation = open_sources(args, recipe.seed)
        if source is None and recipe.dataset is None:
            raise ValueError(f"{ANY_KIND} must be given: recipe {recipe.name!r} has no images of its own")
        with contextlib.redirect_stdout(sys.stderr):  # Keras's progress bars
            result = keras_vit.train(
                recipe,
                source,
                args.workdir,
                model=args.model,
                weights=args.weights,
                validation=validation,
                strategy=devices,
                **options,
            )
    if result.accuracy is not None:
        print(f"accuracy: {100 * result.accuracy:.1f} %")
    folder = pathlib.Path(args.workdir)
    print(f"saved: {folder / 'model.keras'}")
    if (folder / "best.keras").is_file():  # only with validation images
        print(f"best: {folder / 'best.keras'}")


def export(args):
    """Export a model for other programs and print its folder."""
    if args.no_check and args.check:
        raise ValueError("--no-check must be omitted with --check")
    model = open_model(args)
    options = {name: getattr(args, name) for name in _EXPORT_OPTIONS}
    with users_mistakes(keras_vit.serving.ExportError):
        folder = keras_vit.export(model, args.output, check=args.check or not args.no_check, **options)
    print(folder)


def convert(args):
    """Write a model's weights in the layout of another library and print the path."""
    if not args.model.endswith(".keras") and args.weights is None:
        raise ValueError(f"--weights must be given with --model {args.model}")
    model = build_model(args)
    if args.layout == "keras":
        _save(model, args.output)
    else:
        keras_vit.save_weights(model, args.output, layout=args.layout)
    print(args.output)


@contextlib.contextmanager
def _why_it_ended():
    """Print one line about a run that was interrupted and saved; the exception sets the exit code."""
    try:
        yield
    except (keras_vit.training.Preempted, keras_vit.training.Interrupted) as end:
        print(f"keras-vit: {end}", file=sys.stderr)
        raise


def _save(model, path):
    """Write `.keras` or `.weights.h5` atomically."""
    suffix = next((suffix for suffix in (".weights.h5", ".keras") if path.endswith(suffix)), None)
    if suffix is None:
        raise ValueError(f"--output must end in .keras or .weights.h5 for --layout keras; got {path!r}")
    files.replace_file(path, model.save if suffix == ".keras" else model.save_weights)
