"""The table of named variants, the constructors generated from it, and `create_model`."""

import contextlib
import dataclasses
import fnmatch
import functools
import inspect
import pathlib
import re
from collections.abc import Callable, Sequence
from typing import Any

from keras_vit import checks
from keras_vit.checkpoints.description import describe
from keras_vit.checkpoints.load import read_ahead
from keras_vit.checkpoints.locate import fetch, locate
from keras_vit.checkpoints.match import WeightsMismatch, make_plan
from keras_vit.checkpoints.readers import open_checkpoint
from keras_vit.checkpoints.releases import BEST, aliases_of, list_releases
from keras_vit.checkpoints.releases.release import label_set
from keras_vit.compat.initial_values import build_at_once, build_deferred, initialise
from keras_vit.config import ImageConfig, Preprocessing, ResNetConfig
from keras_vit.files import read_table
from keras_vit.logs import LOGGER
from keras_vit.models import MODELS, build_model
from keras_vit.models.base import ImageModel
from keras_vit.typing import Pair, PathLike, Size

_WIDTHS = ("hidden_dim", "mlp_dim", "embed_dim")  # fields of an architecture that appear as sizes of its weight arrays


@dataclasses.dataclass(frozen=True)
class Variant:
    """A named architecture.

    Attributes:
        name: such as `"ViT-B_16"`.
        config_class: class of its config.
        source: publication that states its sizes.
        architecture: config fields that define the variant; they are not arguments of its constructor.
        defaults: arguments whose default differs from the config's default; they also replace None.
        preprocessing: `Preprocessing` at 224 pixels that the authors trained with, None for the official ViT one.
    """

    name: str
    config_class: type[ImageConfig]
    source: str
    architecture: dict[str, Any]
    defaults: dict[str, Any] = dataclasses.field(default_factory=dict)
    preprocessing: Preprocessing | None = None

    def config(self, **arguments: Any) -> ImageConfig:
        """Return the variant's config with these arguments."""
        defaults = {name: value for name, value in self.defaults.items() if arguments.get(name) is None}
        return self.config_class(**{"name": self.name, **self.architecture, **arguments, **defaults})


def _read_variants():
    """Yield the `Variant` of each line of variants.tsv."""
    configs = {config.__name__: config for config in MODELS}
    parsed = ("architecture", "defaults", "preprocessing")
    for row in read_table(pathlib.Path(__file__).with_name("variants.tsv"), parsed):
        architecture = {name: tuple(v) if isinstance(v, list) else v for name, v in row["architecture"].items()}
        if architecture.get("stem"):
            architecture["stem"] = ResNetConfig(**architecture["stem"])
        if "preprocessing" in row:
            row["preprocessing"] = Preprocessing(**row["preprocessing"])
        yield Variant(**{**row, "config_class": configs[row["config_class"]], "architecture": architecture})


VARIANTS: dict[str, Variant] = {variant.name: variant for variant in _read_variants()}


def list_models(pattern: str = "*") -> list[str]:
    """Return the names of the models, in the order of the table.

    Args:
        pattern: shell-style pattern that the names must match, such as `"ViT-*"`; case-sensitive.
    """
    return [name for name in VARIANTS if fnmatch.fnmatchcase(name, pattern)]


def list_weights(model: str) -> list[str]:
    """Return the names that `weights=` accepts for a model.

    The short names of releases come first, then the file names of published checkpoints. The short name `imagenet`, if
    present, is the first; it is the best published ImageNet-1k checkpoint whose image size is nearest to the model's.

    Args:
        model: name of the model, one of `list_models()`, or name of its constructor.

    Raises:
        ValueError: if the model is unknown.
    """
    model = variant_name("model", model)
    return [*_aliases(model), *(release.path for release in list_releases(model))]


def _aliases(model):
    names = dict.fromkeys(alias for release in list_releases(model) for alias in aliases_of(release) if alias)
    return sorted(names, key=lambda name: name != BEST)


def variant_name(argument: str, name: str) -> str:
    """Return the variant for its own or its constructor's name: `"ViT_B16"` -> `"ViT-B_16"`.

    Args:
        argument: name of the argument in error messages.
        name: name of the variant or of its constructor.

    Raises:
        ValueError: if there is no such variant.
    """
    constructors = {constructor_name(variant): variant for variant in VARIANTS}
    return checks.check_choice(argument, constructors.get(name, name) if isinstance(name, str) else name, VARIANTS)


def create_model(
    variant: str,
    /,
    *,
    weights: PathLike | None = None,
    preprocessing: Preprocessing | None = None,
    labels: Sequence[str] | None = None,
    name: str | None = None,
    image_size: Size = 224,
    **arguments: Any,
) -> ImageModel:
    """Build a model with random or pretrained weights.

    Args:
        variant: name of the model, one of `list_models()`, or of its constructor, such as `"ViT_B16"`.
        weights: None for random weights; `imagenet` for the best published ImageNet-1k checkpoint whose image size is
            nearest; the name of a release (`imagenet21k`, `imagenet21k+imagenet2012`, `augreg` and others, see
            `list_weights`) or of a published file; `hf://org/repo`; or a path (`.npz`, `.safetensors`, `.weights.h5`,
            `.keras`, or a folder with `config.json` and `model.safetensors`). A release sets the arguments that it
            needs, such as `distilled` or `window_size`, unless you pass them.
        preprocessing: `Preprocessing` of the images; None uses that of the weights, or the official one.
        labels: class names; None uses those of the weights.
        name: name of the Keras model.
        image_size: (height, width) of the input in pixels, or one integer; position embeddings are resized to it.
        **arguments: other fields of the variant's config, such as `classes` and `include_top`. Fields that you do not
            pass and that the checkpoint states, such as `gelu`, `epsilon` and `pooling`, take the checkpoint's value.

    Returns:
        A `VisionTransformer`, `SwinTransformer`, `BiTResNet` or `AxialResNet`, ready for `fit`.

    Raises:
        ValueError: if the variant is unknown, arguments contradict each other or the weights do not fit.
        TypeError: if the variant has no such argument.
        FileNotFoundError: if the weights file does not exist.
    """
    variant = variant_name("variant", variant)
    _check_arguments(variant, arguments)
    row = VARIANTS[variant]
    if weights is None:
        config = row.config(image_size=image_size, **arguments)
        about = {"preprocessing": preprocessing or _fitting(config, row.preprocessing), "labels": labels, "name": name}
        return build_at_once(lambda: build_model(config, **about))
    found = locate(weights, variant, image_size)
    arguments = {**(found.release.arguments if found.release else {}), **arguments}
    config = row.config(image_size=image_size, **arguments)  # checks the arguments before anything is downloaded
    path = fetch(found)
    checkpoint = open_checkpoint(path)
    description = describe(checkpoint, config.family)
    preprocessing = preprocessing or _fitting(config, (found.release or description).preprocessing, row.preprocessing)
    stated_labels, assumption = _labels(config, description, found.release)
    about = {"preprocessing": preprocessing, "labels": labels, "name": name}
    try:
        model, pending, plan, notes = _build(row, config, description, arguments, **about)
    except WeightsMismatch as error:
        raise _mismatch(error, variant, arguments, config, description) from None
    order = [id(variable) for variable in pending if id(variable) in plan.values]
    initialise(pending, read_ahead(plan.values, order))
    plan.note_on(model)
    if labels is None and plan.head_loaded:
        model.labels, notes = stated_labels, notes + assumption
    LOGGER.info(dataclasses.replace(plan.report, notes=plan.report.notes + notes))
    return model


def _build(row, config, description, given=None, **about):
    """Return a model with a file's config values, its uninitialised variables, the load plan, and notes on the file."""
    followed, notes = description.follow(config, row.architecture, given)
    model, pending = build_deferred(lambda: build_model(followed, **about))
    return model, pending, make_plan(model, description), notes


def _mismatch(error, variant, arguments, config, description):
    """Return the error for a file that does not fit the model; the message names the variants that it fits, if any.

    A variant of the config's family fits if its model at this image size does; no weights are read.
    """
    fitting, sides = [], {side for entry in description.entries.values() for side in entry.shape}
    for name, row in VARIANTS.items():
        widths = {row.architecture[name] for name in _WIDTHS if name in row.architecture}
        if row.config_class.family == config.family and widths <= sides:  # avoids building most variants
            with contextlib.suppress(ValueError):  # also raised if the patch size does not divide the image size
                _build(row, row.config(image_size=config.image_size), description)
                fitting.append(name)
    if variant in fitting:
        given = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
        return ValueError(f"{error}\n{variant} fits this file without one or more of the arguments {given}")
    if not fitting:
        return error
    return ValueError(
        f"{str(error.path)!r} holds the weights of {' or '.join(fitting)}, not of {variant}: "
        f"{len(error.problems)} differences, such as {error.problems[0].strip(' -!+')}"
    )


def _check_arguments(variant, arguments):
    known = list(_signature(variant).parameters)
    for name in arguments:
        if name not in known:
            hint = checks.suggestion(name, known, foreign=checks.FOREIGN_NAMES)
            raise TypeError(
                f"{constructor_name(variant)} got an unexpected keyword argument {name!r}{hint}; "
                f"the arguments are {', '.join(known)}"
            )


@functools.cache
def _signature(variant):
    """Return a constructor's signature: the arguments of `create_model` and the config fields with a default."""
    row = VARIANTS[variant]
    parameters = list(inspect.signature(create_model).parameters.values())[1:-1]
    keyword = inspect.Parameter.KEYWORD_ONLY
    for field in dataclasses.fields(row.config_class):
        # None stays None: the value that replaces it depends on the variant and the weights.
        default = field.default if field.default is None else row.defaults.get(field.name, field.default)
        if default is not dataclasses.MISSING and field.name not in row.architecture:
            annotation = Size if field.type == Pair else field.type
            parameters.append(inspect.Parameter(field.name, keyword, default=default, annotation=annotation))
    return inspect.Signature(parameters, return_annotation=MODELS[row.config_class])


def _fitting(config, *protocols):
    """Return the first preprocessing with the config's channels, at the config's image size; None if there is none."""
    fitting = (p for p in protocols if p is not None and p.channels == config.channels)
    return next((protocol.at(config.image_size) for protocol in fitting), None)


def _labels(config, description, release):
    """Return the labels of a loaded head, and a note if they are assumed."""
    if release is not None and release.labels is not None:
        return release.labels, ()
    if description.labels is not None and len(description.labels) == config.classes:
        return description.labels, ()
    imagenet = label_set("imagenet2012")
    if release is None and description.layout != "keras" and config.classes == len(imagenet):
        return imagenet, ("1000 classes: the labels are assumed to be those of ImageNet-2012",)
    return None, ()


def _constructor(variant):
    """Return the constructor of a variant, with its own signature and docstring."""

    def construct(**arguments):
        return create_model(variant.name, **arguments)

    construct.__name__ = construct.__qualname__ = constructor_name(variant.name)
    construct.__signature__ = _signature(variant.name)
    numbers = ", ".join(f"{name}={value}" for name, value in variant.architecture.items() if value is not None)
    construct.__doc__ = (
        f"Build {variant.name} ({variant.source}).\n\nIts architecture: {numbers}.\n\n"
        f"Published weights: {', '.join(_aliases(variant.name)) or 'none'}; `keras_vit.list_weights({variant.name!r})` "
        f"lists the files.\n\nArgs:\n{_argument_docs(variant.name)}\n\n"
        f"Returns:\n    A `keras_vit.{MODELS[variant.config_class].__name__}`.\n\n"
        "Raises:\n    ValueError: if a value is out of range, arguments contradict each other or the weights do not "
        "fit.\n"
        "    TypeError: if the model has no such argument.\n"
        "    FileNotFoundError: if the weights file does not exist.\n"
    )
    return construct


@functools.cache
def _argument_docs(variant):
    """Return the `Args` section of a constructor, taken from the docstrings of `create_model` and the configs."""
    docs = {}
    for documented in (ImageConfig, VARIANTS[variant].config_class, create_model):
        # `python -OO` removes docstrings
        arguments = (inspect.getdoc(documented) or "").partition("Args:\n")[2].partition("\n\n")[0]
        for entry in re.split(r"\n(?=    [\w*])", arguments):
            for name in entry.split(":")[0].split(","):
                docs[name.strip()] = entry
    lines = (docs.get(name, f"    {name}") for name in _signature(variant).parameters)
    return "\n".join(dict.fromkeys(lines))


def constructor_name(variant: str) -> str:
    """Convert the name of a variant to the name of its constructor: `"R50+ViT-B_16"` -> `"R50_ViT_B16"`."""
    return variant.replace("_", "").replace("-", "_").replace("+", "_")


CONSTRUCTORS: dict[str, Callable[..., ImageModel]] = {
    constructor_name(name): _constructor(variant) for name, variant in VARIANTS.items()
}
