"""Arguments that several verbs of `keras-vit` share. Standard library only, as parser.py."""

from . import argument_types


def add_model(verb, required=True):
    """Which model, and how it and its images differ from what its file says."""
    verb.add_argument(
        "--model", required=required, metavar="MODEL", help="name from keras-vit list, or path of a .keras file"
    )
    add_weights(verb)
    add_architecture(verb)
    images = verb.add_argument_group("how images are prepared (default: as the weights were trained)")
    images.add_argument(
        "--resize",
        type=argument_types.size,
        metavar="N",
        help="resize the shorter side to N pixels, then crop the middle; HEIGHTxWIDTH resizes to just that",
    )
    images.add_argument(
        "--crop", type=argument_types.size, metavar="N", help="side of the middle (default: the model's size)"
    )
    images.add_argument(
        "--interpolation", metavar="NAME", help="bilinear, bilinear_antialias, bicubic, area or nearest"
    )
    images.add_argument(
        "--mean", type=argument_types.numbers, metavar="X", help="subtracted from values in [0, 1]: 1 or 3 numbers"
    )
    images.add_argument("--std", type=argument_types.numbers, metavar="X", help="divides what is left: 1 or 3 numbers")


def add_weights(verb):
    verb.add_argument(
        "--weights",
        metavar="FILE",
        help=".npz, .safetensors, .weights.h5 or .keras file, a folder with config.json and "
        "model.safetensors, a published name (keras-vit list --weights) or hf://org/repo; "
        "not for a .keras model",
    )


def add_architecture(verb):
    model = verb.add_argument_group("changes to the model")
    model.add_argument(
        "--image-size",
        type=argument_types.size,
        metavar="N",
        help="side of its images in pixels, or HEIGHTxWIDTH (default: the .keras file's, else 224)",
    )
    model.add_argument("--classes", type=int, metavar="N", help="number of classes (default: those of the weights)")
    model.add_argument("--gelu", metavar="NAME", help="tanh or erf (default: what the weights were trained with)")
    model.add_argument("--epsilon", type=float, metavar="X", help="of every LayerNorm (default: as for --gelu)")


def add_images(verb, title="images", required=True):
    """Where images with labels are. What belongs together is checked in sources.py."""
    group = verb.add_argument_group(title)
    kinds = group.add_mutually_exclusive_group(required=required)
    kinds.add_argument("--folder", metavar="DIR", help="folder of class folders")
    kinds.add_argument("--tfds", metavar="NAME", help="data set of TensorFlow Datasets, with --split")
    kinds.add_argument("--tfrecord", metavar="PATTERN", help="TFRecord files, such as 'data/train-*'")
    kinds.add_argument("--arrays", metavar="FILE", help=".npz file with x_train, y_train, x_test and y_test")
    group.add_argument("--split", metavar="SPLIT", help="of --tfds, such as 'train[:80%%]'")
    group.add_argument("--data-dir", metavar="DIR", help="of --tfds: where its data sets are")
    group.add_argument("--class-names", metavar="FILE", help="of --tfrecord and --arrays: text file, a class per line")
    group.add_argument("--label-offset", type=int, metavar="N", help="of --tfrecord: label of the first class")
    group.add_argument("--image-key", metavar="NAME", help="of --tfds and --tfrecord: feature of the image")
    group.add_argument("--label-key", metavar="NAME", help="of --tfds and --tfrecord: feature of the label")
    return group


def add_measured(group):
    """Which images are measured on, where others are learned from; --arrays brings its own."""
    group.add_argument(
        "--validation", metavar="WHERE", help="images to measure on: a DIR, SPLIT or PATTERN, as those to learn from"
    )
    group.add_argument(
        "--hold-out",
        type=argument_types.share,
        metavar="SHARE",
        help="measure on this share of them instead, of --folder and --arrays of every class",
    )
