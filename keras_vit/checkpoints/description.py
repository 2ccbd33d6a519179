"""What a file of weights says about itself beside its arrays: numerics, labels, preprocessing."""

import dataclasses
import math

from keras_vit import checks
from keras_vit.checkpoints.names import LAYOUT_NAMES, LAYOUTS, Layout, detect, fold, rules_of
from keras_vit.checkpoints.numerics import from_metadata, numerics_of
from keras_vit.config import Preprocessing
from keras_vit.layers.position_grid import square_grid

LAYOUT_CHOICES = ("auto", *LAYOUT_NAMES, "keras")

_FAMILIES = {
    "vit": "a Vision Transformer",
    "bit": "a BiT ResNet",
    "swin": "a Swin Transformer",
    "axial_resnet": "an AxialResNet",
    None: "a model of this package",
}
_CLASSES = {"VisionTransformer": "vit", "BiTResNet": "bit", "SwinTransformer": "swin", "AxialResNet": "axial_resnet"}
_HF_MODEL_TYPES = {"vit": ("vit", "deit"), "swin": ("swin",)}
_HF_GELUS = {"gelu": "erf", "gelu_pytorch_tanh": "tanh", "gelu_new": "tanh", "quick_gelu": None}
_HF_INTERPOLATIONS = {0: "nearest", 2: "bilinear_antialias", 3: "bicubic"}  # numbers of PIL.Image.Resampling
_TIMM_INTERPOLATIONS = {"nearest": "nearest", "bilinear": "bilinear_antialias", "bicubic": "bicubic"}
_TIMM_CROP_MODES = ("center", "squash")


@dataclasses.dataclass(frozen=True)
class Description:
    """What is known of a checkpoint beside its arrays.

    Attributes:
        layout: name of the layout, or `keras` for files that Keras wrote.
        names: its `names.Layout`, None for `keras`.
        numerics: dict from fields of the config that no array shows, such as `gelu` and `epsilon`, to what the weights
            were trained with; without those that the file cannot tell.
        stem: the same for the `ResNetConfig` of a hybrid.
        note: what was assumed, or None.
        labels: tuple of class names, or None.
        preprocessing: `Preprocessing` that the file states, or None.
        classes: logits of the file's head, None without a head.
        representation_size: width of its `pre_logits`, None without.
    """

    layout: str
    names: Layout | None = None
    numerics: dict = dataclasses.field(default_factory=dict)
    stem: dict = dataclasses.field(default_factory=dict)
    note: str | None = None
    labels: tuple | None = None
    preprocessing: Preprocessing | None = None
    classes: int | None = None
    representation_size: int | None = None


def describe(checkpoint, family=None, layout="auto"):
    """Returns the `Description` of an open `Checkpoint`.

    Args:
        checkpoint: see `readers.open_checkpoint`.
        family: that of the model it is for, `family` of its config: `vit`, `bit`, `swin` or `axial_resnet`; None for
            whatever the file holds.
        layout: `auto` tells it from the names of the arrays; or one of `official`, `timm`, `huggingface`, `microsoft`
            (Swin), `keras`.

    Raises:
        ValueError: if no layout of the family is known for these names, or the file's config is not of the family.
    """
    checks.check_choice("layout", layout, LAYOUT_CHOICES)
    if layout == "auto":
        family, layout = _recognise(checkpoint, family)
    known = (*LAYOUTS.get(family, ()), "keras")
    if layout not in known:
        raise ValueError(f"layout must be one of {', '.join(known)} for this model; got layout={layout!r}")
    names = LAYOUTS[family][layout] if layout != "keras" else None
    try:
        description = _DESCRIBE[layout](layout, names, checkpoint, family)
    except (TypeError, KeyError, AttributeError) as error:  # a key absent, a list in the place of a number
        raise ValueError(
            f"the configuration that came with {str(checkpoint.path)!r} is not as it should be: {error!r}"
        ) from error
    width = {layer: _width(checkpoint, names, layer) for layer in ("head", "pre_logits")}
    return dataclasses.replace(description, classes=width["head"], representation_size=width["pre_logits"])


def _recognise(checkpoint, family):
    """(family, name of the layout) of a file, of this family unless that is None."""
    if checkpoint.kind == "h5":
        held = _CLASSES.get((checkpoint.config or {}).get("class_name"), family)
        found = {held: "keras"}
    else:
        found = {other: detect(checkpoint.entries, other) for other in LAYOUTS}
        found = {other: layout for other, layout in found.items() if layout is not None}
    for held, layout in found.items():
        if family in (None, held):
            return held, layout
    arrays = ", ".join(sorted(checkpoint.entries)[:5]) or "no array at all"
    is_of = f"is one of {_FAMILIES[next(iter(found))]}" if found else f"holds {arrays} ..."
    known = ", ".join((*LAYOUTS.get(family, LAYOUT_NAMES), "keras"))
    raise ValueError(
        f"{str(checkpoint.path)!r} must hold the weights of {_FAMILIES[family]} with names of {known}; it {is_of}"
    )


def _width(checkpoint, names, layer):
    """Width of the layer `head` or `pre_logits` in a file: the length of its bias."""
    if names is None:
        entry = checkpoint.entries.get(f"{layer}/1")
        return entry.shape[0] if entry else None
    theirs = {rule.theirs[0] for rule in rules_of(names, layer) if rule.ours.endswith("/bias")}
    entries = checkpoint.entries.items()
    return next((entry.shape[0] for name, entry in entries if fold(names, name) in theirs and entry.shape), None)


def _describe_layout(layout, names, checkpoint, family):
    numerics = {name: getattr(names, name) for name in ("gelu", "epsilon") if getattr(names, name) is not None}
    if family == "swin":
        numerics |= _window(checkpoint)
    stem = {} if names.stem_style is None else {"style": names.stem_style}
    stated, stated_of_stem = from_metadata(checkpoint)  # which files of this package have
    return Description(
        layout,
        names,
        {**numerics, **stated},
        {**stem, **stated_of_stem},
        preprocessing=_huggingface_preprocessing(checkpoint),
    )


def _window(checkpoint):
    """The window of a Swin Transformer: that of its largest table of biases, for small maps have smaller ones."""
    tables = [entry.shape for name, entry in checkpoint.entries.items() if name.endswith("_position_bias_table")]
    offsets = square_grid(max((shape[0] for shape in tables if len(shape) == 2), default=0))
    return {"window_size": (offsets[0] + 1) // 2} if offsets else {}


def _describe_keras(layout, names, checkpoint, family):
    if checkpoint.config is None:
        return Description(layout)
    values = checkpoint.config.get("config", {})
    config = values.get("config")
    if not isinstance(config, dict):
        hint = " (keras.models.load_model(path).encoder is one)" if "encoder" in values else ""
        raise ValueError(
            f"{str(checkpoint.path)!r} must hold a model of keras_vit with a config; "
            f"got {checkpoint.config.get('class_name')!r}{hint}"
        )
    numerics, stem = numerics_of(config)
    labels = values.get("labels")
    preprocessing = Preprocessing.from_dict(values["preprocessing"])
    labels = None if labels is None else tuple(labels)
    return Description(layout, None, numerics, stem, None, labels, preprocessing)


def _describe_timm(layout, names, checkpoint, family):
    """timm keeps in the `pretrained_cfg` of its config.json what the weights were trained with."""
    description, config = _describe_layout(layout, names, checkpoint, family), checkpoint.config or {}
    labels = config.get("label_names")
    return dataclasses.replace(
        description,
        labels=tuple(map(str, labels)) if isinstance(labels, list) else None,
        preprocessing=_timm_preprocessing(config.get("pretrained_cfg") or config) or description.preprocessing,
    )


def _timm_preprocessing(values):
    """timm's evaluation (`timm.data.create_transform`): resized to size / crop_pct, rounded down, then cropped."""
    if "input_size" not in values:
        return None
    *_, height, width = values["input_size"]
    sides = [math.floor(side / values.get("crop_pct", 0.875)) for side in (height, width)]
    for name, choices in (("interpolation", _TIMM_INTERPOLATIONS), ("crop_mode", _TIMM_CROP_MODES)):
        if values.get(name) not in (None, "", *choices):
            raise ValueError(
                f"{name} in the pretrained_cfg of config.json must be one of {list(choices)}; got {values[name]!r}"
            )
    return Preprocessing(
        size=tuple(sides) if values.get("crop_mode") == "squash" else max(sides),
        crop=(height, width),
        interpolation=_TIMM_INTERPOLATIONS[values.get("interpolation") or "bilinear"],
        mean=tuple(values.get("mean", (0.485, 0.456, 0.406))),
        std=tuple(values.get("std", (0.229, 0.224, 0.225))),
    )


def _describe_huggingface(layout, names, checkpoint, family):
    description = _describe_layout(layout, names, checkpoint, family)
    config, model_types = checkpoint.config, _HF_MODEL_TYPES[family]
    if config is None and from_metadata(checkpoint) != ({}, {}):
        return description
    if config is None:
        note = f"no config.json beside the file: gelu={names.gelu!r} and epsilon={names.epsilon} are assumed"
        return dataclasses.replace(description, note=note)
    if config.get("model_type", model_types[0]) not in model_types:
        raise ValueError(
            f"{str(checkpoint.path.parent / 'config.json')!r} must be of model_type "
            f"{' or '.join(map(repr, model_types))}; got {config['model_type']!r}"
        )
    gelu = _HF_GELUS.get(config.get("hidden_act", "gelu"))
    if gelu is None:
        known = [name for name, value in _HF_GELUS.items() if value]
        raise ValueError(f"hidden_act of config.json must be one of {known}; got {config['hidden_act']!r}")
    numerics = {"gelu": gelu, "epsilon": float(config.get("layer_norm_eps", names.epsilon))}
    return dataclasses.replace(description, numerics={**description.numerics, **numerics}, labels=_labels(config))


def _labels(config):
    """The class names of a config.json; None where they are the placeholders LABEL_0, LABEL_1, ..."""
    names = config.get("id2label") or {}
    try:
        labels = tuple(str(names[key]) for key in sorted(names, key=int))
    except ValueError:
        raise ValueError(f"id2label of config.json must have integer keys; got {list(names)[:3]}") from None
    return None if not labels or labels[0] == "LABEL_0" else labels


def _huggingface_preprocessing(checkpoint):
    """The protocol of a preprocessor_config.json; None without one."""
    values = checkpoint.preprocessor
    if values is None:
        return None
    size, crop = values.get("size", 224), values.get("crop_size")
    if isinstance(size, dict):
        size = size.get("shortest_edge") or (size["height"], size["width"])
    if isinstance(crop, dict):
        crop = (crop["height"], crop["width"])
    interpolation = _HF_INTERPOLATIONS.get(values.get("resample", 2))
    if interpolation is None:
        raise ValueError(
            f"resample of preprocessor_config.json must be one of {list(_HF_INTERPOLATIONS)}; "
            f"got {values['resample']!r}"
        )
    return Preprocessing(
        size=size if isinstance(size, int) else tuple(size),
        crop=crop if values.get("do_center_crop") else None,
        interpolation=interpolation,
        mean=tuple(values.get("image_mean", (0.5, 0.5, 0.5))),
        std=tuple(values.get("image_std", (0.5, 0.5, 0.5))),
    )


_DESCRIBE = {
    "official": _describe_layout,
    "timm": _describe_timm,
    "huggingface": _describe_huggingface,
    "microsoft": _describe_layout,
    "keras": _describe_keras,
}
