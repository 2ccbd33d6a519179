"""The labelled images of a command."""

import pathlib
import sys

import keras_vit

_KINDS = ("folder", "tfds", "tfrecord", "arrays")
ANY_KIND = "--folder, --tfds, --tfrecord or --arrays"
_KEYS = ("image_key", "label_key")  # the defaults depend on the kind
_BELONGS_TO = {
    "split": ("tfds",),
    "data_dir": ("tfds",),
    "class_names": ("tfrecord", "arrays"),
    "label_offset": ("tfrecord",),
    **dict.fromkeys(_KEYS, ("tfds", "tfrecord")),
}


def open_source(args):
    """Return the `ImageSource` of the arguments, None if there is none; for arrays the test images."""
    kind = _kind(args)
    return None if kind is None else _open(args, kind, "test" if kind == "arrays" else _where(args, kind))


def check_sources(args):
    """Raise on contradicting arguments of `train` and `probe`, without opening files."""
    kind = _kind(args)
    for name in ("validation", "hold_out"):
        if kind is None and getattr(args, name) is not None:
            raise ValueError(f"{_option(name)} requires training images: {ANY_KIND}")
    if args.validation is not None and args.hold_out is not None:
        raise ValueError("at most one of --validation and --hold-out may be given; got both")
    if args.validation is not None and kind == "arrays":
        raise ValueError("--validation must be omitted with --arrays: x_test and y_test of the file are used")


def open_sources(args, seed):
    """Return the `ImageSource` to train on and the one to measure on, each None if there is none.

    Args:
        args: parsed arguments, checked by `check_sources`.
        seed: of the draw of `--hold-out`.
    """
    kind = _kind(args)
    if kind is None:
        return None, None
    source = _open(args, kind, "train" if kind == "arrays" else _where(args, kind))
    if args.hold_out is not None:
        return _split(source, args.hold_out, seed)
    if kind == "arrays":
        return source, _open(args, kind, "test") if "test" in keras_vit.data.in_memory.parts_of(args.arrays) else None
    return source, None if args.validation is None else _open(args, kind, args.validation)


def _split(source, hold_out, seed):
    if not 0 < round(hold_out * source.size) < source.size:
        raise ValueError(
            f"--hold-out must leave both parts at least one image; got --hold-out={hold_out:g} of {source.size} images"
        )
    rest, held_out = source.split(hold_out, seed=seed)
    drawn = "drawn from all" if source.labels is None else "stratified by class"
    print(f"{rest.size:,} training images, {held_out.size:,} held out, {drawn}", file=sys.stderr)
    return rest, held_out


def _where(args, kind):
    return args.split if kind == "tfds" else getattr(args, kind)


def _kind(args):
    kind = next((kind for kind in _KINDS if getattr(args, kind) is not None), None)
    for name, owners in _BELONGS_TO.items():
        if getattr(args, name) is not None and kind not in owners:
            raise ValueError(f"{_option(name)} requires {' or '.join(map(_option, owners))}")
    if kind == "tfds" and args.split is None:
        raise ValueError("--split must be given with --tfds, such as 'train' or 'train[:80%]'")
    return kind


def _open(args, kind, where):
    if kind == "folder":
        return keras_vit.data.from_directory(where)
    keys = {name: getattr(args, name) for name in _KEYS if getattr(args, name) is not None}
    if kind == "tfds":
        return keras_vit.data.from_tfds(args.tfds, where, data_dir=args.data_dir, **keys)
    names = None if args.class_names is None else _lines(args.class_names)
    if kind == "arrays":
        return keras_vit.data.from_npz(args.arrays, where, class_names=names)
    return keras_vit.data.from_tfrecord(where, class_names=names, label_offset=args.label_offset or 0, **keys)


def _lines(path):
    return [line.strip() for line in pathlib.Path(path).read_text(encoding="utf-8").splitlines() if line.strip()]


def _option(name):
    return "--" + name.replace("_", "-")
