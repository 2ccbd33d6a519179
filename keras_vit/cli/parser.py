"""The arguments of `keras-vit` and their help. Standard library only: `--help` does not wait for Keras."""

import pathlib
import re
import sys

from . import (
    argument_groups,
    argument_parser,
    argument_types,
)  # relative, for keras_vit_command.py reads this folder without the package around it

_FORMATS = ("saved_model", "onnx", "litert", "openvino")
_LAYOUTS = ("official", "timm", "huggingface", "microsoft", "keras")
_STRATEGIES = ("auto", "one", "mirrored", "multi_worker", "tpu", "data_parallel", "model_parallel")


def parse(argv=None):
    """Returns the parsed arguments (`argparse.Namespace`); exits with 2 and one line on a mistake.

    Args:
        argv: list of words, None takes the process's. Numbers that belong together may be several words
            (`--image-size 160 224`) or one (`--image-size 160x224`).
    """
    return _build_parser().parse_args(argument_types.join_numbers(sys.argv[1:] if argv is None else list(argv)))


def _build_parser():
    parser = argument_parser.Parser(
        prog="keras-vit",
        description="Vision Transformers for Keras and TensorFlow.",
        epilog=_examples(
            "keras-vit predict cat.jpg --model ViT-Ti_16 --weights ViT-Ti_16.npz",
            "keras-vit predict --help",
        ),
    )
    parser.add_argument("--version", action="version", version=f"keras-vit {_version()}")
    verbs = parser.add_subparsers(
        dest="verb", metavar="COMMAND", required=True, parser_class=argument_parser.VerbParser
    )
    _add_list(verbs)
    _add_info(verbs)
    _add_predict(verbs)
    _add_evaluate(verbs)
    _add_probe(verbs)
    _add_explain(verbs)
    _add_train(verbs)
    _add_demo(verbs)
    _add_export(verbs)
    _add_convert(verbs)
    return parser


def _add_list(verbs):
    verb = _add(
        verbs,
        "list",
        "List the models, their published weights, or the recipes.",
        "keras-vit list 'ViT-B*' --weights",
        "keras-vit list 'augreg/*' --recipes",
    )
    verb.add_argument("pattern", nargs="?", default="*", metavar="PATTERN", help="such as 'ViT-*' (default: all)")
    shown = verb.add_mutually_exclusive_group()
    shown.add_argument("--weights", action="store_true", help="the published files of each model instead")
    shown.add_argument("--recipes", action="store_true", help="the recipes whose names match PATTERN instead")


def _add_info(verbs):
    verb = _add(
        verbs,
        "info",
        "Show a model's architecture, parameters, preprocessing and labels, and how weights fit it.",
        "keras-vit info ViT-Ti_16 --weights ViT-Ti_16.npz --image-size 384",
    )
    verb.add_argument("model", metavar="MODEL", help="name from keras-vit list, or path of a .keras file")
    argument_groups.add_weights(verb)
    argument_groups.add_architecture(verb)


def _add_predict(verbs):
    verb = _add(
        verbs,
        "predict",
        "Name what images show.",
        "keras-vit predict cat.jpg --model ViT-Ti_16 --weights ViT-Ti_16.npz --top 3",
        "keras-vit predict cat.jpg --model model.keras --json",
    )
    verb.add_argument("images", nargs="+", metavar="IMAGE", help="JPEG, PNG, BMP, GIF or WebP file")
    argument_groups.add_model(verb)
    verb.add_argument("--top", type=int, default=5, metavar="K", help="answers per image (default: 5)")
    verb.add_argument("--json", action="store_true", help="print JSON")


def _add_evaluate(verbs):
    verb = _add(
        verbs,
        "evaluate",
        "Measure top-1 and top-5 accuracy on images with labels.\n"
        "Their classes, such as the sub-folders, are matched to the model's labels by WordNet id, by name or by a\n"
        "leading index.",
        "keras-vit evaluate --folder images --model ViT-Ti_16 --weights ViT-Ti_16.npz \\\n"
        "      --resize 248 --crop 224 --interpolation bicubic",
        "keras-vit evaluate --folder val --model ViT-Ti_16 --weights ViT-Ti_16.npz --real-labels real.json --report",
    )
    argument_groups.add_images(verb)
    argument_groups.add_model(verb)
    verb.add_argument("--batch-size", type=int, default=32, metavar="N", help="images per batch (default: 32)")
    verb.add_argument("--report", action="store_true", help="calibration and the classes too, the worst first")
    verb.add_argument(
        "--real-labels",
        metavar="FILE",
        help="real.json, the ReaL labels of ImageNet's validation images (ILSVRC2012_val_00000001.JPEG and so on)",
    )
    verb.add_argument("--json", action="store_true", help="print JSON")


def _add_probe(verbs):
    verb = _add(
        verbs,
        "probe",
        "Measure the features of a model by few-shot accuracy: ridge regression on a few images of each class.\n"
        "Each seed draws other images; the mean over the seeds and their standard deviation are shown.",
        "keras-vit probe --arrays drawings.npz --model model.keras --shots 1,5,10 --layer block_00 --table shots.csv",
    )
    argument_groups.add_measured(argument_groups.add_images(verb, "images to learn from"))
    argument_groups.add_model(verb)
    verb.add_argument(
        "--shots",
        type=argument_types.counts,
        default=(1, 5, 10, 25),
        metavar="N,N",
        help="images per class to learn from (default: 1,5,10,25)",
    )
    verb.add_argument(
        "--seeds", type=argument_types.count, default=3, metavar="N", help="number of draws, seeds from 0 (default: 3)"
    )
    verb.add_argument(
        "--layer", metavar="NAME", help="layer of the features, such as block_05 (default: what the head reads)"
    )
    verb.add_argument("--l2", type=float, metavar="X", help="lambda of the regression (default: 1024)")
    verb.add_argument("--batch-size", type=int, default=32, metavar="N", help="images per batch (default: 32)")
    verb.add_argument("--table", metavar="FILE", help="write every accuracy as .csv, too")
    verb.add_argument("--plot", metavar="FILE", help="draw the accuracy over the shots, as .png (needs matplotlib)")
    verb.add_argument("--json", action="store_true", help="print JSON")


def _add_explain(verbs):
    verb = _add(
        verbs,
        "explain",
        "Draw what a model answers to an image and where it looks, on one sheet. Needs matplotlib.\n"
        "It shows the attention rollout (of a Swin, that of its last stage) and the most uneven heads of one block.",
        "keras-vit explain cat.jpg --model ViT-Ti_16 --weights ViT-Ti_16.npz -o cat.png",
        "keras-vit explain cat.jpg --model model.keras --layer block_00 --heads 2 -o cat.pdf",
    )
    verb.add_argument("image", metavar="IMAGE", help="JPEG, PNG, BMP, GIF or WebP file")
    argument_groups.add_model(verb)
    verb.add_argument(
        "-o", "--output", required=True, metavar="FILE", help=".png, .jpg, .pdf or .svg; replaced if it exists"
    )
    verb.add_argument("--top", type=argument_types.count, default=5, metavar="K", help="answers (default: 5)")
    verb.add_argument(
        "--layer", default="-1", metavar="NAME", help="block of the heads, or its number (default: the last)"
    )
    verb.add_argument(
        "--heads", type=argument_types.count, default=4, metavar="N", help="heads that are shown (default: 4)"
    )


def _add_demo(verbs):
    verb = _add(
        verbs,
        "demo",
        "Open a page in the browser that shows how a model classifies images and where it looks.\n"
        "Without --model it starts with one for digits, which is trained at the first image. Needs gradio.",
        "keras-vit demo --no-browser",
        "keras-vit demo --model ViT-Ti_16 --weights ViT-Ti_16.npz --no-browser",
    )
    argument_groups.add_model(verb, required=False)
    server = verb.add_argument_group("server")
    server.add_argument(
        "--host", default="127.0.0.1", metavar="ADDRESS", help="to listen on (default: 127.0.0.1, this machine alone)"
    )
    server.add_argument("--port", type=argument_types.count, metavar="N", help="(default: the first free from 7860)")
    server.add_argument("--no-browser", action="store_true", help="print the address and open no browser")
    server.add_argument("--share", action="store_true", help="make a public link through Gradio's service")


def _add_train(verbs):
    verb = _add(
        verbs,
        "train",
        "Train a model by a recipe. The folder gets model.keras, history.json and, where something is measured on,\n"
        "best.keras, the model of the best epoch. After an interruption the same command goes on.",
        "keras-vit train --recipe quickstart --workdir digits --epochs 5",
        "keras-vit train --recipe quickstart --folder images --hold-out 0.5 --batch-size 2 --epochs 1 --workdir cats",
        "keras-vit train --recipe vit/finetune/pets --steps 1000 --set 'augment=inception_crop(0.3), flip' --show",
    )
    verb.add_argument(
        "--recipe", required=True, metavar="NAME", help="name of a recipe; keras-vit list --recipes shows them"
    )
    verb.add_argument("--workdir", metavar="DIR", help="folder for the results; made if absent")
    verb.add_argument("--show", action="store_true", help="print the recipe as JSON; open and train nothing")
    verb.add_argument("--model", metavar="NAME", help="name from keras-vit list (default: the recipe's own model)")
    argument_groups.add_weights(verb)
    verb.add_argument(
        "--strategy",
        default="auto",
        choices=_STRATEGIES,
        metavar="NAME",
        help=f"devices: {', '.join(_STRATEGIES[:-1])} or {_STRATEGIES[-1]} (default: auto)",
    )
    verb.add_argument(
        "--checkpoint-every", type=argument_types.count, metavar="N", help="steps from one checkpoint to the next"
    )
    images = argument_groups.add_images(verb, "images to learn from (default: the recipe's own)", required=False)
    argument_groups.add_measured(images)
    images.add_argument(
        "--max-corrupt",
        type=argument_types.share,
        metavar="SHARE",
        help="how many of them may be unreadable (default: 0.01)",
    )
    changes = verb.add_argument_group("changes to the recipe")
    changes.add_argument("--epochs", type=int, metavar="N", help="passes over the images")
    changes.add_argument("--steps", type=int, metavar="N", help="length of the run in steps instead")
    changes.add_argument("--batch-size", type=int, metavar="N", help="images per step")
    changes.add_argument("--learning-rate", type=float, metavar="X", help="highest learning rate")
    changes.add_argument("--weight-decay", type=float, metavar="X", help="decoupled weight decay")
    changes.add_argument("--seed", type=int, metavar="N", help="of weights, order and augmentation")
    changes.add_argument(
        "--image-size",
        type=argument_types.size,
        metavar="N",
        help="side of the model's images in pixels, or HEIGHTxWIDTH",
    )
    changes.add_argument(
        "--set",
        type=argument_types.field,
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="any field of the recipe, as --show names it; may be given several times",
    )


def _add_export(verbs):
    verb = _add(
        verbs,
        "export",
        "Write DIR/VERSION/, a SavedModel for TensorFlow Serving, or a file for another runtime.\n"
        "It is run in a fresh process and compared with the model before it is there.",
        "keras-vit export --model model.keras --output serving",
        "keras-vit export --model model.keras --output serving --compute-dtype bfloat16 --check cat.jpg",
    )
    argument_groups.add_model(verb)
    verb.add_argument("--output", required=True, metavar="DIR", help="folder of the versions; made if absent")
    verb.add_argument("--version", type=int, metavar="N", help="number of the version (default: the next)")
    verb.add_argument(
        "--format",
        default="saved_model",
        choices=_FORMATS,
        metavar="NAME",
        help=f"{', '.join(_FORMATS[:-1])} or {_FORMATS[-1]} (default: saved_model)",
    )
    verb.add_argument("--check", nargs="+", metavar="IMAGE", help="compare on these instead of drawn images")
    verb.add_argument("--no-check", action="store_true", help="leave the comparison out")
    verb.add_argument("--tolerance", type=float, metavar="X", help="largest difference (default: by the precision)")
    verb.add_argument("--force", action="store_true", help="even with a head of zeros or an assumed preprocessing")
    serving = verb.add_argument_group("SavedModel")
    serving.add_argument(
        "--signatures", type=argument_types.names, metavar="NAMES", help="such as serving_default,features,attention"
    )
    serving.add_argument("--top", type=int, metavar="K", help="classes in an answer (default: 5)")
    serving.add_argument("--tokens", action="store_true", default=None, help="features answers with the tokens, too")
    serving.add_argument("--on-error", metavar="NAME", help="of an image that cannot be read: row (default) or raise")
    serving.add_argument("--max-pixels", type=int, metavar="N", help="that an image may claim (default: 64000000)")
    serving.add_argument("--jit-compile", action="store_true", default=None, help="XLA compiles the model")
    serving.add_argument("--compute-dtype", metavar="NAME", help="bfloat16 or float32 (default: the model's own)")
    other = verb.add_argument_group("litert and openvino")
    other.add_argument("--quantization", metavar="NAME", help="int8")
    other.add_argument("--calibration", nargs="+", metavar="IMAGE", help="(openvino) what int8 is fitted on")


def _add_convert(verbs):
    verb = _add(
        verbs,
        "convert",
        "Write a model's weights in the layout of other code.",
        "keras-vit convert --model ViT-Ti_16 --weights ViT-Ti_16.npz --layout huggingface --output for_transformers",
        "keras-vit convert --model ViT-Ti_16 --weights ViT-Ti_16.npz --layout keras --output ViT-Ti_16.keras",
    )
    verb.add_argument(
        "--model", required=True, metavar="MODEL", help="name from keras-vit list, or path of a .keras file"
    )
    argument_groups.add_weights(verb)
    argument_groups.add_architecture(verb)
    verb.add_argument(
        "--layout",
        required=True,
        choices=_LAYOUTS,
        metavar="NAME",
        help="official (.npz), timm or microsoft (.safetensors), huggingface (a folder, or .safetensors) "
        "or keras (.keras or .weights.h5)",
    )
    verb.add_argument("--output", required=True, metavar="PATH", help="file or folder; replaced if it exists")


def _add(verbs, name, description, *examples):
    return verbs.add_parser(
        name,
        help=re.split(r"\.\s", description)[0].rstrip("."),
        description=description,
        epilog=_examples(*examples),
    )


def _examples(*commands):
    title = "example:" if len(commands) == 1 else "examples:"
    return "\n".join([title, *(f"  {command}" for command in commands)])


def _version():
    """The package's `__version__`, read without importing it."""
    source = pathlib.Path(__file__).parents[1].joinpath("__init__.py").read_text(encoding="utf-8")
    return re.search(r'^__version__ = "(.+)"$', source, re.MULTILINE)[1]
