"""From the arguments of a command to labelled pictures."""

import pathlib

import keras_vit

_KINDS = ("folder", "tfds", "tfrecord")
_BELONGS_TO = {"split": "tfds", "data_dir": "tfds", "class_names": "tfrecord", "label_offset": "tfrecord"}


def open_source(args):
    """Returns the `ImageSource` that the arguments name, None if they name none."""
    kind = _kind(args)
    return None if kind is None else _open(args, kind, args.split if kind == "tfds" else getattr(args, kind))


def open_sources(args, seed):
    """Returns the `ImageSource` to learn from and the one to measure on, each None if the arguments name none.

    Args:
        args: parsed arguments.
        seed: which pictures `--hold-out` draws.
    """
    kind = _kind(args)
    for name in ("validation", "hold_out"):
        if kind is None and getattr(args, name) is not None:
            raise ValueError(f"{_option(name)} needs pictures to learn from: --folder, --tfds or --tfrecord")
    if args.validation is not None and args.hold_out is not None:
        raise ValueError("--validation and --hold-out are two ways to say the same: give one of them")
    source = open_source(args)
    if args.hold_out is not None:
        return source.split(args.hold_out, seed=seed)
    return source, None if args.validation is None else _open(args, kind, args.validation)


def _kind(args):
    kind = next((kind for kind in _KINDS if getattr(args, kind) is not None), None)
    for name, owner in _BELONGS_TO.items():
        if getattr(args, name) is not None and kind != owner:
            raise ValueError(f"{_option(name)} belongs to --{owner}")
    if kind == "tfds" and args.split is None:
        raise ValueError("--split must be given with --tfds, such as 'train' or 'train[:80%]'")
    return kind


def _open(args, kind, where):
    if kind == "folder":
        return keras_vit.data.from_folder(where)
    if kind == "tfds":
        return keras_vit.data.from_tfds(args.tfds, where, data_dir=args.data_dir)
    names = None if args.class_names is None else _lines(args.class_names)
    return keras_vit.data.from_tfrecord(where, class_names=names, label_offset=args.label_offset or 0)


def _lines(path):
    return [line.strip() for line in pathlib.Path(path).read_text(encoding="utf-8").splitlines() if line.strip()]


def _option(name):
    return "--" + name.replace("_", "-")
