"""`keras-vit list` and `keras-vit info`: tables of models, recipes, parameters and cost."""

import itertools
import os
import re

import keras_vit
from keras_vit.checkpoints.description import describe
from keras_vit.checkpoints.foreign_names import foreign_names
from keras_vit.checkpoints.hub import PREFIX
from keras_vit.checkpoints.locate import fetch, locate
from keras_vit.checkpoints.readers import open_checkpoint
from keras_vit.checkpoints.releases import list_releases
from keras_vit.cli.models import build_model, given
from keras_vit.compat.initial_values import build_deferred
from keras_vit.evaluation.accuracy import aligned
from keras_vit.identify import identify
from keras_vit.models.costs import layer_costs
from keras_vit.variants import FAMILIES, VARIANTS, Variant

_SHOWN_LABELS = 5


def list_models(args):
    """Print a table of the models (size, cost and releases), a table of their published weights, or one of recipes."""
    if args.recipes:
        recipes = keras_vit.training.RECIPES
        names = _matching(keras_vit.training.list_recipes(args.pattern), recipes, args.pattern)
        rows = [(name, recipes[name].length, recipes[name].batch_size, recipes[name].source) for name in names]
        print(aligned([("recipe", "length", "batch", "source"), *rows], left=(0, 3)))
        return
    names = _matching(keras_vit.list_models(args.pattern), keras_vit.list_models(), args.pattern)
    if args.weights:
        rows = [row for name in names for row in _weight_rows(name)]
        head = ("model", "--weights", "file", "pixels", "classes", "MiB", "top-1 %", "licence")
        print(aligned([head, *rows], left=(0, 1, 2, 7)))
    else:
        head = ("model", "parameters", "pixels", "GMAC", "weights")
        print(aligned([head, *map(_model_row, names)], left=(0, 4)))


def info(args):
    """Print the architecture, inputs, outputs and cost of a model; the load report goes to standard error.

    A weights file or folder is described without building its model.
    """
    if not args.model.endswith(".keras") and (os.path.exists(args.model) or args.model.startswith(PREFIX)):
        _print_file(args)
        return
    if args.weights is None and not args.model.endswith(".keras"):
        model, _ = build_deferred(lambda: build_model(args))  # without weights: G/14 would need 7 GB
    else:
        model = build_model(args)
    costs = layer_costs(model)
    unknown = [cost.name for cost in costs if cost.macs is None]
    macs = sum(cost.macs for cost in costs if cost.macs is not None)
    total = f"{macs:,}" + (f", and the unknown ones of {', '.join(unknown)}" if unknown else "")
    values = {"parameters": f"{model.count_params():,}", "multiply-accumulates": total}
    _print_values({**values, **_described(model.config, model.preprocessing, model.labels)})
    print()
    head = ("layer", "output", "parameters", "multiply-accumulates")
    print(aligned([head, *_stage_rows(costs)], left=(0, 1)))


def _print_file(args):
    """Print what a weights file is: its layout, the model that it fits, and what it does not state."""
    if args.weights is not None:
        raise ValueError(f"--weights must be omitted for {args.model}: the file contains its weights")
    description = describe(open_checkpoint(fetch(locate(args.model, "", None))))
    values = {"layout": description.layout, "arrays": len(description.entries), "classes": description.classes}
    if description.family == "vit" and description.names is not None:
        config, usual, notes = identify(description, None, given(args, ("image_size", "classes", "gelu", "epsilon")))
        values |= _described(config, description.preprocessing or (usual and usual.preprocessing), description.labels)
        family = FAMILIES.get(usual.family) if isinstance(usual, Variant) else usual
        values["licence"] = None if family is None else family.licence
    else:
        values |= {"family": description.family, **description.stated}
        notes = ()
    _print_values({**values, **{f"note {index + 1}": note for index, note in enumerate((*notes, *description.notes))}})


def _described(config, preprocessing, labels):
    """Return the names and values of a config, a preprocessing and labels; those of nested configs have two words."""
    values = {}
    for name, value in config.to_dict().items():  # a nested config: `stem stage_sizes` and so on
        values |= {f"{name} {key}": inner for key, inner in value.items()} if isinstance(value, dict) else {name: value}
    values = {name: value for name, value in values.items() if not name.endswith(" class_name") or "stem" in name}
    if preprocessing is not None:
        values |= {f"preprocessing {name}": value for name, value in preprocessing.to_dict().items()}
    values["labels"] = shown = labels and ", ".join(labels[:_SHOWN_LABELS])
    if shown and len(labels) > _SHOWN_LABELS:
        values["labels"] = f"{shown}, ... ({len(labels)})"
    return values


def _print_values(values):
    width = max(map(len, values))
    for name, value in values.items():
        print(f"{name:<{width}}  {' '.join(map(str, value)) if isinstance(value, (list, tuple)) else value}")


def _matching(names, known, pattern):
    if not names:
        raise ValueError(f"PATTERN must match one of {', '.join(known)}; got {pattern!r}")
    return names


def _model_row(name):
    row = VARIANTS[name]
    releases = dict.fromkeys(release.alias for release in list_releases(name) if release.alias)
    return name, f"{row.parameters:,}", row.image_size, f"{row.macs / 1e9:.2f}", ", ".join(releases) or "-"


def _weight_rows(name):
    for release in list_releases(name):
        size = f"{release.bytes / 2**20:,.0f}"
        top1 = "-" if release.top1 is None else f"{release.top1:.1f}"
        yield name, release.alias, release.path, release.image_size, release.classes, size, top1, release.licence
    for foreign in foreign_names():
        if foreign.variant == name and VARIANTS[name].family:
            family = FAMILIES[VARIANTS[name].family]
            licence = f"{family.licence}{', gated' if family.gated else ''}"
            yield name, "-", foreign.weights, foreign.image_size, "-", "-", "-", licence


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
