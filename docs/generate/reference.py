"""The reference: docs/reference/*.md with signatures and docstrings for its lines `::: NAME`, and the command line."""

import contextlib
import functools
import inspect
import io
import json
import re

import griffe
from repository import REPOSITORY
from tables import table

from keras_vit.cli import VERBS
from keras_vit.cli.parser import parse
from keras_vit.zoo import CONSTRUCTORS, VARIANTS, constructor, constructor_name

# An entry: a public name, and the text and example that follow it.
_ENTRY = re.compile(r"^::: (\S+)\n(.*?)(?=^::: |^## |\Z)", re.MULTILINE | re.DOTALL)
# Functions that are imported on first use from a module of the same name, which mkdocstrings would show instead.
_DEFINITIONS = {
    "keras_vit.export": "keras_vit.serving.export.export",
    "keras_vit.analysis.overlay": "keras_vit.analysis.overlay.overlay",
    "keras_vit.evaluation.dense_probe": "keras_vit.evaluation.dense_probe.dense_probe",
    "keras_vit.evaluation.few_shot": "keras_vit.evaluation.few_shot.few_shot",
    "keras_vit.evaluation.linear_probe": "keras_vit.evaluation.linear_probe.linear_probe",
    "keras_vit.tasks.keypoints": "keras_vit.tasks.keypoints.keypoints",
}


@functools.cache
def pages():
    made = {f"reference/{name}": _ENTRY.sub(_entry, text) for name, text in _written().items()}
    return {**made, "reference/command_line.md": _command_line()}


def _written():
    folder = REPOSITORY / "docs" / "reference"
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.md"))}


@functools.cache
def public_names():
    """Return a dict from a name as a text may have it, with or without its package, to its entry."""
    entries = [match[1] for text in _written().values() for match in _ENTRY.finditer(text)]
    entries += [f"keras_vit.{name}" for name in CONSTRUCTORS]
    full = {name: name for name in entries}
    full |= {name.removeprefix("keras_vit."): name for name in entries if name.count(".") > 1}
    full |= {name.removeprefix("keras_vit.analysis."): name for name in entries if ".plots." in name}
    alone = {name.rpartition(".")[2]: name for name in entries}
    telling = {name: entry for name, entry in alone.items() if "_" in name or name[0].isupper()}  # not `train`
    return {**telling, **full}


def _entry(match):
    """What mkdocstrings turns into heading, signature and docstring; its template adds the text of the page."""
    name, text = match[1], match[2].replace("```python", "**Example**\n\n```python", 1)
    label = name.rpartition(".")[2]
    if label in CONSTRUCTORS:
        return text + _kind(VARIANTS[CONSTRUCTORS[label]])
    definition = _DEFINITIONS.get(name, name)
    anchor = "" if name == definition else f"[](){{#{name}}}\n\n"
    options = json.dumps({"heading": name, "toc_label": label, "extra": {"text": text}}).replace("<", "\\u003c")
    return f"{anchor}::: {definition}\n    options: {options}\n\n"


def _kind(shown):
    """The arguments of a kind of models, which are one config class or the published families, and all its models."""
    kind = (shown.config_class, shown.family is None)
    variants = [one for one in VARIANTS.values() if (one.config_class, one.family is None) == kind]
    first = constructor(constructor_name(variants[0].name))
    sections = {section.kind.value: section.value for section in _sections(first)}
    returned = inspect.signature(first).return_annotation.__name__
    parts = [f"**Returns**: `keras_vit.{returned}`.\n"]
    parts.append(table(("argument", "default", "meaning"), _arguments(first, sections["parameters"])))
    if "raises" in sections:
        parts.append(
            table(("raises", "when"), [(f"`{r.annotation}`", _line(r.description)) for r in sections["raises"]])
        )
    for variant in variants:
        name = constructor_name(variant.name)
        summary = next(section.value for section in _sections(constructor(name)) if section.kind.value == "text")
        own = ", ".join(f"`{argument}={value!r}`" for argument, value in variant.defaults.items())
        own = f" Defaults of its own: {own}." if own else ""
        parts.append(f"### keras_vit.{name} {{#keras_vit.{name}}}\n\n{summary}{own}\n")
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
    """The help of `keras-vit` and of each command."""
    helps = {"keras-vit": _help(), **{f"keras-vit {verb}": _help(verb) for verb in VERBS}}
    entries = "".join(f"## {name}\n\n``` {{.text .help}}\n{text}```\n\n" for name, text in helps.items())
    return f"# Command line\n\nThe output of `--help`.\n\n{entries}"


def _help(*words):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        parse([*words, "--help"])
    return out.getvalue()
