"""Arguments that several verbs of `keras-vit` share. Standard library only, as in parser.py."""

from . import argument_types


def add_model(verb, required=True):
    """Add the arguments for a model, and for changes to it and to the preparation of its images."""
    verb.add_argument(
        "--model", required=required, metavar="MODEL", help="name from keras-vit list, or path of a .keras file"
    )
    add_weights(verb)
    add_architecture(verb)
    images = verb.add_argument_group("preparation of images (default: as the weights were trained)")
    images.add_argument(
        "--resize",
        type=argument_types.size,
        metavar="N",
        help="resize the shorter side to N pixels, then crop the centre; HEIGHTxWIDTH resizes to exactly this size",
    )
    images.add_argument(
        "--crop", type=argument_types.size, metavar="N", help="side of the centre crop (default: the model's size)"
    )
    images.add_argument(
        "--interpolation", metavar="NAME", help="bilinear, bilinear_antialias, bicubic, area or nearest"
    )
    images.add_argument(
        "--mean", type=argument_types.numbers, metavar="X", help="subtracted from values in [0, 1]: 1 or 3 numbers"
    )
    images.add_argument("--std", type=argument_types.numbers, metavar="X", help="divides the result: 1 or 3 numbers")


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
        help="side of the model's images in pixels, or HEIGHTxWIDTH (default: the .keras file's, else 224)",
    )
    model.add_argument("--classes", type=int, metavar="N", help="number of classes (default: those of the weights)")
    model.add_argument("--gelu", metavar="NAME", help="tanh or erf (default: as the weights were trained)")
    model.add_argument("--epsilon", type=float, metavar="X", help="of all LayerNorms (default: as for --gelu)")


def add_images(verb, title="images", required=True):
    """Add the arguments for labelled images; sources.py checks their combinations."""
    group = verb.add_argument_group(title)
    kinds = group.add_mutually_exclusive_group(required=required)
    kinds.add_argument("--folder", metavar="DIR", help="folder of class folders")
    kinds.add_argument("--tfds", metavar="NAME", help="data set of TensorFlow Datasets, with --split")
    kinds.add_argument("--tfrecord", metavar="PATTERN", help="TFRecord files, such as 'data/train-*'")
    kinds.add_argument("--arrays", metavar="FILE", help=".npz file with x_train, y_train, x_test and y_test")
    group.add_argument("--split", metavar="SPLIT", help="for --tfds: split, such as 'train[:80%%]'")
    group.add_argument("--data-dir", metavar="DIR", help="for --tfds: folder of its data sets")
    group.add_argument("--class-names", metavar="FILE", help="for --tfrecord, --arrays: text file, one class per line")
    group.add_argument("--label-offset", type=int, metavar="N", help="for --tfrecord: label of the first class")
    group.add_argument("--image-key", metavar="NAME", help="for --tfds and --tfrecord: feature of the image")
    group.add_argument("--label-key", metavar="NAME", help="for --tfds and --tfrecord: feature of the label")
    return group


def add_measured(group):
    """Add the arguments for the images to measure on; --arrays contains its own."""
    group.add_argument(
        "--validation", metavar="WHERE", help="images to measure on: a DIR, SPLIT or PATTERN, as for training images"
    )
    group.add_argument(
        "--hold-out",
        type=argument_types.share,
        metavar="SHARE",
        help="measure on this share of the training images; stratified by class for --folder and --arrays",
    )
