"""The model of a command: named or in a file, with the changes that the arguments request."""

import warnings

import keras_vit
from keras_vit.checkpoints.foreign_names import find_foreign
from keras_vit.checkpoints.hub import PREFIX
from keras_vit.checkpoints.load import load_whole
from keras_vit.checkpoints.locate import locate
from keras_vit.variants import VARIANTS
from keras_vit.zoo import variant_name

ARCHITECTURE = ("image_size", "classes", "gelu", "epsilon")
_IMAGES = ("resize", "crop", "interpolation", "rounding", "mean", "std")


def open_model(args):
    """Build the model of `--model` and `--weights`; the load report goes to standard error."""
    model = build_model(args)
    if given(args, _IMAGES):
        is_assumed = model.preprocessing_source == "assumed" and None in (args.mean, args.std)
        model.preprocessing = change_preprocessing(model.preprocessing, args)
        if is_assumed:  # mean and std are still assumed
            model.assume_preprocessing()
    return model


def given(args, names):
    """Return the arguments among `names` that are given, by name."""
    return {name: value for name in names if (value := vars(args).get(name)) is not None}


def check_without_model(args, needed="--model"):
    """Raise a `ValueError` if an argument changes a model but the arguments `needed` for this are missing."""
    for name in given(args, ("weights", *ARCHITECTURE, *_IMAGES)):
        raise ValueError(f"--{name.replace('_', '-')} requires {needed}")


def find_source(args):
    """Return the `Located` of a `--model` that is a file, a folder or hf://org/repo; None for a name.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if `--weights` is given, too.
    """
    try:
        found = None if args.model in VARIANTS else locate(args.model)
    except FileNotFoundError:  # another of our names, or a mistake that `variant_name` explains
        return None
    if found is None or (found.foreign is not None and not args.model.startswith(PREFIX)):
        return None
    if found.path is not None and not found.path.exists():
        raise FileNotFoundError(f"{_option(args)}: file {args.model} does not exist")
    if args.weights is not None:
        raise ValueError(f"--weights must be omitted with {_option(args)} {args.model}, which contains its weights")
    return found


def build_model(args, needs_weights=True, **changes):
    """Return the model of `--model` as `keras_vit.load` does, or the named one with `--weights` or random weights.

    Args:
        args: parsed arguments.
        needs_weights: False gives a name without `--weights` random weights.
        **changes: fields of the config to change in addition to those in `args`.
    """
    changes, found = {**given(args, ARCHITECTURE), **changes}, find_source(args)
    if found is not None and args.model.endswith(".keras"):
        return _changed(load_whole(found.path, {}, compile=False), found.path, changes)
    if found is not None or (needs_weights and args.weights is None and find_foreign(args.model)):
        return keras_vit.load(args.model, **changes)
    try:
        variant_name(_option(args), args.model)
    except ValueError as error:
        raise ValueError(f"{error}; or a file, a folder or hf://org/repo") from error
    if args.weights is None and needs_weights:
        raise ValueError(f"--weights must be given with --model {args.model}: a file, or a name of list --weights")
    return keras_vit.create_model(args.model, weights=args.weights, **changes)


def _option(args):
    option = {"info": "MODEL", "pretrain": "--from"}.get(args.verb, "--model")
    return "--published" if getattr(args, "published", None) else option


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


def _changed(model, path, changes):
    """Return the model of a `.keras` file with other values of the config, or itself."""
    if not changes:
        return model
    if isinstance(model, keras_vit.TaskModel):
        name, value = next(iter(changes.items()))
        raise ValueError(f"--{name.replace('_', '-')} must be omitted with the task model {path}; got {value}")
    config, description = model.config.replace(**changes), model.get_config()
    description["config"] = config.to_dict()
    description["preprocessing"] = model.preprocessing.at(config.fixed_size or model.preprocessing.image_size).to_dict()
    if config.classes != model.config.classes:
        description["labels"] = None
    if changes.get("include_top") is False:
        description["layer_states"] = {}  # an encoder to train: nothing is frozen
    changed = type(model).from_config(description)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*the file states")  # the user has set --gelu or --epsilon
        keras_vit.load_weights(changed, path)
    return changed
