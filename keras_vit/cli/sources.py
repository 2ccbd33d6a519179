"""From the arguments of a command to labelled images."""

import pathlib
import sys

import keras_vit

_KINDS = ("folder", "tfds", "tfrecord", "arrays")
ANY_KIND = "--folder, --tfds, --tfrecord or --arrays"
_KEYS = ("image_key", "label_key")  # both kinds have their own defaults
_BELONGS_TO = {
    "split": ("tfds",),
    "data_dir": ("tfds",),
    "class_names": ("tfrecord", "arrays"),
    "label_offset": ("tfrecord",),
    **dict.fromkeys(_KEYS, ("tfds", "tfrecord")),
}


def open_source(args):
    """Return the `ImageSource` that the arguments name, None if they name none; of arrays the test images."""
    kind = _kind(args)
    return None if kind is None else _open(args, kind, "test" if kind == "arrays" else _where(args, kind))


def check_sources(args):
    """Raise on arguments of `train` and `probe` that do not belong together; opens nothing."""
    kind = _kind(args)
    for name in ("validation", "hold_out"):
        if kind is None and getattr(args, name) is not None:
            raise ValueError(f"{_option(name)} needs images to learn from: {ANY_KIND}")
    if args.validation is not None and args.hold_out is not None:
        raise ValueError("--validation and --hold-out are two ways to say the same: give one of them")
    if args.validation is not None and kind == "arrays":
        raise ValueError("--validation must be left out with --arrays: the file's x_test and y_test are measured on")


def open_sources(args, seed):
    """Return the `ImageSource` to learn from and the one to measure on, each None if the arguments name none.

    Args:
        args: parsed arguments that `check_sources` has checked.
        seed: which images `--hold-out` draws.
    """
    kind = _kind(args)
    if kind is None:
        return None, None
    source = _open(args, kind, "train" if kind == "arrays" else _where(args, kind))
    if args.hold_out is not None:
        return _split(source, args.hold_out, seed)
    if kind == "arrays":
        return source, _open(args, kind, "test") if "test" in keras_vit.data.npz.parts_of(args.arrays) else None
    return source, None if args.validation is None else _open(args, kind, args.validation)


def _split(source, hold_out, seed):
    if not 0 < round(hold_out * source.size) < source.size:
        raise ValueError(
            f"--hold-out must leave both parts at least one image; got --hold-out={hold_out:g} of {source.size} images"
        )
    rest, held_out = source.split(hold_out, seed=seed)
    drawn = "drawn from all" if source.labels is None else "of every class its share"
    print(f"{rest.size:,} images to learn from, {held_out.size:,} held out, {drawn}", file=sys.stderr)
    return rest, held_out


def _where(args, kind):
    return args.split if kind == "tfds" else getattr(args, kind)


def _kind(args):
    kind = next((kind for kind in _KINDS if getattr(args, kind) is not None), None)
    for name, owners in _BELONGS_TO.items():
        if getattr(args, name) is not None and kind not in owners:
            raise ValueError(f"{_option(name)} belongs to {' and '.join(map(_option, owners))}")
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
