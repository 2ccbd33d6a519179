"""The reference: one page per package, an entry per public name, written from signatures and docstrings."""

import contextlib
import dataclasses
import functools
import inspect
import io

import griffe
from tables import table

import keras_vit
from keras_vit import analysis, data, demo, evaluation, layers, serving, training
from keras_vit.analysis import plots
from keras_vit.cli import VERBS
from keras_vit.cli.parser import parse
from keras_vit.zoo import CONSTRUCTORS, VARIANTS, constructor, constructor_name


@dataclasses.dataclass(frozen=True)
class Page:
    """A page of the reference.

    Attributes:
        title: its heading.
        text: what the names on it are for.
        names: dict from the public name to the module and attribute that define it, which have the docstring.
    """

    title: str
    text: str
    names: dict


def _of(package, names=None):
    """Return the public names of a package, or only `names`."""
    full = [f"{package.__name__}.{name}" for name in names or package.__all__ if name != "plots"]
    return {name: name for name in full}


def _top(*names):
    return _of(keras_vit, names)


PAGES = {
    "models": Page(
        "Models",
        "Configs become functional Keras models; each model keeps its `config`, `preprocessing` and `labels`.",
        _top(
            "create_model",
            "load",
            "load_masked_autoencoder",
            "list_models",
            "list_weights",
            "VisionTransformer",
            "SwinTransformer",
            "BiTResNet",
            "AxialResNet",
            "MaskedAutoencoder",
            "SelfDistillation",
            "MaskedPatchPrediction",
            "Distiller",
            "Model",
            "clone",
            "feature_extractor",
            "freeze",
            "add_lora",
            "merge_lora",
            "LoraReport",
            "resize",
            "zero_shot",
            "TextEncoder",
        ),
    ),
    "configs": Page(
        "Configs",
        "What a model is and what it eats: frozen, checked dataclasses, to a dict and back.",
        _top(
            "ViTConfig",
            "EmbeddingConfig",
            "BlockConfig",
            "RotaryConfig",
            "HeadConfig",
            "WindowConfig",
            "DecoderConfig",
            "ResNetConfig",
            "SwinConfig",
            "BiTConfig",
            "AxialResNetConfig",
            "Preprocessing",
        ),
    ),
    "layers": Page(
        "Layers",
        "Keras layers that can be used by themselves; all of them are saved and loaded by Keras.",
        _top(*layers.__all__),
    ),
    "weights": Page(
        "Weights",
        "Files of others and of ours into a model and back.",
        _top("load_weights", "LoadReport", "save_weights", "resize_position_embedding"),
    ),
    "data": Page(
        "Data",
        "Images from anywhere to batches that follow from seed and step.",
        {"keras_vit.preprocess": "keras_vit.data.images.preprocess", **_of(data)},
    ),
    "training": Page(
        "Training",
        "Recipes, runs that survive kills, and devices.",
        {
            "keras_vit.train": "keras_vit.training.train",
            "keras_vit.distribution": "keras_vit.training.distribution.distribution",
            **_of(training, [name for name in training.__all__ if name != "train"]),
        },
    ),
    "evaluation": Page(
        "Evaluation",
        "Answers, accuracies, and what features are worth.",
        {
            "keras_vit.predict": "keras_vit.evaluation.predict",
            "keras_vit.evaluate": "keras_vit.evaluation.evaluate",
            **_of(evaluation, [name for name in evaluation.__all__ if name not in ("predict", "evaluate")]),
        },
    ),
    "analysis": Page("Analysis", "What a model looks at, as arrays.", _of(analysis)),
    "plots": Page("Plots", "The paper's figures; each function returns a matplotlib `Figure`.", _of(plots)),
    "serving": Page(
        "Serving",
        "Models for TensorFlow Serving and for other runtimes.",
        {"keras_vit.export": "keras_vit.serving.export", **_of(serving, ["ExportError"])},
    ),
    "demo": Page("Demo", "The page that `keras-vit demo` opens.", _of(demo)),
}


@functools.cache
def pages():
    made = {f"reference/{name}.md": _page(page) for name, page in PAGES.items()}
    return {**made, "reference/constructors.md": _constructors(), "reference/command_line.md": _command_line()}


@functools.cache
def public_names():
    """Return a dict from a name as a text may have it, with or without its package, to its entry."""
    entries = [name for page in PAGES.values() for name in page.names]
    entries += [f"keras_vit.{name}" for name in CONSTRUCTORS]
    full = {name: name for name in entries}
    full |= {name.removeprefix("keras_vit."): name for name in entries if name.count(".") > 1}
    full |= {name.removeprefix("keras_vit.analysis."): name for name in entries if ".plots." in name}
    alone = {name.rpartition(".")[2]: name for name in entries}
    telling = {name: entry for name, entry in alone.items() if "_" in name or name[0].isupper()}  # not `train`
    return {**telling, **full}


def _page(page):
    entries = "".join(_entry(name, definition) for name, definition in page.names.items())
    return f"# {page.title}\n\n{page.text}\n\n{entries}"


def _entry(name, definition):
    """What mkdocstrings turns into heading, signature and docstring; the public name can be linked to as well."""
    anchor = "" if name == definition else f"[](){{#{name}}}\n\n"
    label = name.rpartition(".")[2]
    return f"{anchor}::: {definition}\n    options:\n      heading: {name}\n      toc_label: {label}\n\n"


_CONSTRUCTORS = """# Constructors

One function per model of the zoo, all with keyword arguments alone; `keras_vit.create_model` takes the same with the
name of the model first. Models of one kind have the same arguments, described above them.

"""


def _constructors():
    """Those of one config class share their arguments, and so do those of the published families."""
    kinds = {}
    for variant in VARIANTS.values():
        kinds.setdefault((variant.config_class, variant.family is not None), []).append(variant)
    return _CONSTRUCTORS + "".join(_kind(variants) for variants in kinds.values())


def _kind(variants):
    """The arguments of a kind of models, then an entry per model."""
    first = constructor(constructor_name(variants[0].name))
    sections = {section.kind.value: section.value for section in _sections(first)}
    returned = inspect.signature(first).return_annotation.__name__
    kind = variants[0].config_class.__name__.removesuffix("Config")
    parts = [f"## {kind} models\n" if variants[0].family is None else f"## {kind} models of published families\n"]
    parts.append(f"**Returns**: `keras_vit.{returned}`.\n")
    parts.append(table(("argument", "default", "meaning"), _arguments(first, sections["parameters"])))
    if "raises" in sections:
        parts.append(
            table(("raises", "when"), [(f"`{r.annotation}`", _line(r.description)) for r in sections["raises"]])
        )
    for variant in variants:
        name = constructor_name(variant.name)
        summary = next(section.value for section in _sections(constructor(name)) if section.kind.value == "text")
        own = ", ".join(f"`{argument}={value!r}`" for argument, value in variant.defaults.items())
        parts.append(f"### keras_vit.{name} {{#keras_vit.{name}}}\n\n{summary}\n")
        parts.append(f"Defaults of its own: {own}.\n" if own else "")
    return "\n".join(parts) + "\n"


def _sections(function):
    return griffe.parse_google(griffe.Docstring(inspect.getdoc(function)), warnings=False)


def _arguments(function, described):
    """A row per argument; the docstring may describe several at once, `a, b: ...`."""
    meanings = {name.strip(): item.description for item in described for name in item.name.split(",")}
    for name, parameter in inspect.signature(function).parameters.items():
        yield f"`{name}`", f"`{parameter.default!r}`", _line(meanings[name])


def _line(text):
    return " ".join(text.split())


def _command_line():
    """What `--help` says, whole and of every verb."""
    helps = {"keras-vit": _help(), **{f"keras-vit {verb}": _help(verb) for verb in VERBS}}
    entries = "".join(f"## {name}\n\n```text\n{text}```\n\n" for name, text in helps.items())
    return f"# Command line\n\nWhat `--help` says.\n\n{entries}"


def _help(*words):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        parse([*words, "--help"])
    return out.getvalue()
