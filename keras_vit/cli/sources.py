"""The labelled images of a command."""

import pathlib
import sys

import keras_vit
from keras_vit import files
from keras_vit.cli.models import given

ANY_KIND = "--folder, --tfds, --tfrecord or --arrays"
_KINDS = ("folder", "tfds", "tfrecord", "arrays")
_KEYS = ("image_key", "label_key")  # the defaults depend on the kind
TASKS = ("annotations", "label_maps", "depths")  # answers of the images in --folder
# kind of model -> kind of answers that --annotations gives it
_ANNOTATIONS = {keras_vit.YOLOS: "boxes", keras_vit.ViTPose: "keypoints", keras_vit.EoMT: "instances"}
# argument -> the kinds of images that it applies to
_BELONGS_TO = {
    "split": ("tfds",),
    "data_dir": ("tfds",),
    "class_names": ("tfrecord", "arrays", "label_maps"),
    "label_offset": ("tfrecord", "label_maps"),
    "scale": ("depths",),
    "max_depth": ("depths",),
    "save": TASKS,
    "validation": ("folder", "tfds", "tfrecord"),
    "hold_out": (*_KINDS, *TASKS),
    **dict.fromkeys(_KEYS, ("tfds", "tfrecord")),
}


def open_source(args):
    """Return the `ImageSource` of the arguments; for arrays the test images."""
    return _open(args, kind_of(args), "test")


def open_sources(args, seed):
    """Return the `ImageSource` for training and the one for evaluation, each None if there is none.

    Args:
        args: parsed arguments.
        seed: seed of the random split of `--hold-out`.
    """
    kind = kind_of(args)
    if kind is None:
        return None, None
    source = _open(args, kind, "train")
    if args.hold_out is not None:
        return split(source, args.hold_out, seed)
    if kind == "arrays":
        has_test = "test" in keras_vit.data.local.parts_of(args.arrays)
        return source, _open(args, kind, "test") if has_test else None
    return source, None if args.validation is None else _open(args, kind, where=args.validation)


def kind_of(args):
    """Return the argument that selects the images, None without one; raise an error if others do not apply to it."""
    kind = next(iter(given(args, (*TASKS, *_KINDS))), None)
    for name in given(args, _BELONGS_TO):
        if kind not in _BELONGS_TO[name]:
            raise ValueError(
                f"{_option(name)} requires {' or '.join(map(_option, _BELONGS_TO[name]))}; "
                f"got {'no images' if kind is None else _option(kind)}"
            )
    if kind == "tfds" and args.split is None:
        raise ValueError("--split must be given with --tfds, such as 'train' or 'train[:80%]'")
    return kind


def split(source, hold_out, seed):
    """Return two sources, for training and evaluation, and print their sizes."""
    if not 0 < round(hold_out * source.size) < source.size:
        raise ValueError(f"--hold-out must leave each part an image; got {hold_out:g} of {source.size} images")
    rest, held_out = source.split(hold_out, seed=seed)
    drawn = "drawn regardless of class" if getattr(source, "labels", None) is None else "stratified by class"
    print(f"{rest.size:,} training images, {held_out.size:,} held out, {drawn}", file=sys.stderr)
    return rest, held_out


def _open(args, kind, part=None, where=None):
    """Return the images that the arguments describe: a `part` of the arrays, or the images at `where` if given."""
    where = where or (args.split if kind == "tfds" else getattr(args, kind))
    keys, names = given(args, _KEYS), _class_names(args)
    if kind == "folder":
        return keras_vit.data.from_directory(where)
    if kind == "tfds":
        return keras_vit.data.from_tfds(args.tfds, where, data_dir=args.data_dir, **keys)
    if kind == "arrays":
        return keras_vit.data.from_npz(where, part, class_names=names)
    return keras_vit.data.from_tfrecord(where, class_names=names, label_offset=args.label_offset or 0, **keys)


def open_task_source(args, kinds, labels=None):
    """Return the `TaskSource` of the images in `--folder` and of their answers.

    Args:
        args: parsed arguments.
        kinds: classes of the models that it is for.
        labels: names of the classes of the model, or None.
    """
    kind = kind_of(args)
    where = getattr(args, kind)
    if args.folder is None:
        raise ValueError(f"{_option(kind)} requires --folder, the folder of the images")
    if kind == "depths":
        return keras_vit.data.from_depth_maps(args.folder, where, 1.0 if args.scale is None else args.scale)
    if kind == "label_maps":
        names = _class_names(args) or labels
        if names is None:
            raise ValueError("--class-names must be given with --label-maps for a model without labels")
        first = args.label_offset
        classes = None if first is None else {first + n: n for n in range(len(names))}
        return keras_vit.data.from_label_maps(args.folder, where, names, classes=classes)
    content = next((content for of, content in _ANNOTATIONS.items() if of in kinds), None)
    if content is None:
        raise ValueError(f"--annotations requires a YOLOS, ViTPose or EoMT; got a {kinds[0].__name__}")
    if content == "instances" and pathlib.Path(where).with_suffix("").is_dir():
        content = "panoptic"
    return keras_vit.data.from_coco(args.folder, where, content)


def _class_names(args):
    if args.class_names is None:
        return None
    lines = pathlib.Path(files.check_regular(args.class_names)).read_text(encoding="utf-8").splitlines()
    return [line.strip() for line in lines if line.strip()]


def _option(name):
    return "--" + name.replace("_", "-")
