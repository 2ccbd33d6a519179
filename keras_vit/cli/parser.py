"""The arguments of `keras-vit` and their help. Standard library only, so that `--help` does not wait for Keras."""

import argparse
import contextlib
import difflib
import inspect
import pathlib
import re
import sys

FORMATS = ("saved_model", "onnx", "litert", "openvino")
LAYOUTS = ("official", "timm", "huggingface", "microsoft", "keras")
STRATEGIES = ("auto", "one", "mirrored", "multi_worker", "tpu", "data_parallel", "model_parallel")

_OPTION = re.compile(r"--?[A-Za-z][^ ]*")  # a word with a space, or -1, is a value
_NEAR = 0.75  # as in keras_vit.checks.suggestion
_SIZE = "side of the model's images in pixels, or HEIGHTxWIDTH"
_MODEL = "name from keras-vit list, or path of a .keras file"
_IMAGE = "JPEG, PNG, BMP, GIF or WebP file"


def parse(argv=None):
    """Return the parsed arguments (`argparse.Namespace`); exit with 2 and one line on an error.

    The docstrings of the functions below are the help of the commands.

    Args:
        argv: list of words, None for those of the process.
    """
    parser = _Parser(
        prog="keras-vit",
        description="Vision Transformers for Keras and TensorFlow.",
        epilog="example:\n  keras-vit predict cat.jpg --model ViT-Ti_16 --weights ViT-Ti_16.npz",
    )
    parser.add_argument("--version", action="version", version=f"keras-vit {_version()}")
    commands = parser.add_subparsers(dest="verb", metavar="COMMAND", required=True, parser_class=_CommandParser)
    for add_arguments in _COMMANDS:
        text, _, examples = inspect.cleandoc(add_arguments.__doc__ or "").partition("\n\n")
        summary = re.split(r"\.\s", text)[0].rstrip(".")
        name = add_arguments.__name__.removeprefix("_")
        add_arguments(commands.add_parser(name, help=summary, description=text, epilog=examples))
    return parser.parse_args(sys.argv[1:] if argv is None else list(argv))


def _list(command):
    """List the models, their published weights, or the recipes.

    examples:
      keras-vit list 'ViT-B*' --weights
      keras-vit list 'augreg/*' --recipes
    """
    add = command.add_argument
    add("pattern", nargs="?", default="*", metavar="PATTERN", help="such as 'ViT-*' (default: all)")
    add = command.add_mutually_exclusive_group().add_argument
    add("--weights", action="store_true", help="list the published files of each model instead")
    add("--recipes", action="store_true", help="list the recipes whose names match PATTERN instead")


def _info(command):
    """Show a model's architecture, parameters, preprocessing and labels, and how weights fit it.

    example:
      keras-vit info ViT-Ti_16 --weights ViT-Ti_16.npz --image-size 384
    """
    command.add_argument("model", metavar="MODEL", help=_MODEL)
    _add_weights(command)
    _add_architecture(command)


def _predict(command):
    """Classify images.

    examples:
      keras-vit predict cat.jpg --model ViT-Ti_16 --weights ViT-Ti_16.npz --top 3
      keras-vit predict cat.jpg --model model.keras --json
    """
    add = command.add_argument
    add("images", nargs="+", metavar="IMAGE", help=_IMAGE)
    _add_model(command)
    add("--top", type=int, default=5, metavar="K", help="classes per image (default: 5)")
    add("--json", action="store_true", help="print JSON")


def _evaluate(command):
    """Measure top-1 and top-5 accuracy on labelled images.
    The classes of the data, such as sub-folders, are matched to the model's labels by WordNet id, by name or by
    a leading index.

    examples:
      keras-vit evaluate --folder images --model ViT-Ti_16 --weights ViT-Ti_16.npz \\
          --resize 248 --crop 224 --interpolation bicubic
      keras-vit evaluate --folder val --model ViT-Ti_16 --weights ViT-Ti_16.npz --real-labels real.json --report
    """
    _add_images(command, "images")
    _add_model(command)
    add = command.add_argument
    add("--batch-size", type=int, default=32, metavar="N", help="images per batch (default: 32)")
    add("--report", action="store_true", help="also show calibration and the worst classes")
    imagenet = "the ReaL labels of ImageNet's validation images (ILSVRC2012_val_00000001.JPEG and so on)"
    add("--real-labels", metavar="FILE", help=f"real.json, {imagenet}")
    add("--json", action="store_true", help="print JSON")


def _probe(command):
    """Measure the few-shot accuracy of a model's features: ridge regression on a few images per class.
    Each seed draws different images; the output shows the mean and standard deviation over the seeds.

    example:
      keras-vit probe --arrays drawings.npz --model model.keras --shots 1,5,10 --layer block_00 --table shots.csv
    """
    _add_training_images(command, "training images")
    _add_model(command)
    add = command.add_argument
    per_class = "training images per class (default: 1,5,10,25)"
    add("--shots", type=_counts, default=(1, 5, 10, 25), metavar="N,N", help=per_class)
    add("--seeds", type=_count, default=3, metavar="N", help="number of draws, seeds from 0 (default: 3)")
    add("--layer", metavar="NAME", help="layer of the features, such as block_05 (default: the input of the head)")
    add("--l2", type=float, metavar="X", help="lambda of the regression (default: 1024)")
    add("--batch-size", type=int, default=32, metavar="N", help="images per batch (default: 32)")
    add("--table", metavar="FILE", help="also write every accuracy to a .csv file")
    add("--plot", metavar="FILE", help="draw accuracy over shots, such as .png (needs matplotlib)")
    add("--json", action="store_true", help="print JSON")


def _explain(command):
    """Draw a model's prediction and attention for an image on one sheet. Needs matplotlib.
    It shows the attention rollout (for a Swin, of its last stage) and the least uniform heads of one block.

    examples:
      keras-vit explain cat.jpg --model ViT-Ti_16 --weights ViT-Ti_16.npz -o cat.png
      keras-vit explain cat.jpg --model model.keras --layer block_00 --heads 2 -o cat.pdf
    """
    add = command.add_argument
    add("image", metavar="IMAGE", help=_IMAGE)
    _add_model(command)
    add("-o", "--output", required=True, metavar="FILE", help=".png, .jpg, .pdf or .svg; replaced if it exists")
    add("--top", type=_count, default=5, metavar="K", help="classes (default: 5)")
    add("--layer", default="-1", metavar="NAME", help="name or number of the block of the heads (default: the last)")
    add("--heads", type=_count, default=4, metavar="N", help="number of heads to show (default: 4)")


def _train(command):
    """Train a model by a recipe. The folder gets model.keras, history.json and, with validation images,
    best.keras, the model of the best epoch. After an interruption the same command resumes the run.

    examples:
      keras-vit train --recipe quickstart --workdir digits --epochs 5
      keras-vit train --recipe quickstart --folder images --hold-out 0.5 --batch-size 2 --epochs 1 --workdir cats
      keras-vit train --recipe vit/finetune/pets --steps 1000 --set 'augment=inception_crop(0.3), flip' --show
    """
    add = command.add_argument
    add("--recipe", required=True, metavar="NAME", help="name of a recipe; keras-vit list --recipes shows them")
    add("--workdir", metavar="DIR", help="folder for the results; created if absent")
    add("--show", action="store_true", help="print the recipe as JSON without training")
    add("--model", metavar="NAME", help="name from keras-vit list (default: the recipe's own model)")
    _add_weights(command)
    devices = f"devices: {', '.join(STRATEGIES[:-1])} or {STRATEGIES[-1]} (default: auto)"
    add("--strategy", default="auto", choices=STRATEGIES, metavar="NAME", help=devices)
    add("--checkpoint-every", type=_count, metavar="N", help="steps between two checkpoints")
    images = _add_training_images(command, "training images (default: the recipe's own)", required=False)
    corrupt = "maximum share of unreadable images (default: 0.01)"
    images.add_argument("--max-corrupt", type=_share, metavar="SHARE", help=corrupt)
    add = command.add_argument_group("changes to the recipe").add_argument
    add("--epochs", type=int, metavar="N", help="passes over the images")
    add("--steps", type=int, metavar="N", help="length of the run in steps, instead of --epochs")
    add("--batch-size", type=int, metavar="N", help="images per step")
    add("--learning-rate", type=float, metavar="X", help="highest learning rate")
    add("--weight-decay", type=float, metavar="X", help="decoupled weight decay")
    add("--seed", type=int, metavar="N", help="of initial weights, image order and augmentation")
    add("--image-size", type=_size, metavar="N", help=_SIZE)
    several = "any field of the recipe, see --show; may be given several times"
    add("--set", type=_field, action="append", default=[], metavar="FIELD=VALUE", help=several)


def _demo(command):
    """Open a page in the browser where a model classifies images and shows its attention.
    Without --model it uses a model for digits, which is trained when the first image is given. Needs gradio.

    examples:
      keras-vit demo --no-browser
      keras-vit demo --model ViT-Ti_16 --weights ViT-Ti_16.npz --no-browser
    """
    _add_model(command, required=False)
    add = command.add_argument_group("server").add_argument
    add("--host", default="127.0.0.1", metavar="ADDRESS", help="to listen on (default: 127.0.0.1, only this machine)")
    add("--port", type=_count, metavar="N", help="(default: the first free from 7860)")
    add("--no-browser", action="store_true", help="print the address without opening a browser")
    add("--share", action="store_true", help="create a public link with Gradio's service")


def _export(command):
    """Write DIR/VERSION/, a SavedModel for TensorFlow Serving, or a file for another runtime.
    The export is first run in a fresh process and compared with the model.

    examples:
      keras-vit export --model model.keras --output serving
      keras-vit export --model model.keras --output serving --compute-dtype bfloat16 --check cat.jpg
    """
    _add_model(command)
    add = command.add_argument
    add("--output", required=True, metavar="DIR", help="folder of the versions; created if absent")
    add("--version", type=int, metavar="N", help="number of the version (default: the next)")
    one_of = f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]} (default: saved_model)"
    add("--format", default="saved_model", choices=FORMATS, metavar="NAME", help=one_of)
    add("--check", nargs="+", metavar="IMAGE", help="compare on these instead of generated images")
    add("--no-check", action="store_true", help="skip the comparison")
    add("--tolerance", type=float, metavar="X", help="maximum difference (default: by the precision)")
    add("--force", action="store_true", help="allow a head of zeros or an assumed preprocessing")
    add = command.add_argument_group("SavedModel").add_argument
    add("--signatures", type=_names, metavar="NAMES", help="such as serving_default,features,attention")
    add("--top", type=int, metavar="K", help="classes per image (default: 5)")
    add("--tokens", action="store_true", default=None, help="features also returns the tokens")
    add("--on-error", metavar="NAME", help="for an unreadable image: row (default) or raise")
    add("--max-pixels", type=int, metavar="N", help="maximum pixels of an image (default: 64000000)")
    add("--jit-compile", action="store_true", default=None, help="compile the model with XLA")
    add("--compute-dtype", metavar="NAME", help="bfloat16 or float32 (default: the model's own)")
    add = command.add_argument_group("litert and openvino").add_argument
    add("--quantization", metavar="NAME", help="int8")
    add("--calibration", nargs="+", metavar="IMAGE", help="(openvino) images to calibrate int8 with")


def _convert(command):
    """Write a model's weights in the layout of another library.

    examples:
      keras-vit convert --model ViT-Ti_16 --weights ViT-Ti_16.npz --layout huggingface --output for_transformers
      keras-vit convert --model ViT-Ti_16 --weights ViT-Ti_16.npz --layout keras --output ViT-Ti_16.keras
    """
    _add_model(command, is_run=False)
    files = (
        "official (.npz), timm or microsoft (.safetensors), huggingface (a folder, or .safetensors) "
        "or keras (.keras or .weights.h5)"
    )
    add = command.add_argument
    add("--layout", required=True, choices=LAYOUTS, metavar="NAME", help=files)
    add("--output", required=True, metavar="PATH", help="file or folder; replaced if it exists")


def _add_model(command, required=True, is_run=True):
    """Add the arguments for a model, for changes to it and, if it is run, to the preparation of its images."""
    command.add_argument("--model", required=required, metavar="MODEL", help=_MODEL)
    _add_weights(command)
    _add_architecture(command)
    if not is_run:
        return
    add = command.add_argument_group("preparation of images (default: as the weights were trained)").add_argument
    resize = "resize the shorter side to N pixels, then crop the centre; HEIGHTxWIDTH resizes to exactly this size"
    add("--resize", type=_size, metavar="N", help=resize)
    add("--crop", type=_size, metavar="N", help="side of the centre crop (default: the model's size)")
    add("--interpolation", metavar="NAME", help="bilinear, bilinear_antialias, bicubic, area or nearest")
    add(
        "--mean", type=_numbers, metavar="X", help="subtracted from values in [0, 1]: 1 or 3 numbers, as in 0.5,0.5,0.5"
    )
    add("--std", type=_numbers, metavar="X", help="divides the result: 1 or 3 numbers")


def _add_weights(command):
    files = (
        ".npz, .safetensors, .weights.h5 or .keras file, a folder with config.json and model.safetensors, "
        "a published name (keras-vit list --weights) or hf://org/repo; not for a .keras model"
    )
    command.add_argument("--weights", metavar="FILE", help=files)


def _add_architecture(command):
    add = command.add_argument_group("changes to the model").add_argument
    add("--image-size", type=_size, metavar="N", help=f"{_SIZE} (default: the .keras file's, else 224)")
    add("--classes", type=int, metavar="N", help="number of classes (default: those of the weights)")
    add("--gelu", metavar="NAME", help="tanh or erf (default: as the weights were trained)")
    add("--epsilon", type=float, metavar="X", help="of all LayerNorms (default: as for --gelu)")


def _add_images(command, title, required=True):
    """Add the arguments for labelled images; sources.py checks their combinations."""
    group = command.add_argument_group(title)
    add = group.add_mutually_exclusive_group(required=required).add_argument
    add("--folder", metavar="DIR", help="folder of class folders")
    add("--tfds", metavar="NAME", help="data set of TensorFlow Datasets, with --split")
    add("--tfrecord", metavar="PATTERN", help="TFRecord files, such as 'data/train-*'")
    add("--arrays", metavar="FILE", help=".npz file with x_train, y_train, x_test and y_test")
    add = group.add_argument
    add("--split", metavar="SPLIT", help="for --tfds: split, such as 'train[:80%%]'")
    add("--data-dir", metavar="DIR", help="for --tfds: folder of its data sets")
    add("--class-names", metavar="FILE", help="for --tfrecord, --arrays: text file, one class per line")
    add("--label-offset", type=int, metavar="N", help="for --tfrecord: label of the first class")
    add("--image-key", metavar="NAME", help="for --tfds and --tfrecord: feature of the image")
    add("--label-key", metavar="NAME", help="for --tfds and --tfrecord: feature of the label")
    return group


def _add_training_images(command, title, required=True):
    """Add the arguments for images to learn from, and for those to measure on; --arrays contains both."""
    group = _add_images(command, title, required)
    where = "images to measure on: a DIR, SPLIT or PATTERN, as for training images"
    group.add_argument("--validation", metavar="WHERE", help=where)
    share = "measure on this share of the training images; stratified by class for --folder and --arrays"
    group.add_argument("--hold-out", type=_share, metavar="SHARE", help=share)
    return group


_COMMANDS = (_list, _info, _predict, _evaluate, _probe, _explain, _train, _demo, _export, _convert)


def _version():
    """Return the package's `__version__` without importing it."""
    source = pathlib.Path(__file__).parents[1].joinpath("__init__.py").read_text(encoding="utf-8")
    return re.search(r'^__version__ = "(.+)"$', source, re.MULTILINE)[1]


def _size(text):
    """Convert `"224"` to 224, and `"160x224"` to (160, 224)."""
    sides = text.split("x")
    if len(sides) > 2 or not all(side.isdecimal() for side in sides):
        raise argparse.ArgumentTypeError(f"expected N or HEIGHTxWIDTH in pixels; got {text!r}")
    return int(text) if len(sides) == 1 else (int(sides[0]), int(sides[1]))


def _count(text):
    """Convert `"500"` to 500; the minimum is 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected an integer of at least 1; got {text!r}")
    return int(text)


def _counts(text):
    """Convert `"1,5,10"` to (1, 5, 10); the minimum is 1."""
    return tuple(_count(part.strip()) for part in text.split(","))


def _numbers(text):
    """Convert `"0.5"` to (0.5,), and `"0.485,0.456,0.406"` to three numbers."""
    with contextlib.suppress(ValueError):
        values = tuple(float(part) for part in text.split(","))
        if len(values) in (1, 3):
            return values
    raise argparse.ArgumentTypeError(f"expected 1 or 3 numbers; got {text!r}")


def _share(text):
    """Convert `"0.1"` to 0.1, from 0 to 1."""
    with contextlib.suppress(ValueError):
        if 0.0 <= float(text) <= 1.0:
            return float(text)
    raise argparse.ArgumentTypeError(f"expected a share from 0 to 1; got {text!r}")


def _field(text):
    """Convert `"learning_rate=0.01"` to ("learning_rate", "0.01")."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise argparse.ArgumentTypeError(f"expected FIELD=VALUE; got {text!r}")
    return name.strip(), value.strip()


def _names(text):
    """Convert `"images,features"` to ("images", "features")."""
    return tuple(part.strip() for part in text.split(","))


class _Parser(argparse.ArgumentParser):
    """Report errors in one line, with the command that shows the usage."""

    def __init__(self, **kwargs):
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **kwargs)

    def error(self, message):
        self.exit(2, f"keras-vit: error: {message} ({self.prog} --help shows the usage)\n")


class _CommandParser(_Parser):
    """Report a misspelt option before a missing required argument, because it may be that argument.

    An empty word is an error: as a path it would mean the current folder.
    """

    def parse_known_args(self, args=None, namespace=None):
        """Parse as argparse does, but report a surplus word here, where the command is known."""
        name = self.prog.split()[-1]
        before = anything = f"a word of {name}"
        for word in args[: args.index("--")] if "--" in args else args:
            option, equals, value = word.partition("=")
            is_known = not {option, word[:2]}.isdisjoint(self._option_string_actions)
            if not word or (is_known and equals and not value):
                self.error(f"{option or before} must not be empty; got {word!r}")
            if _OPTION.fullmatch(word) and not is_known:
                self.error(f"{name} has no option {option!r}{_suggestion(option, self._option_string_actions)}")
            before = word if word.startswith("-") else anything
        parsed, surplus = super().parse_known_args(args, namespace)
        if surplus:
            self.error(f"{name} takes no further word; got {surplus[0]!r}")
        return parsed, surplus


def _suggestion(option, options):
    """Return a hint at the option with a similar spelling, this beginning or these initials, or an empty string."""
    word = option.lstrip("-").lower().replace("_", "-")
    names = [name[2:] for name in options if name.startswith("--")]
    near = difflib.get_close_matches(word, names, 1, _NEAR) + [name for name in names if name.startswith(word)]
    near += [name for name in names if "".join(part[0] for part in name.split("-")) == word]
    return f" (did you mean '--{near[0]}'?)" if near else ""
