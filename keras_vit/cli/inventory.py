"""`keras-vit list` and `keras-vit info`: tables of models, recipes, parameters and cost."""

import itertools
import re

import keras_vit
from keras_vit.checkpoints.releases import list_releases
from keras_vit.cli.models import build_model
from keras_vit.compat.initial_values import build_deferred
from keras_vit.models.costs import count_macs, layer_costs

_SHOWN_LABELS = 5
_LISTED_SIZE = 224


def list_models(args):
    """Print a table of the models (size, cost and releases), a table of their published weights, or one of recipes."""
    if args.recipes:
        recipes = keras_vit.training.RECIPES
        names = _matching(keras_vit.training.list_recipes(args.pattern), recipes, args.pattern)
        rows = [(name, recipes[name].length, recipes[name].batch_size, recipes[name].source) for name in names]
        _print_table(("recipe", "length", "batch", "source"), rows, left=(0, 3))
        return
    names = _matching(keras_vit.list_models(args.pattern), keras_vit.list_models(), args.pattern)
    if args.weights:
        rows = [row for name in names for row in _weight_rows(name)]
        _print_table(("model", "--weights", "file", "pixels", "classes", "MiB", "top-1 %"), rows, left=(0, 1, 2))
    else:
        head = ("model", "parameters", f"GMAC@{_LISTED_SIZE}", "weights")
        widths = (max(map(len, names)), len("1,844,440,680"), len(head[2]), 0)
        _print_table(head, map(_model_row, names), left=(0, 3), widths=widths)


def info(args):
    """Print the architecture, inputs, outputs and cost of a model; the load report goes to standard error."""
    if args.weights is None and not args.model.endswith(".keras"):
        model, _ = build_deferred(lambda: build_model(args))  # without weights: G/14 would need 7 GB
    else:
        model = build_model(args)
    costs = layer_costs(model)
    unknown = [cost.name for cost in costs if cost.macs is None]
    macs = sum(cost.macs for cost in costs if cost.macs is not None)
    total = f"{macs:,}" + (f", and the unknown ones of {', '.join(unknown)}" if unknown else "")
    values = {"parameters": f"{model.count_params():,}", "multiply-accumulates": total}
    for name, value in model.config.to_dict().items():  # a nested config: `stem stage_sizes` and so on
        values |= {f"{name} {key}": inner for key, inner in value.items()} if isinstance(value, dict) else {name: value}
    values |= {f"preprocessing {name}": value for name, value in model.preprocessing.to_dict().items()}
    values["labels"] = labels = model.labels and ", ".join(model.labels[:_SHOWN_LABELS])
    if labels and len(model.labels) > _SHOWN_LABELS:
        values["labels"] = f"{labels}, ... ({len(model.labels)})"
    width = max(map(len, values))
    for name, value in values.items():
        print(f"{name:<{width}}  {' '.join(map(str, value)) if isinstance(value, list) else value}")
    print()
    _print_table(("layer", "output", "parameters", "multiply-accumulates"), list(_stage_rows(costs)), left=(0, 1))


def _matching(names, known, pattern):
    if not names:
        raise ValueError(f"PATTERN must match one of {', '.join(known)}; got {pattern!r}")
    return names


def _model_row(name):
    model, _ = build_deferred(lambda: keras_vit.create_model(name, image_size=_LISTED_SIZE))
    releases = dict.fromkeys(release.alias for release in list_releases(name) if release.alias)
    return name, f"{model.count_params():,}", f"{count_macs(model) / 1e9:.2f}", ", ".join(releases) or "-"


def _weight_rows(name):
    for release in list_releases(name):
        size = f"{release.bytes / 2**20:,.0f}"
        top1 = "-" if release.top1 is None else f"{release.top1:.1f}"
        yield name, release.alias, release.path, release.image_size, release.classes, size, top1


def _print_table(head, rows, left, widths=None):
    """Print rows of cells; the columns in `left` are left-aligned, the others right-aligned.

    With `widths`, each row is printed as soon as it is computed, because building all models takes seconds.
    """
    widths = widths or [max(len(str(row[column])) for row in (head, *rows)) for column in range(len(head))]
    for row in itertools.chain([head], rows):
        cells = [(str.ljust if n in left else str.rjust)(str(cell), widths[n]) for n, cell in enumerate(row)]
        print("  ".join(cells).rstrip(), flush=True)


def _stage_rows(costs):
    """Yield a row per layer; equal numbered neighbours, such as `block_00` to `block_11`, share a row."""
    for _, group in itertools.groupby(costs, lambda cost: (re.sub(r"\d+$", "", cost.name), *cost[1:])):
        first, *others = group
        count = 1 + len(others)
        name = f"{first.name} ... {others[-1].name}" if others else first.name
        macs = "unknown" if first.macs is None else f"{count * first.macs:,}"
        yield name, _shape_text(first.output_shape), f"{count * first.parameters:,}", macs


def _shape_text(shape):
    if shape and isinstance(shape[0], tuple):
        return ", ".join(map(_shape_text, shape))
    return " x ".join(str(side) for side in shape if side is not None)
