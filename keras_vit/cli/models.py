"""The model of a command: named or saved, with the changes that the arguments request."""

import contextlib
import os
import warnings

import keras

import keras_vit
from keras_vit import checks
from keras_vit.checkpoints.description import describe
from keras_vit.checkpoints.locate import fetch, locate
from keras_vit.checkpoints.readers import open_checkpoint
from keras_vit.models.base import ImageModel, described
from keras_vit.zoo import variant_name

_SAVED = ".keras"
_ARCHITECTURE = ("image_size", "classes", "gelu", "epsilon")
_IMAGES = ("resize", "crop", "interpolation", "mean", "std")
_DEFAULT_SIZE = 224


def open_model(args):
    """Build the model of `--model` and `--weights`; the load report goes to standard error."""
    _check_model(args)
    if not args.model.endswith(_SAVED) and args.weights is None:
        raise ValueError(
            f"--weights must be given with --model {args.model}: a file, or a name from keras-vit list --weights"
        )
    model = build_model(args)
    if any(getattr(args, name) is not None for name in _IMAGES):
        is_assumed = model.preprocessing_source == "assumed" and None in (args.mean, args.std)
        model.preprocessing = change_preprocessing(model.preprocessing, model.config.image_size, args)
        if is_assumed:  # mean and std are still assumed
            model.assume_preprocessing()
    return model


def check_without_model(args):
    """Raise a `ValueError` if an argument changes a model but `--model` is missing."""
    for name in ("weights", *_ARCHITECTURE, *_IMAGES):
        if getattr(args, name) is not None:
            raise ValueError(f"--{name.replace('_', '-')} requires --model")


def build_model(args):
    """Return the model with its saved weights, those of `--weights`, or random weights."""
    changes = {name: getattr(args, name) for name in _ARCHITECTURE if getattr(args, name) is not None}
    _check_model(args)
    if args.model.endswith(_SAVED):
        return _saved_model(args, changes)
    if args.weights is not None:
        # Use the classes of the file's head; a file without a head leaves the default.
        classes = _classes_of(args.weights, args.model, changes.get("image_size", _DEFAULT_SIZE))
        changes = {**({"classes": classes} if classes else {}), **changes}
    return keras_vit.create_model(args.model, weights=args.weights, **changes)


def change_preprocessing(preprocessing, image_size, args):
    """Return the `Preprocessing` with the changes of `--resize`, `--crop` and so on.

    Args:
        preprocessing: of the model.
        image_size: (height, width) of the model, which the result must have.
        args: parsed arguments.

    Raises:
        ValueError: if the result has another size, or a value is out of range.
    """
    changes = {}
    if args.resize is not None:
        is_exact = args.crop is None and args.resize == image_size
        changes = {"size": args.resize, "crop": None if is_exact else args.crop or image_size}
    elif args.crop is not None:
        changes = {"crop": args.crop}
    if args.interpolation is not None:
        changes["interpolation"] = args.interpolation
    for name in ("mean", "std"):
        if getattr(args, name) is not None:
            values = getattr(args, name)
            changes[name] = values * preprocessing.channels if len(values) == 1 else values
    changed = preprocessing.replace(**changes)
    if changed.image_size != image_size:
        raise ValueError(
            f"--crop must be the model's image size {_sides(image_size)}; got {_sides(changed.image_size)} "
            "(change the model's size with --image-size)"
        )
    return changed


def check_zoo_name(expectation, name):
    """Return the zoo's name of a model; raise an error with a similar name, or with all names, if there is none.

    Args:
        expectation: beginning of the message, such as `--model must be`.
        name: the name of the model, or of its constructor.
    """
    names = keras_vit.list_models()
    with contextlib.suppress(ValueError):
        return variant_name("model", name)
    near = checks.suggestion(name, names)
    known = "a name that keras-vit list shows" if near else f"one of {', '.join(names)}"
    raise ValueError(f"{expectation} {known}; got {name!r}{near}")


def _check_model(args):
    option = "MODEL" if args.verb == "info" else "--model"
    if not args.model.endswith(_SAVED):
        args.model = check_zoo_name(f"{option} must be a {_SAVED} file or", args.model)
    elif not os.path.exists(args.model):
        raise FileNotFoundError(f"{option}: file {args.model} does not exist")


def _saved_model(args, changes):
    if args.weights is not None:
        raise ValueError(f"--weights must be omitted with --model {args.model}: the file contains its weights")
    describe(open_checkpoint(args.model))  # raises a clear error on a damaged file
    model = keras.models.load_model(args.model, compile=False)
    if not isinstance(model, ImageModel):
        raise TypeError(f"--model must be a model of keras_vit; {args.model} contains a {described(model)}")
    if not changes:
        return model
    config, description = model.config.replace(**changes), model.get_config()
    description["config"] = config.to_dict()
    description["preprocessing"] = model.preprocessing.at(config.image_size).to_dict()
    if config.classes != model.config.classes:
        description["labels"] = None
    changed = type(model).from_config(description)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*the file states")  # the user has set --gelu or --epsilon
        keras_vit.load_weights(changed, args.model)
    return changed


def _classes_of(weights, model, image_size):
    """Return the number of classes of a file's head, None without one; download the file if necessary."""
    return describe(open_checkpoint(fetch(locate(weights, model, image_size)))).classes


def _sides(size):
    return f"{size[0]} x {size[1]}"
