"""`keras-vit list` and `keras-vit info`: tables of models, recipes, parameters and cost."""

import itertools
import re

import keras_vit
from keras_vit import checks
from keras_vit.checkpoints.foreign_names import foreign_names, near_names, task_models
from keras_vit.checkpoints.releases import list_releases
from keras_vit.cli.answers import Answer
from keras_vit.cli.models import ARCHITECTURE, build_model, find_source, given
from keras_vit.compat.initial_values import build_deferred
from keras_vit.files import aligned
from keras_vit.models.costs import layer_costs
from keras_vit.variants import FAMILIES, VARIANTS

_SHOWN_LABELS = 5
_NO_MATCH = "PATTERN {!r} matches none of the names{}; keras-vit {} shows all {}"

# name of a value in the JSON -> heading of its column in the text
_MODELS = {"model": "model", "parameters": "parameters", "image_size": "pixels", "macs": "GMAC", "weights": "weights"}
_WEIGHTS = {
    name: name for name in ("model", "weights", "file", "image_size", "classes", "bytes", "top1_percent", "licence")
}
_WEIGHTS |= {"weights": "--weights", "image_size": "pixels", "bytes": "MiB", "top1_percent": "top-1 %"}
_TASKS = {name: name for name in ("model", "class", "task", "parameters", "licence")}
_RECIPES = {"recipe": "recipe", "length": "length", "batch_size": "batch", "source": "source"}
_LAYERS = {"layer": "layer", "output_shape": "output", "parameters": "parameters", "macs": "multiply-accumulates"}


def list_models(args):
    """List the models (size, cost and releases), their published weights, task models, or the recipes."""
    if args.recipes:
        recipes = keras_vit.training.RECIPES
        names = keras_vit.training.list_recipes(args.pattern)
        if not names:
            hint = checks.suggestion(args.pattern, recipes, most=3, cutoff=0.4)
            raise ValueError(_NO_MATCH.format(args.pattern, hint, "list --recipes", len(recipes)))
        fields = ("length", "epochs", "steps", "batch_size", "source")
        rows = [{"recipe": name, **{key: getattr(recipes[name], key) for key in fields}} for name in names]
        return Answer(rows, _table(_RECIPES, rows))
    names = [] if args.task else keras_vit.list_models(args.pattern)
    if not names:
        task_rows = [task_models()[name] for name in keras_vit.list_models(args.pattern, args.task or "any")]
        if not task_rows:
            of_all = ("list --task any", len(task_models())) if args.task else ("list", len(VARIANTS))
            raise ValueError(_NO_MATCH.format(args.pattern, near_names(args.pattern, VARIANTS), *of_all))
        rows = [{name: row.get(name) for name in (*_TASKS, "metric")} for row in task_rows]
        return Answer(rows, _table(_TASKS, rows))
    rows = [row for name in names for row in (_weights_of(name) if args.weights else [_of_model(name)])]
    return Answer(rows, _table(_WEIGHTS if args.weights else _MODELS, rows))


def info(args):
    """Describe the architecture, inputs, outputs and cost of a model; the load report goes to standard error.

    A weights file or folder is described without building its model, and the name of a task model from its table.
    """
    found = find_source(args)
    is_file = found is not None and found.path is not None
    if args.model in task_models() and not is_file and not given(args, ("weights", *ARCHITECTURE)):
        return Answer(task_models()[args.model], _lines(task_models()[args.model]))
    if found is not None and not args.model.endswith(".keras"):
        return _of_file(args)
    if found is None and args.weights is None:
        model, _ = build_deferred(lambda: build_model(args, needs_weights=False))  # G/14 would need 7 GB
    else:
        model = build_model(args)
    costs = layer_costs(model)
    unknown = [cost.name for cost in costs if cost.macs is None]
    macs = sum(cost.macs for cost in costs if cost.macs is not None)
    described = _described(model.config, model.preprocessing, model.labels)
    layers = [dict(zip(_LAYERS, cost, strict=True)) for cost in costs]
    values = {"parameters": model.count_params(), "macs": macs, **described, "layers": layers}
    total = f"{macs:,}" + (f", and the unknown ones of {', '.join(unknown)}" if unknown else "")
    shown = {"parameters": f"{model.count_params():,}", "multiply-accumulates": total, **described}
    return Answer(values, f"{_lines(shown)}\n\n{_table(_LAYERS, list(_stages(layers)), 'unknown')}")


def _of_file(args):
    """Describe a weights file: its layout, the model that it fits, and what it does not state."""
    found = keras_vit.describe(args.model, **given(args, ARCHITECTURE))
    values = {name: getattr(found, name) for name in ("layout", "task", "variant", "family", "licence")}
    values |= _described(found.config, found.preprocessing, found.labels)
    for key, rows in (("sources", found.sources), ("unused", found.unused)):
        values[key] = {text: [name for name in rows if rows[name] == text] for text in dict.fromkeys(rows.values())}
    return Answer({**values, "notes": list(found.notes)}, _lines({**values, "notes": list(found.notes)}))


def _described(config, preprocessing, labels):
    preprocessing = preprocessing and preprocessing.to_dict()
    return {"config": config.to_dict(), "preprocessing": preprocessing, "labels": labels and list(labels)}


def _lines(values):
    """Return a line per name and value; names in nested configs have several words: `stem stage_sizes` and so on."""
    flat = dict(_flat(values))
    flat |= {f"note {number}": note for number, note in enumerate(flat.pop("notes", ()), 1)}
    if labels := flat.get("labels"):
        shown = ", ".join(labels[:_SHOWN_LABELS])
        flat["labels"] = f"{shown}, ... ({len(labels)})" if len(labels) > _SHOWN_LABELS else shown
    width = max(map(len, flat))
    texts = (" ".join(map(str, value)) if isinstance(value, (list, tuple)) else value for value in flat.values())
    return "\n".join(f"{name:<{width}}  {text}" for name, text in zip(flat, texts, strict=True))


def _flat(values, prefix=""):
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, "" if name == "config" else f"{prefix}{name} ")
        elif name != "class_name" or prefix in ("", "stem "):
            yield f"{prefix}{name}", value


def _of_model(name):
    row = VARIANTS[name]
    releases = dict.fromkeys(release.alias for release in list_releases(name) if release.alias)
    return dict(zip(_MODELS, (name, row.parameters, row.image_size, row.macs, list(releases)), strict=True))


def _weights_of(name):
    for release in list_releases(name):
        of_file = release.image_size, release.classes, release.bytes, release.top1, release.licence
        yield dict(zip(_WEIGHTS, (name, release.alias, release.path, *of_file), strict=True))
    for foreign in foreign_names():
        if foreign.variant == name and VARIANTS[name].family:
            family = FAMILIES[VARIANTS[name].family]
            licence = f"{family.licence}{', gated' if family.gated else ''}"
            values = name, None, foreign.weights, foreign.image_size, None, None, None, licence
            yield dict(zip(_WEIGHTS, values, strict=True))


def _stages(layers):
    """Yield a row per layer; equal numbered neighbours, such as `block_00` to `block_11`, share a row."""
    for _, group in itertools.groupby(layers, lambda row: (re.sub(r"\d+$", "", row["layer"]), *list(row.values())[1:])):
        first, *others = group
        name = f"{first['layer']} ... {others[-1]['layer']}" if others else first["layer"]
        sums = {key: first[key] and (1 + len(others)) * first[key] for key in ("parameters", "macs")}
        yield {**first, "layer": name, **sums}


def _shape_text(shape):
    if shape and isinstance(shape[0], tuple):
        return ", ".join(map(_shape_text, shape))
    return " x ".join(str(side) for side in shape if side is not None)


_FORMS = {  # heading -> text of a value; others are the value itself
    "parameters": "{:,}".format,
    "multiply-accumulates": "{:,}".format,
    "GMAC": lambda macs: f"{macs / 1e9:.2f}",
    "weights": ", ".join,
    "MiB": lambda size: f"{size / 2**20:,.0f}",
    "top-1 %": "{:.1f}".format,
    "output": _shape_text,
}


def _table(columns, rows, absent="-"):
    """Return the text of rows with these columns; `absent` is shown for a value that is None or empty."""
    left = [n for n, name in enumerate(columns) if any(isinstance(row[name], (str, list, tuple)) for row in rows)]
    cells = [
        [_FORMS.get(head, str)(row[name]) if row[name] not in (None, []) else absent for name, head in columns.items()]
        for row in rows
    ]
    return aligned([columns.values(), *cells], left)
