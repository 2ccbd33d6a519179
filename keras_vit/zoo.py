"""The constructors of the named variants, `create_model`, and `load`, which finds the variant of a file."""

import dataclasses
import fnmatch
import functools
import inspect
import os
import re
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar, cast

from keras_vit import checks
from keras_vit.checkpoints.assignments import RESIZE_CHOICES
from keras_vit.checkpoints.description import Description, description_of
from keras_vit.checkpoints.evidence import read_evidence
from keras_vit.checkpoints.foreign_names import find_foreign, foreign_names, near_names, task_models
from keras_vit.checkpoints.hub import PREFIX
from keras_vit.checkpoints.load import build_loaded, load_whole
from keras_vit.checkpoints.locate import fetch, locate
from keras_vit.checkpoints.match import make_plan
from keras_vit.checkpoints.readers import open_checkpoint
from keras_vit.checkpoints.releases import BEST, aliases_of, list_releases
from keras_vit.checkpoints.resolve import resolve
from keras_vit.checkpoints.task_files import CLASSIFIER_ARGUMENTS, build_task, plan_task, whole_of, with_size
from keras_vit.compat.initial_values import build_at_once, build_deferred
from keras_vit.config import ImageConfig, Preprocessing
from keras_vit.config.base import NESTED, flattened
from keras_vit.config.preprocessing import suited
from keras_vit.models import MODELS, TaskModel, build_model
from keras_vit.models.base import ImageModel
from keras_vit.models.derived import OPEN_SIZES
from keras_vit.models.derived import resize as resize_model
from keras_vit.typing import Pair, PathLike, Size
from keras_vit.variants import DESIGN, FAMILIES, VARIANTS
from keras_vit.words import check_arguments

BuildT = TypeVar("BuildT", bound=Callable[..., ImageModel])
_SIZES = ("auto", "file", "any", "native")
_NOT_OF_CONSTRUCTORS = ("variant", "pretrained", "arguments")  # arguments of `create_model`


def constructor_name(variant: str) -> str:
    """Convert the name of a variant to the name of its constructor: `"R50+ViT-B_16"` -> `"R50_ViT_B16"`."""
    return variant.replace("_", "").replace("-", "_").replace("+", "_")


CONSTRUCTORS: dict[str, str] = {constructor_name(name): name for name in VARIANTS}  # constructor -> variant


def list_models(pattern: str = "*", task: str | None = None) -> list[str]:
    """Return the names of the models, in the order of the table.

    Args:
        pattern: name of a model; shell-style pattern, such as `"ViT-*"`; or a part of a name, such as `"dino"`. Case
            does not matter. It is compared with the names of the models and their constructors, in timm and on the
            Hugging Face hub, such as `"vit_base_*"` and `"facebook/*"`; of task models also with the class.
        task: None for the names that `create_model` takes. `depth`, `segmentation`, `keypoints`, `detection` or `masks`
            for the published task models that answer with it, `any` for all of them: names that `load` takes.

    Raises:
        ValueError: if the task is unknown.
    """
    if task is None:
        names = {name: [name.lower(), constructor_name(name).lower()] for name in VARIANTS}
        for row in foreign_names():
            names[row.variant].append(row.name.lower())
    else:
        checks.check_choice("task", task, ("any", *dict.fromkeys(row["task"] for row in task_models().values())))
        chosen = [row for row in task_models().values() if task in ("any", row["task"])]
        names = {row["model"]: [row["model"].lower(), row["class"].lower()] for row in chosen}
    wholes_and_parts = pattern.lower(), f"*{pattern.lower()}*"
    found = ([name for name in names if fnmatch.filter(names[name], wanted)] for wanted in wholes_and_parts)
    return next(filter(None, found), [])


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
    name = CONSTRUCTORS.get(name, name) if isinstance(name, str) else name
    foreign = None if name in VARIANTS else find_foreign(name)
    name = foreign.variant if foreign else name
    if name in VARIANTS:
        return name
    if (row := task_models().get(name.removeprefix(PREFIX) if isinstance(name, str) else "")) is not None:
        raise ValueError(f"{argument}={name!r} is the name of a task model ({row['class']}): {row['open']} opens it")
    hint = near_names(name, (*VARIANTS, *CONSTRUCTORS))
    raise ValueError(
        f"{argument}={checks.quoted(name)} is the name of no model{hint}: it must be one of the {len(VARIANTS)} of "
        "keras_vit.list_models(), as keras-vit list shows them, or a Vision Transformer of timm or of the hub"
    )


def _or_for_any_size(build: BuildT) -> BuildT:
    """Return a function that builds a model; for the image sizes `"any"` and `"native"`, it resizes the model.

    Args:
        build: function of `image_size` and other arguments to a model; `"file"` is the size of the file's table.
    """

    @functools.wraps(build)
    def build_or_open(*args, image_size="auto", **arguments):
        if image_size is None:
            raise ValueError("image_size must not be None: image_size='any' takes images of any size")
        if image_size not in OPEN_SIZES:
            return build(*args, image_size=image_size, **arguments)
        model = build(*args, image_size="file", **arguments)  # `record_on` sets its max_tokens and table_method
        if isinstance(model, TaskModel):
            if image_size == "any" and model.config.fixed_size is None:
                return model
            raise ValueError(f"image_size must be a size or 'auto' for {model.name}; got {image_size!r}")
        pad, most = bool(model.config.field("embedding.pad")), model.max_tokens if image_size == "native" else None
        return resize_model(model, image_size, model.table_method or "auto", pad, max_tokens=most)

    return cast(BuildT, build_or_open)


@_or_for_any_size
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
            see `list_weights`) or of a published file, with its folder if several have it; `hf://org/repo`; or a path
            (`.npz`, `.safetensors`, `.weights.h5`, `.weights.json`, `.keras`, or a folder with `config.json` and
            `model.safetensors`). A release sets the arguments that it needs, such as `distilled` or `window_size`,
            unless you pass them.
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
    foreign = None if variant in VARIANTS else find_foreign(variant)
    variant = foreign.variant if foreign else variant_name("variant", variant)
    row = VARIANTS[variant]
    _check_arguments(constructor_name(variant), arguments, _signature(variant).parameters, row.config_class)
    if checks.check_flag("pretrained", pretrained):
        if weights is not None:
            raise ValueError(f"pretrained=True chooses the weights, so weights must be None; got {weights!r}")
        weights = foreign.weights if foreign else next(iter(list_weights(variant)), BEST)
    size = foreign.image_size if foreign and image_size == "auto" else _size(image_size, row.image_size)
    fields = {**(foreign.arguments if foreign else {}), **flattened(arguments)}
    if weights is None:
        config = row.config(image_size=size or row.image_size, **fields)
        if row.preprocessing is not None:
            preprocessing = preprocessing or suited(config, row.preprocessing)
        about: dict[str, Any] = {"preprocessing": preprocessing, "labels": labels, "name": name}
        return build_at_once(lambda: MODELS[row.config_class](config, **about))
    found = locate(weights, variant, size or row.image_size)
    fields = {**found.arguments, **fields}
    wanted = row.config(image_size=size or row.image_size, **fields)  # checks them before a download
    evidence = read_evidence(open_checkpoint(fetch(found)), wanted.network)
    if evidence.task is not None:
        raise ValueError(
            f"weights must be those of a {variant}; {str(evidence.checkpoint.path)!r} holds a task model "
            f"({evidence.task}): keras_vit.load({os.fspath(weights)!r}) opens it"
        )
    if not evidence.head_arrays:  # a file without a head gets a new one
        fields = {"include_top": wanted.include_top, **fields}
    resolved = resolve(evidence, variant, {"image_size": size, **fields}, found.release)
    return build_loaded(resolved, evidence, preprocessing=preprocessing, labels=labels, name=name)


@_or_for_any_size
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
    is logged, names it. A file of `save_weights` states its config. A `.keras` file is a whole model;
    `keras.models.load_model` also reads it, if `import keras_vit` comes first.

    Args:
        source: a folder with `config.json` and `model.safetensors` (transformers or timm) or `open_clip_config.json`; a
            `.safetensors`, `.npz` or `.keras` file; `hf://org/repo`; or the name of a published model, such as
            `"facebook/dinov2-base"`, `"vit_base_patch14_dinov2.lvd142m"` or `"facebook/sam-vit-base"`.
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
            Other `classes` make a new head. So do, for a task model, other `classes` of `EoMT` and `YOLOS`, or
            `num_keypoints` of `ViTPose`: arrays of other shapes than in the file get random values.

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
    path, variant, fields = _fetched(source, variant, image_size, arguments)
    about = {"preprocessing": preprocessing, "labels": labels, "name": name}
    if str(path).endswith(".keras"):
        return load_whole(path, {"variant": variant, "resize": None if resize == "auto" else resize, **about, **fields})
    evidence, resolved, given = _resolved(load, path, variant, fields)
    if evidence.task is not None:
        resolved = with_size(resolved, evidence, fields["image_size"])
        return build_task(resolved, evidence, resize, **about, given=given)
    return build_loaded(resolved, evidence, resize, **about)


def describe(source: PathLike, *, variant: str | None = None, **arguments: Any) -> Description:
    """Return what a file or repository holds, without reading its weights.

    Args:
        source: as in `load`.
        variant: as in `load`.
        **arguments: fields of the config, as in `load`, also `image_size`.

    Raises:
        FileNotFoundError, TypeError, ValueError: as `load`.
    """
    path, variant, fields = _fetched(source, variant, arguments.pop("image_size", "auto"), arguments)
    evidence, resolved, given = _resolved(describe, path, variant, fields)
    if evidence.task is None:
        report = make_plan(build_deferred(lambda: build_model(resolved.config))[0], evidence).report
    else:
        *_, report = plan_task(with_size(resolved, evidence, fields["image_size"]), evidence, given=given)
    return description_of(evidence, resolved, report)


def _fetched(source, variant, image_size, arguments):
    """Download a file if needed; return its path, its variant, and the fields that the user and its name set."""
    found = locate(source)
    if found.foreign is not None:
        variant, arguments = variant or found.foreign.variant, {**found.arguments, **arguments}
        image_size = found.foreign.image_size if image_size == "auto" else image_size
    return fetch(found), variant, {"image_size": _size(image_size, None), **flattened(arguments)}


def _resolved(function, path, variant, fields):
    """Return the `Evidence` of a file and its `Resolved`, with checked fields, and those for the head of a task."""
    evidence = read_evidence(open_checkpoint(path))
    whole = whole_of(evidence)
    parts = {name: name.partition(".")[0] for name in fields if whole.task is not None and fields[name] is not None}
    given = {name: fields[name] for name, part in parts.items() if part in CLASSIFIER_ARGUMENTS}
    fields = {name: value for name, value in fields.items() if name not in given}
    known = [*inspect.signature(function).parameters, *evidence.config_class.__dataclass_fields__]
    known.remove("arguments")
    _check_arguments(function.__name__, fields, known, evidence.config_class)
    variant = variant if variant is None or variant in FAMILIES else variant_name("variant", variant)
    return whole, resolve(evidence, variant, fields), given


def _size(image_size, usual):
    """Return the image size that the user gives, `usual` for `auto`, None if the file decides."""
    if not isinstance(image_size, str):
        return image_size
    return usual if checks.check_choice("image_size", image_size, _SIZES) == "auto" else None


def _check_arguments(function, arguments, known, config_class):
    nested = [name for name in config_class.__dataclass_fields__ if name in NESTED]
    given = {name: value for name, value in arguments.items() if name.partition(".")[0] not in nested}
    check_arguments(function, given, dict.fromkeys([*known, *nested]))


@functools.cache
def _signature(variant):
    """Return a constructor's signature: the arguments of `create_model`, and what the variant leaves open."""
    row = VARIANTS[variant]
    parameters = [p for p in inspect.signature(create_model).parameters.values() if p.name not in _NOT_OF_CONSTRUCTORS]
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


@functools.cache
def constructor(name: str) -> Callable[..., ImageModel]:
    """Return the constructor of a variant, with its own signature and docstring.

    Args:
        name: name of the constructor, a key of `CONSTRUCTORS`.
    """
    row = VARIANTS[CONSTRUCTORS[name]]

    def construct(**arguments):
        return create_model(row.name, **arguments)

    construct.__name__ = construct.__qualname__ = constructor_name(row.name)
    setattr(construct, "__signature__", _signature(row.name))  # noqa: B010 - mypy knows no such attribute
    numbers = ", ".join(f"{name}={value}" for name, value in row.architecture.items() if value is not None)
    construct.__doc__ = (
        f"Build the model {row.name}.\n\nSource: {row.source}. Its architecture: {numbers}.\n\n"
        f"Published weights: {', '.join(_aliases(row.name)) or 'none'}; `keras_vit.list_weights({row.name!r})` "
        f"lists the files.\n\nArgs:\n{_argument_docs(row.name)}\n\n"
        f"Returns:\n    A `keras_vit.{MODELS[row.config_class].__name__}`.\n\n"
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
