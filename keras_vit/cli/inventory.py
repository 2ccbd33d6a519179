"""`keras-vit list` and `keras-vit info`: what there is, without pictures."""

import contextlib
import io
import math

import keras_vit
from keras_vit.checkpoints.releases import list_releases
from keras_vit.cli.models import build_model
from keras_vit.compat.initial_values import build_deferred
from keras_vit.zoo import VARIANTS

_SHOWN_LABELS = 5


def list_models(args):
    """Prints a table of the models, or of their published weights."""
    names = keras_vit.list_models(args.pattern)
    if not names:
        known = ", ".join(keras_vit.list_models())
        raise ValueError(f"PATTERN must match one of {known}; got {args.pattern!r}")
    if args.weights:
        rows = [row for name in names for row in _weight_rows(name)]
        _print_table(("model", "--weights", "file", "pixels", "classes", "MiB"), rows, right_from=3)
    else:
        rows = [_model_row(name) for name in names]
        _print_table(("model", "parameters", "patch", "width", "layers", "heads"), rows, right_from=1)


def info(args):
    """Prints what a model is, what it eats, what it answers and, with weights, how they fit."""
    report = io.StringIO()
    if args.weights is None and not args.model.endswith(".keras"):
        model, _ = build_deferred(lambda: build_model(args))  # only looked at: G/14 would take 7 GB
    else:
        with contextlib.redirect_stdout(report):
            model = build_model(args)
    values = {"parameters": f"{model.count_params():,}", **model.config.to_dict()}
    values |= {f"preprocessing {name}": value for name, value in model.preprocessing.to_dict().items()}
    values["labels"] = _shortened(model.labels)
    width = max(map(len, values))
    for name, value in values.items():
        print(f"{name:<{width}}  {_text(value)}")
    print(report.getvalue(), end="")


def _model_row(name):
    config = VARIANTS[name].config(image_size=224)
    patch = " x ".join(str(side) for side in config.patch_size)
    return name, f"{_count(config):,}", patch, config.hidden_dim, config.num_layers, config.num_heads


def _count(config):
    """Parameters of a plain ViT, without building it: a table of them all would take five seconds."""
    dim, mlp_dim = config.hidden_dim, config.mlp_dim
    patch_encoder = (math.prod(config.patch_size) * config.channels + 1) * dim
    positions = (math.prod(config.grid_size) + 1) * dim
    norm = 2 * dim
    attention = 4 * (dim + 1) * dim  # query, key, value and output
    mlp = (dim + 1) * mlp_dim + (mlp_dim + 1) * dim
    blocks = config.num_layers * (2 * norm + attention + mlp)
    head = (dim + 1) * config.classes
    return patch_encoder + dim + positions + blocks + norm + head  # the lone dim is the class token


def _weight_rows(name):
    for release in list_releases(name):
        size = f"{release.bytes / 2**20:,.0f}"
        yield name, release.alias, release.path, release.image_size, release.classes, size


def _print_table(head, rows, right_from):
    rows = [head, *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    for row in rows:
        cells = [
            cell.ljust(width) if column < right_from else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())


def _shortened(labels):
    if labels is None:
        return None
    more = f", ... ({len(labels)})" if len(labels) > _SHOWN_LABELS else ""
    return ", ".join(labels[:_SHOWN_LABELS]) + more


def _text(value):
    return " ".join(str(item) for item in value) if isinstance(value, list) else str(value)
