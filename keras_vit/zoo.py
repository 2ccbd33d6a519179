"""The constructors of the named variants, `create_model`, and `load`, which finds the variant of a file."""

import contextlib
import dataclasses
import fnmatch
import functools
import inspect
import os
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal, cast

from keras_vit import checks
from keras_vit.checkpoints.architecture import shown_fields
from keras_vit.checkpoints.description import describe
from keras_vit.checkpoints.foreign_names import find_foreign, foreign_names
from keras_vit.checkpoints.hub import PREFIX
from keras_vit.checkpoints.load import load_weights, load_whole, note_on, read_ahead
from keras_vit.checkpoints.locate import fetch, locate
from keras_vit.checkpoints.match import RESIZE_CHOICES, WeightsMismatch, make_plan
from keras_vit.checkpoints.readers import open_checkpoint
from keras_vit.checkpoints.releases import BEST, aliases_of, list_releases
from keras_vit.checkpoints.releases.release import label_set
from keras_vit.compat.initial_values import build_at_once, build_deferred, initialise
from keras_vit.config import ImageConfig, Preprocessing, ViTConfig
from keras_vit.config.base import NESTED, flattened
from keras_vit.identify import candidates, identify, own_size, suited
from keras_vit.logs import LOGGER
from keras_vit.models import MODELS, build_model
from keras_vit.models.base import ImageModel
from keras_vit.models.derived import or_for_any_size
from keras_vit.typing import Pair, PathLike, Size
from keras_vit.variants import DESIGN, FAMILIES, VARIANTS

_SIZES = ("auto", "file", "any", "native")
_WIDTHS = ("hidden_dim", "mlp_dim", "embed_dim")  # fields of an architecture that appear as sizes of its weight arrays


def list_models(pattern: str = "*") -> list[str]:
    """Return the names of the models, in the order of the table.

    Args:
        pattern: shell-style pattern that the names must match, such as `"ViT-*"`; case-sensitive.
    """
    return [name for name in VARIANTS if fnmatch.fnmatchcase(name, pattern)]


def list_weights(model: str) -> list[str]:
    """Return the names that `weights=` accepts for a model.

    The short names of releases come first, then the file names of published checkpoints and their repositories. The
    short name `imagenet`, if present, is the first. Of the published ImageNet-1k checkpoints with the image size that
    is nearest to the model's, it is the best.

    Args:
        model: name of the model, one of `list_models()`, or name of its constructor.

    Raises:
        ValueError: if the model is unknown.
    """
    model = variant_name("model", model)
    foreign = (row.weights for row in foreign_names() if row.variant == model and VARIANTS[model].family)
    return list(dict.fromkeys([*_aliases(model), *(release.path for release in list_releases(model)), *foreign]))


def _aliases(model):
    names = dict.fromkeys(alias for release in list_releases(model) for alias in aliases_of(release) if alias)
    return sorted(names, key=lambda name: name != BEST)


def variant_name(argument: str, name: str) -> str:
    """Return the variant that a name stands for, also one of another library: `"ViT_B16"` -> `"ViT-B_16"`.

    Args:
        argument: name of the argument in error messages.
        name: name of the variant or of its constructor, of a model of timm, with or without its tag, or of a repository
            on the Hugging Face hub.

    Raises:
        ValueError: if there is no such variant.
    """
    if (foreign := find_foreign(name)) is not None:
        return foreign.variant
    return checks.check_choice(argument, CONSTRUCTORS.get(name, name) if isinstance(name, str) else name, VARIANTS)


@or_for_any_size
def create_model(
    variant: str,
    /,
    *,
    weights: PathLike | None = None,
    preprocessing: Preprocessing | None = None,
    labels: Sequence[str] | None = None,
    name: str | None = None,
    image_size: Size | Literal["auto", "file", "any", "native"] = "auto",
    pretrained: bool = False,
    **arguments: Any,
) -> ImageModel:
    """Build a model with random or pretrained weights.

    Args:
        variant: name of the model, one of `list_models()`, or of its constructor, such as `"ViT_B16"`; or its name in
            timm (`"vit_base_patch14_dinov2.lvd142m"`) or on the Hugging Face hub (`"facebook/dinov2-base"`).
        weights: None for random weights; `imagenet` for the best of the published ImageNet-1k checkpoints with the
            nearest image size; the name of a release (`imagenet21k`, `imagenet21k+imagenet2012`, `augreg` and others,
            see `list_weights`) or of a published file; `hf://org/repo`; or a path (`.npz`, `.safetensors`,
            `.weights.h5`, `.weights.json`, `.keras`, or a folder with `config.json` and `model.safetensors`). A release
            sets the arguments that it needs, such as `distilled` or `window_size`, unless you pass them.
        preprocessing: `Preprocessing` of the images; None uses that of the weights, or the official one.
        labels: class names; None uses those of the weights.
        name: name of the Keras model.
        image_size: (height, width) of the input in pixels, or one integer; position embeddings are resized to it.
            `auto` is the size that the variant, or the name of timm or the hub, is used at, mostly 224; `file` is that
            of the position table of the weights. `any` takes images of any size, and `native` patches, see `resize`.
        pretrained: True loads the weights that a name of timm or the hub stands for; for our names, the first of
            `list_weights`.
        **arguments: other fields of the variant's config, such as `classes` and `include_top`. Fields that you do not
            pass and that the checkpoint states, such as `gelu`, `epsilon` and `pooling`, take the checkpoint's value;
            with neither `classes` nor `include_top`, the model has the head of the checkpoint. Other `classes` make a
            new head, which is zero.
            A field of `embedding`, `block`, `window` or `head` is passed in a dict: `head={"num_blocks": 4}`.

    Returns:
        A `VisionTransformer`, `SwinTransformer`, `BiTResNet` or `AxialResNet`, ready for `fit`.

    Raises:
        ValueError: if the variant is unknown, arguments contradict each other or the weights do not fit.
        TypeError: if the variant has no such argument.
        FileNotFoundError: if the weights file does not exist.
    """
    foreign = find_foreign(variant)
    variant, arguments = variant_name("variant", variant), dict(arguments)
    if checks.check_flag("pretrained", pretrained) and weights is not None:
        raise ValueError(f"pretrained=True chooses the weights, so weights must be None; got {weights!r}")
    if foreign is not None:
        arguments = {**foreign.arguments, **arguments}
        weights = foreign.weights if pretrained else weights
        image_size = foreign.image_size if image_size == "auto" else image_size
    else:
        weights = next(iter(list_weights(variant)), BEST) if pretrained else weights
        if isinstance(weights, str) and weights.startswith(PREFIX) and (foreign := find_foreign(weights)) is not None:
            arguments = {**foreign.arguments, **arguments}  # such as the GELU of timm
    row = VARIANTS[variant]
    _check_arguments(constructor_name(variant), arguments, _signature(variant).parameters, row.config_class)
    arguments = flattened(arguments)
    is_of_file = isinstance(image_size, str) and checks.check_choice("image_size", image_size, _SIZES) == "file"
    image_size = row.image_size if isinstance(image_size, str) else image_size
    if weights is None:
        config = row.config(image_size=image_size, **arguments)
        about = {"preprocessing": preprocessing or suited(config, row.preprocessing), "labels": labels, "name": name}
        return build_at_once(lambda: build_model(config, **about))
    found = locate(weights, variant, image_size)
    arguments = {**(found.release.arguments if found.release else {}), **arguments}
    config = row.config(image_size=image_size, **arguments)  # checks the arguments before anything is downloaded
    description = describe(open_checkpoint(fetch(found)), config.family)
    config = config.replace(image_size=own_size(description, config)) if is_of_file else config
    preprocessing = preprocessing or suited(config, (found.release or description).preprocessing, row.preprocessing)
    about = {"preprocessing": preprocessing, "labels": labels, "name": name}
    followed, notes = description.follow(config, row.architecture, arguments, _known(row))
    try:
        return _loaded(followed, description, notes, about, labels=_labels(followed, description, found.release))
    except WeightsMismatch as error:
        raise _mismatch(error, variant, arguments, config, description) from None


@or_for_any_size
def load(
    source: PathLike,
    *,
    variant: str | None = None,
    image_size: Size | Literal["auto", "file", "any", "native"] = "auto",
    resize: str = "auto",
    preprocessing: Preprocessing | None = None,
    labels: Sequence[str] | None = None,
    name: str | None = None,
    **arguments: Any,
) -> ImageModel:
    """Build the model that a file or repository holds, with its weights.

    The architecture follows from config.json and from the names and shapes of the arrays. What they leave open, such as
    the number of heads or the activation, comes from the published variant or family that they fit; the report, which
    is logged, names it. A file of `save_weights` states its config.

    Args:
        source: a folder with `config.json` and `model.safetensors` (transformers or timm) or `open_clip_config.json`; a
            `.safetensors`, `.npz` or `.keras` file; `hf://org/repo`; or the name of a published model, such as
            `"facebook/dinov2-base"` or `"vit_base_patch14_dinov2.lvd142m"`.
        variant: name of a variant, one of `list_models()`, or of a family, such as `"openclip"`, if several fit.
        image_size: (height, width) in pixels or one integer; `file` is the size of the position table. `auto` is the
            same; for the name of a published model, it is the size of that model. `any` takes images of any size, and
            `native` patches, see `resize`.
        resize: method of resizing position tables, see `load_weights`.
        preprocessing: `Preprocessing` of the images; None uses that of the file, or of the variant.
        labels: class names; None uses those of the file.
        name: name of the Keras model.
        **arguments: other fields of the config, which take precedence over the file, such as `num_heads`, `gelu` and
            `dtype`. A field of `embedding`, `block`, `window` or `head` is passed in a dict: `head={"map_heads": 8}`.

    Returns:
        The model. `model.preprocessing`, `model.labels` and `model.weights_source` are set.

    Raises:
        FileNotFoundError: if there is no such file.
        TypeError: if the config has no such field.
        ValueError: if the file is damaged or a pickle, its arrays fit no model, several variants fit and would give
            different outputs (the message lists them), or the file does not determine a field (the message names the
            argument to pass).
    """
    checks.check_choice("resize", resize, RESIZE_CHOICES)
    foreign = find_foreign(os.fspath(source)) if isinstance(source, (str, os.PathLike)) else None
    if foreign is not None and not os.path.exists(source):
        variant, source = variant or foreign.variant, foreign.weights
        arguments = {**foreign.arguments, **arguments}
        image_size = foreign.image_size if image_size == "auto" else image_size
    if isinstance(image_size, str) and checks.check_choice("image_size", image_size, _SIZES):
        image_size = cast(Any, None)  # the file's own
    if isinstance(source, str) and not (os.path.exists(source) or source.startswith(PREFIX) or "." in source):
        raise FileNotFoundError(
            "source must be a file, a folder, hf://org/repo or a name of timm or of the Hugging Face hub "
            f"(create_model takes our names); got {source!r}"
        )
    path = fetch(locate(source, "", image_size))
    about: dict[str, Any] = {"preprocessing": preprocessing, "labels": labels, "name": name}
    if str(path).endswith(".keras"):
        given = {"resize": None if resize == "auto" else resize, "image_size": image_size, **flattened(arguments)}
        return load_whole(path, {"variant": variant, **about, **given})
    description = describe(open_checkpoint(path))
    if variant is not None and variant not in FAMILIES:
        variant = variant_name("variant", variant)
    whole = description.model if description.model and variant in (None, description.model.name) else None
    if whole is None and (description.family != ViTConfig.family or description.names is None):
        fitting = [variant] if variant else _fitting_variants(description, image_size)
        if not fitting:
            raise ValueError(f"{str(path)!r} must hold the weights of a variant in list_models(); its arrays fit none")
        model = create_model(fitting[0], weights=path, image_size=image_size or "file", **about, **arguments)
        if resize != "auto":
            load_weights(model, path, resize=resize)
        return model
    config_class = type(whole) if whole else ViTConfig
    _check_arguments("load", arguments, config_class.__dataclass_fields__, config_class)
    config, usual, notes = identify(description, variant, flattened({"image_size": image_size, **arguments}))
    about["preprocessing"] = preprocessing or suited(config, description.preprocessing, usual and usual.preprocessing)
    return _loaded(config, description, notes, about, resize, _labels(config, description, None))


def _loaded(config, description, notes, about, resize="auto", labels=(None, ())):
    """Return a model with the weights of a described file, and log the report.

    Args:
        config: its config.
        description: `Description` of the file.
        notes: strings for the report.
        about: further arguments of the model.
        resize: see `load_weights`.
        labels: labels of the head of the file and notes about them, see `_labels`.
    """
    model, pending = build_deferred(lambda: build_model(config, **about))
    plan = make_plan(model, description, resize)
    initialise(pending, read_ahead(plan.values, [id(variable) for variable in pending if id(variable) in plan.values]))
    note_on(plan, model)
    if about["labels"] is None and plan.head_loaded:
        model.labels, assumption = labels
        notes += assumption
    LOGGER.info(dataclasses.replace(plan.report, notes=plan.report.notes + notes))
    return model


def _known(row):
    """Return the fields whose value is known of a variant's family, whatever the names in the file."""
    return tuple(row.defaults) if row.family else ()


def _fitting_variants(description, image_size):
    """Return the names of the variants that a file fits. Swins and others are built to find out, without weights."""
    if description.names is not None and description.family == ViTConfig.family:
        return candidates(shown_fields(description.names, description.entries, description.grid_size))
    fitting, sides = [], {side for entry in description.entries.values() for side in entry.shape}
    for name, row in VARIANTS.items():
        widths = {row.architecture[name] for name in _WIDTHS if name in row.architecture}
        if row.config_class.family == description.family and widths <= sides:  # avoids building most variants
            with contextlib.suppress(ValueError):  # also raised if the patch size does not divide the image size
                config = row.config(image_size=image_size or row.image_size)
                followed, _ = description.follow(config, row.architecture, {}, _known(row))
                model, _ = build_deferred(functools.partial(build_model, followed))
                make_plan(model, description)
                fitting.append(name)
    return fitting


def _mismatch(error, variant, arguments, config, description):
    """Return the error for a file that does not fit the model; the message names the variants that it fits, if any."""
    try:
        fitting = _fitting_variants(description, config.fixed_size)
    except ValueError:
        return error
    if variant in fitting and (arguments or len(fitting) == 1):
        given = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
        return ValueError(f"{error}\n{variant} fits this file without one or more of the arguments {given}")
    fitting = [name for name in fitting if name != variant]
    if not fitting:
        return error
    return ValueError(
        f"{str(error.path)!r} holds the weights of {' or '.join(fitting)}, not of {variant}: "
        f"{len(error.problems)} differences, such as {error.problems[0].strip(' -!+')}"
    )


def _check_arguments(function, arguments, known, config_class):
    nested = config_class.__dataclass_fields__.keys() & NESTED
    for name in arguments:
        if name not in known and name.partition(".")[0] not in nested:
            hint = checks.suggestion(name, known, foreign=checks.FOREIGN_NAMES)
            raise TypeError(
                f"{function} got an unexpected keyword argument {name!r}{hint}; the arguments are {', '.join(known)}"
            )


@functools.cache
def _signature(variant):
    """Return a constructor's signature: the arguments of `create_model` and the config fields with a default."""
    row = VARIANTS[variant]
    parameters = list(inspect.signature(create_model).parameters.values())[1:-2]
    own_default = {"default": row.image_size, "annotation": Size | Literal["any", "native"]}
    parameters = [p.replace(**own_default) if p.name == "image_size" else p for p in parameters]
    keyword = inspect.Parameter.KEYWORD_ONLY
    for field in dataclasses.fields(row.config_class):
        # None stays None: the value that replaces it depends on the variant and the weights.
        default = field.default if field.default is None else row.defaults.get(field.name, field.default)
        if default is not dataclasses.MISSING and field.name not in (*row.architecture, *DESIGN, "image_size"):
            annotation = Size if field.type == Pair else field.type
            parameters.append(inspect.Parameter(field.name, keyword, default=default, annotation=annotation))
    return inspect.Signature(parameters, return_annotation=MODELS[row.config_class])


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


@functools.cache
def constructor(name: str) -> Callable[..., ImageModel]:
    """Return the constructor of a variant, with its own signature and docstring.

    Args:
        name: name of the constructor, a key of `CONSTRUCTORS`.
    """
    variant = VARIANTS[CONSTRUCTORS[name]]

    def construct(**arguments):
        known = _signature(variant.name).parameters
        _check_arguments(constructor_name(variant.name), arguments, known, variant.config_class)
        return create_model(variant.name, **arguments)

    construct.__name__ = construct.__qualname__ = constructor_name(variant.name)
    setattr(construct, "__signature__", _signature(variant.name))  # noqa: B010 - mypy knows no such attribute
    numbers = ", ".join(f"{name}={value}" for name, value in variant.architecture.items() if value is not None)
    construct.__doc__ = (
        f"Build the model {variant.name}.\n\nSource: {variant.source}. Its architecture: {numbers}.\n\n"
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
    return "\n".join(dict.fromkeys(docs.get(name, f"    {name}") for name in _signature(variant).parameters))


def constructor_name(variant: str) -> str:
    """Convert the name of a variant to the name of its constructor: `"R50+ViT-B_16"` -> `"R50_ViT_B16"`."""
    return variant.replace("_", "").replace("-", "_").replace("+", "_")


CONSTRUCTORS: dict[str, str] = {constructor_name(name): name for name in VARIANTS}  # constructor -> variant
