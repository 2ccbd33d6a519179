"""`keras-vit list` and `keras-vit info`: tables of models, recipes, parameters and cost."""

import importlib.util
import itertools
import re

import keras_vit
from keras_vit.checkpoints.releases import list_releases
from keras_vit.checkpoints.releases.tables import published_accuracy
from keras_vit.cli.models import build_model
from keras_vit.compat.initial_values import build_deferred
from keras_vit.models.costs import count_macs, layer_costs, training_exaflops

_SHOWN_LABELS = 5
_LISTED_SIZE = 224

# Training runs in Table 6 of arXiv 2010.11929 for models of the zoo: name -> epochs of JFT-300M.
_JFT_EPOCHS = {
    "ViT-B_32": (7,),
    "ViT-B_16": (7,),
    "ViT-L_32": (7,),
    "ViT-L_16": (7, 14),
    "ViT-H_14": (14,),
    "R50+ViT-B_32": (7,),
    "R50+ViT-B_16": (7,),
    "R50+ViT-L_32": (7,),
    "R50+ViT-L_16": (7, 14),
    "BiT-R50x1": (7,),
    "BiT-R101x1": (7,),
    "BiT-R152x2": (7, 14),
}
_JFT_IMAGES = 303_000_000
_IMAGES = {"digits": 1438}  # training images of the recipes' own data sets
_RATES = ("dropout_rate", "attention_dropout_rate", "drop_path_rate")
# Fields of a config that training may change: configs that differ only in these describe the same model.
_CHOSEN = ("name", "classes", "gelu", "epsilon", "dtype", "remat", *_RATES)


def list_models(args):
    """Print a table of models with size, cost and releases, of their published weights, or of recipes."""
    if args.recipes:
        _print_recipes(args.pattern)
        return
    names = keras_vit.list_models(args.pattern)
    if not names:
        known = ", ".join(keras_vit.list_models())
        raise ValueError(f"PATTERN must match one of {known}; got {args.pattern!r}")
    if args.weights:
        rows = [row for name in names for row in _weight_rows(name)]
        _print_table(("model", "--weights", "file", "pixels", "classes", "MiB", "top-1 %"), rows, left=(0, 1, 2))
    else:
        _print_models(names)


def info(args):
    """Print the architecture, inputs, outputs and cost of a model; the load report goes to standard error."""
    if args.weights is None and not args.model.endswith(".keras"):
        model, _ = build_deferred(lambda: build_model(args))  # without weights: G/14 would need 7 GB
    else:
        model = build_model(args)
    costs = layer_costs(model)
    macs = sum(cost.macs for cost in costs)
    values = {"parameters": f"{model.count_params():,}", "multiply-accumulates": f"{macs:,}"}
    values |= _flattened(model.config.to_dict())
    values |= {f"preprocessing {name}": value for name, value in model.preprocessing.to_dict().items()}
    values["labels"] = _shortened(model.labels)
    width = max(map(len, values))
    for name, value in values.items():
        print(f"{name:<{width}}  {_text(value)}")
    print()
    _print_table(("layer", "output", "parameters", "multiply-accumulates"), _stage_rows(costs), left=(0, 1))
    trainings = [*_paper_trainings(model), *_recipe_trainings(model)]
    if trainings:
        print()
        rows = [(*names, f"{training_exaflops(macs, examples):.4g}") for *names, examples in trainings]
        _print_table(("training of this model", "images", "exaFLOPs"), rows, left=(0, 1))


def _print_models(names):
    """Print each row as soon as its model is counted, because building all of them takes seconds."""
    widths = (max(map(len, names)), len("1,844,440,680"), len(f"GMAC@{_LISTED_SIZE}"))
    _print_row(("model", "parameters", f"GMAC@{_LISTED_SIZE}", "weights"), (*widths, 0), left=(0, 3))
    for name in names:
        model, _ = build_deferred(lambda name=name: keras_vit.create_model(name, image_size=_LISTED_SIZE))
        releases = dict.fromkeys(release.alias for release in list_releases(name) if release.alias)
        row = (name, f"{model.count_params():,}", f"{count_macs(model) / 1e9:.2f}", ", ".join(releases) or "-")
        _print_row(row, (*widths, 0), left=(0, 3))


def _print_recipes(pattern):
    recipes = keras_vit.training.RECIPES
    names = keras_vit.training.list_recipes(pattern)
    if not names:
        raise ValueError(f"PATTERN must match one of {', '.join(recipes)}; got {pattern!r}")
    rows = [(name, recipes[name].length, recipes[name].batch_size, recipes[name].source) for name in names]
    _print_table(("recipe", "length", "batch", "source"), rows, left=(0, 3))


def _stage_rows(costs):
    """Yield a row per layer; equal numbered neighbours, such as `block_00` to `block_11`, share a row."""
    for _, group in itertools.groupby(costs, lambda cost: (re.sub(r"\d+$", "", cost.name), *cost[1:])):
        first, *others = group
        count = 1 + len(others)
        name = f"{first.name} ... {others[-1].name}" if others else first.name
        yield name, _shape_text(first.output_shape), f"{count * first.parameters:,}", f"{count * first.macs:,}"


def _shape_text(shape):
    if shape and isinstance(shape[0], tuple):
        return ", ".join(map(_shape_text, shape))
    return " x ".join(str(side) for side in shape if side is not None)


def _paper_trainings(model):
    for epochs in _JFT_EPOCHS.get(model.config.name, ()):
        yield "arXiv 2010.11929, Table 6", f"JFT-300M, {epochs} epochs", epochs * _JFT_IMAGES


def _recipe_trainings(model):
    """Yield the recipes whose own model is this one."""
    if importlib.util.find_spec("tensorflow") is None:  # recipes need TensorFlow, models work on any backend
        return
    for recipe in keras_vit.training.RECIPES.values():
        if recipe.model is None or not _is_alike(model.config, recipe.configure(recipe.model)):
            continue
        if recipe.steps is not None:
            yield f"recipe {recipe.name}", f"{recipe.steps:,} x {recipe.batch_size:,}", recipe.steps * recipe.batch_size
        elif recipe.dataset is not None:
            images = _IMAGES[recipe.dataset]
            yield f"recipe {recipe.name}", f"{images:,}, {recipe.epochs} epochs", recipe.epochs * images
        else:
            yield f"recipe {recipe.name}", f"each million, {recipe.epochs} epochs", recipe.epochs * 1_000_000


def _is_alike(config, other):
    """Whether two configs have the same architecture and image size."""
    kept = {name: getattr(config, name) for name in _CHOSEN if hasattr(config, name)}
    return type(config) is type(other) and other.replace(**kept) == config


def _weight_rows(name):
    for release in list_releases(name):
        size = f"{release.bytes / 2**20:,.0f}"
        known = published_accuracy(release)
        top1 = "-" if known is None else f"{known.top1:.1f}"
        yield name, release.alias, release.path, release.image_size, release.classes, size, top1


def _print_table(head, rows, left):
    rows = [head, *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    for row in rows:
        _print_row(row, widths, left)


def _print_row(row, widths, left):
    """Print cells of these widths; the columns in `left` are left-aligned, the others right-aligned."""
    cells = [
        cell.ljust(width) if column in left else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    print("  ".join(cells).rstrip(), flush=True)


def _flattened(values):
    """Return the fields of a config; those of a nested config get its name as prefix: `stem stage_sizes`."""
    flat = {}
    for name, value in values.items():
        flat |= {f"{name} {key}": inner for key, inner in value.items()} if isinstance(value, dict) else {name: value}
    return flat


def _shortened(labels):
    if labels is None:
        return None
    more = f", ... ({len(labels)})" if len(labels) > _SHOWN_LABELS else ""
    return ", ".join(labels[:_SHOWN_LABELS]) + more


def _text(value):
    return " ".join(str(item) for item in value) if isinstance(value, list) else str(value)
