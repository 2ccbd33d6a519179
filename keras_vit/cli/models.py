"""The model of a command: named or saved, with the changes that the arguments request."""

import os
import warnings

import keras

import keras_vit
from keras_vit.checkpoints.evidence import read_evidence
from keras_vit.checkpoints.readers import open_checkpoint
from keras_vit.models.base import ImageModel
from keras_vit.models.encoders import described
from keras_vit.zoo import variant_name

_SAVED = ".keras"
_ARCHITECTURE = ("image_size", "classes", "gelu", "epsilon")
_IMAGES = ("resize", "crop", "interpolation", "rounding", "mean", "std")


def open_model(args):
    """Build the model of `--model` and `--weights`; the load report goes to standard error."""
    model = build_model(args, needs_weights=True)
    if given(args, _IMAGES):
        is_assumed = model.preprocessing_source == "assumed" and None in (args.mean, args.std)
        model.preprocessing = change_preprocessing(model.preprocessing, args)
        if is_assumed:  # mean and std are still assumed
            model.assume_preprocessing()
    return model


def given(args, names):
    """Return the arguments among `names` that are given, by name."""
    return {name: value for name in names if (value := vars(args).get(name)) is not None}


def check_without_model(args):
    """Raise a `ValueError` if an argument changes a model but `--model` is missing."""
    for name in given(args, ("weights", *_ARCHITECTURE, *_IMAGES)):
        raise ValueError(f"--{name.replace('_', '-')} requires --model")


def build_model(args, needs_weights=False):
    """Return the model with its saved weights, those of `--weights`, or random weights."""
    changes = given(args, _ARCHITECTURE)
    option = "MODEL" if args.verb == "info" else "--model"
    if args.model.endswith(_SAVED):
        if not os.path.exists(args.model):
            raise FileNotFoundError(f"{option}: file {args.model} does not exist")
        if args.weights is not None:
            raise ValueError(f"--weights must be omitted with --model {args.model}: the file contains its weights")
        return _open_saved(args.model, changes)
    try:
        args.model = variant_name(option, args.model)
    except ValueError as error:
        raise ValueError(f"{error}; or a {_SAVED} file") from error
    if args.weights is None and needs_weights:
        raise ValueError(f"--weights must be given with --model {args.model}: a file, or a name of list --weights")
    return keras_vit.create_model(args.model, weights=args.weights, **changes)


def change_preprocessing(preprocessing, args):
    """Return the `Preprocessing` with the changes of `--resize`, `--crop` and so on.

    Args:
        preprocessing: `Preprocessing` of the model; the result must have the same image size.
        args: parsed arguments.

    Raises:
        ValueError: if the result has another size, or a value is out of range.
    """
    image_size = preprocessing.image_size
    changes = given(args, ("crop", "interpolation", "rounding", "mean", "std"))
    if args.resize is not None:
        is_exact = args.crop is None and args.resize == image_size
        changes |= {"size": args.resize, "crop": None if is_exact else args.crop or image_size, "pad": False}
    for name in {"mean", "std"} & changes.keys():
        if len(changes[name]) == 1:
            changes[name] *= preprocessing.channels
    changed = preprocessing.replace(**changes)
    if changed.image_size != image_size:
        expected, found = (f"{height} x {width}" for height, width in (image_size, changed.image_size))
        raise ValueError(f"--crop must be the model's image size {expected} (see --image-size); got {found}")
    return changed


def _open_saved(path, changes):
    read_evidence(open_checkpoint(path))  # raises a clear error on a damaged file
    model = keras.models.load_model(path, compile=False)
    if not isinstance(model, ImageModel):
        raise TypeError(f"--model must be a model of keras_vit; {path} contains a {described(model)}")
    if not changes:
        return model
    config, description = model.config.replace(**changes), model.get_config()
    description["config"] = config.to_dict()
    description["preprocessing"] = model.preprocessing.at(config.fixed_size or model.preprocessing.image_size).to_dict()
    if config.classes != model.config.classes:
        description["labels"] = None
    changed = type(model).from_config(description)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*the file states")  # the user has set --gelu or --epsilon
        keras_vit.load_weights(changed, path)
    return changed
