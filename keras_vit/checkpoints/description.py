"""The metadata of a weights file: config fields, labels, preprocessing."""

import dataclasses
import re

from keras_vit import checks
from keras_vit.checkpoints.config_json import read_config_json, read_preprocessor_config
from keras_vit.checkpoints.names import LAYOUT_NAMES, LAYOUTS, Layout, detect, fold, rules_of
from keras_vit.config import Preprocessing
from keras_vit.config.unseen import KEY, from_text, unseen
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


@dataclasses.dataclass(frozen=True)
class Description:
    """The metadata of a checkpoint.

    Attributes:
        layout: name of the layout, or `keras` for files from Keras.
        names: its `names.Layout`, None for `keras`.
        stated: dict from config fields to the values that the file states; a stem's fields are `stem.NAME`. See
            `config.unseen`.
        usual: the same for values that the layout implies and the file does not state, such as `gelu`.
        shown: fields that the names and shapes of the arrays show, but not as a value.
        grid_size: (rows, columns) of its position table if stated, or None.
        notes: tuple of strings about the file.
        labels: tuple of class names, or None.
        preprocessing: `Preprocessing` that the file states, or None.
        classes: number of logits of the file's head, None without a head.
        representation_size: width of its `pre_logits`, None without this layer.
    """

    layout: str
    names: Layout | None = None
    stated: dict = dataclasses.field(default_factory=dict)
    usual: dict = dataclasses.field(default_factory=dict)
    shown: tuple = ()
    grid_size: tuple | None = None
    notes: tuple = ()
    labels: tuple | None = None
    preprocessing: Preprocessing | None = None
    classes: int | None = None
    representation_size: int | None = None

    @property
    def known(self):
        """Return the values that replace config fields that the user does not set."""
        return {**self.usual, **self.stated}


def describe(checkpoint, family=None, layout="auto"):
    """Return the `Description` of an open `Checkpoint`.

    Args:
        checkpoint: see `readers.open_checkpoint`.
        family: `family` of the model's config: `vit`, `bit`, `swin` or `axial_resnet`; None accepts any family.
        layout: `auto` recognises it by the array names; or one of `official`, `timm`, `huggingface`, `microsoft`
            (Swin), `keras`.

    Raises:
        ValueError: if no layout of the family matches the array names, or the file's config is of another family.
    """
    checks.check_choice("layout", layout, LAYOUT_CHOICES)
    if layout == "auto":
        family, layout = _recognise(checkpoint, family)
    known = (*LAYOUTS.get(family, ()), "keras")
    if layout not in known:
        raise ValueError(f"layout must be one of {', '.join(known)} for this model; got layout={layout!r}")
    names = LAYOUTS[family][layout] if layout != "keras" else None
    if names is not None:
        description = _describe_arrays(layout, names, checkpoint, family)
    elif checkpoint.config is not None:
        description = _describe_keras(checkpoint)
    else:
        ours = _metadata(checkpoint)
        description = Description(layout, stated=ours["config"], preprocessing=_exact(ours, checkpoint))
    width = {layer: _width(checkpoint, names, layer) for layer in ("head", "pre_logits")}
    return dataclasses.replace(description, classes=width["head"], representation_size=width["pre_logits"])


def _recognise(checkpoint, family):
    """Return (family, name of the layout) of a file; `family` restricts the search unless it is None."""
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
    is_of = f"holds those of {_FAMILIES[next(iter(found))]}" if found else f"holds {arrays} ..."
    known = ", ".join((*LAYOUTS.get(family, LAYOUT_NAMES), "keras"))
    raise ValueError(
        f"{str(checkpoint.path)!r} must hold the weights of {_FAMILIES[family]} with names of {known}; it {is_of}"
    )


def _width(checkpoint, names, layer):
    """Return the width of the layer `head` or `pre_logits` in a file: the length of its bias."""
    if names is None:
        entry = checkpoint.entries.get(f"{layer}/1")
        return entry.shape[0] if entry else None
    theirs = {rule.theirs[0] for rule in rules_of(names, layer) if rule.ours.endswith("/bias")}
    entries = checkpoint.entries.items()
    return next((entry.shape[0] for name, entry in entries if fold(names, name) in theirs and entry.shape), None)


def _describe_arrays(layout, names, checkpoint, family):
    """Describe a file from another library by our metadata and the JSON files next to it."""
    ours, beside = _metadata(checkpoint), read_config_json(checkpoint, family)
    stated = {**ours["config"], **beside.fields}
    if layout == "timm" and "pooling" in beside.fields:  # the array names show a class token next to another pooling
        stated.setdefault("class_token", "cls_token" in checkpoint.entries)
        is_after = "fc_norm.weight" in checkpoint.entries
        stated.setdefault("norm_position", "after_pooling" if is_after else "before_pooling")
    usual = {"gelu": names.gelu, "epsilon": names.epsilon, "stem.style": names.stem_style}
    usual |= _window(checkpoint) if family == "swin" else {}
    folded = [fold(names, name) for name in checkpoint.entries]
    unread = f"config.json also has {', '.join(beside.unread)}, which keras_vit does not read"
    return Description(
        layout,
        names,
        stated,
        usual={name: value for name, value in usual.items() if value is not None and name not in stated},
        shown=tuple(field for field, mark in names.shows.items() if any(map(re.compile(mark).search, folded))),
        grid_size=beside.grid_size or _pair(ours.get("grid_size"), checkpoint),
        notes=(unread,) if beside.unread else (),
        labels=beside.labels,
        preprocessing=_preprocessing(ours, beside, checkpoint),
    )


def _metadata(checkpoint):
    return from_text(checkpoint.metadata.get(KEY), str(checkpoint.path))


def _pair(value, checkpoint):
    return None if value is None else checks.check_pair(f"grid_size in the metadata of {checkpoint.path}", value)


def _preprocessing(ours, beside, checkpoint):
    """Return the preprocessing from the JSON files next to the weights, or from our metadata if that is more precise.

    A preprocessor_config.json has a single bilinear interpolation, so it cannot distinguish two of ours.
    """
    theirs, exact = beside.preprocessing or read_preprocessor_config(checkpoint), _exact(ours, checkpoint)
    if theirs is None or exact is None:
        return theirs or exact
    alike = exact.interpolation == "bilinear" and exact.replace(interpolation="bilinear_antialias") == theirs
    return exact if alike else theirs


def _exact(ours, checkpoint):
    try:
        stated = ours.get("preprocessing")
        # The same weights fit a model with `include_preprocessing` and one without.
        return None if stated is None else Preprocessing.from_dict(stated).replace(in_model=False)
    except (TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"the preprocessing in the metadata of {str(checkpoint.path)!r}: {error}") from error


def _window(checkpoint):
    """Return the window of a Swin Transformer: that of its largest bias table, as small maps have smaller windows."""
    tables = [entry.shape for name, entry in checkpoint.entries.items() if name.endswith("_position_bias_table")]
    offsets = square_grid(max((shape[0] for shape in tables if len(shape) == 2), default=0))
    return {"window_size": (offsets[0] + 1) // 2} if offsets else {}


def _describe_keras(checkpoint):
    """Describe a `.keras` file, whose config.json has the whole config of its model."""
    values = checkpoint.config.get("config", {})
    config = values.get("config") if isinstance(values, dict) else None
    if not isinstance(config, dict):
        hint = " (keras.models.load_model(path).encoder is one)" if "encoder" in values else ""
        raise ValueError(
            f"{str(checkpoint.path)!r} must hold a model of keras_vit with a config; "
            f"got {checkpoint.config.get('class_name')!r}{hint}"
        )
    try:
        preprocessing = Preprocessing.from_dict(values["preprocessing"])
        labels = None if values["labels"] is None else tuple(values["labels"])
        return Description("keras", stated=unseen(config), labels=labels, preprocessing=preprocessing)
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"config.json in {str(checkpoint.path)!r} is not as Keras writes it: {error!r}") from error
