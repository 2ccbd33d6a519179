"""What a file of weights says about itself beside its arrays: GELU, epsilon, labels, preprocessing."""

import dataclasses

from keras_vit import checks
from keras_vit.checkpoints.names import LAYOUTS, detect, fold
from keras_vit.config import Preprocessing

LAYOUT_CHOICES = ("auto", *LAYOUTS, "keras")

_HF_GELUS = {"gelu": "erf", "gelu_pytorch_tanh": "tanh", "gelu_new": "tanh", "quick_gelu": None}
_HF_INTERPOLATIONS = {0: "nearest", 2: "bilinear_antialias", 3: "bicubic"}  # numbers of PIL.Image.Resampling


@dataclasses.dataclass(frozen=True)
class Description:
    """What is known of a checkpoint beside its arrays.

    Attributes:
        layout: key of `LAYOUTS`, or `keras` for files that Keras wrote.
        gelu, epsilon: what the weights were trained with; None where the file cannot tell.
        note: what was assumed, or None.
        labels: tuple of class names, or None.
        preprocessing: `Preprocessing` that the file states, or None.
        classes: logits of the file's head, None without a head.
        representation_size: width of its `pre_logits`, None without.
    """

    layout: str
    gelu: str | None = None
    epsilon: float | None = None
    note: str | None = None
    labels: tuple | None = None
    preprocessing: Preprocessing | None = None
    classes: int | None = None
    representation_size: int | None = None


def describe(checkpoint, layout="auto"):
    """Returns the `Description` of an open `Checkpoint`.

    Args:
        checkpoint: see `readers.open_checkpoint`.
        layout: `auto` tells it from the names of the arrays; or one of `official`, `timm`, `huggingface`, `keras`.

    Raises:
        ValueError: if no layout is known for these names or the file's config is not that of a ViT.
    """
    checks.check_choice("layout", layout, LAYOUT_CHOICES)
    if layout == "auto":
        layout = "keras" if checkpoint.kind == "h5" else detect(checkpoint.entries)
    if layout is None:
        names = ", ".join(sorted(checkpoint.entries)[:5]) or "no array at all"
        raise ValueError(
            f"{str(checkpoint.path)!r} must hold the weights of a Vision Transformer with official, timm or "
            f"Hugging Face names; it holds {names} ..."
        )
    try:
        description = _DESCRIBE.get(layout, _describe_family)(layout, checkpoint)
    except (TypeError, KeyError, AttributeError) as error:  # a key absent, a list in the place of a number
        raise ValueError(
            f"the configuration that came with {str(checkpoint.path)!r} is not as it should be: {error!r}"
        ) from error
    width = {layer: _width(checkpoint, layout, layer) for layer in ("head", "pre_logits")}
    return dataclasses.replace(description, classes=width["head"], representation_size=width["pre_logits"])


def _width(checkpoint, layout, layer):
    """Width of the layer `head` or `pre_logits` in a file: the length of its bias."""
    if layout == "keras":
        entry = checkpoint.entries.get(f"{layer}/1")
        return entry.shape[0] if entry else None
    theirs = next(rule.theirs[0] for rule in LAYOUTS[layout].rules if rule.ours == f"{layer}/bias")
    entries = checkpoint.entries.items()
    return next((entry.shape[0] for name, entry in entries if fold(layout, name) == theirs and entry.shape), None)


def _describe_family(layout, checkpoint):
    family, note = LAYOUTS[layout], None
    if layout == "huggingface":
        note = f"no config.json beside the file: gelu={family.gelu!r} and epsilon={family.epsilon} are assumed"
    return Description(layout, family.gelu, family.epsilon, note, preprocessing=_huggingface_preprocessing(checkpoint))


def _describe_keras(layout, checkpoint):
    if checkpoint.config is None:
        return Description(layout)
    values = checkpoint.config.get("config", {})
    config = values.get("config")
    if not isinstance(config, dict):
        raise ValueError(
            f"{str(checkpoint.path)!r} must hold a model of keras_vit; got {checkpoint.config.get('class_name')!r}"
        )
    labels = values.get("labels")
    preprocessing = Preprocessing.from_dict(values["preprocessing"])
    labels = None if labels is None else tuple(labels)
    return Description(layout, config.get("gelu"), config.get("epsilon"), None, labels, preprocessing)


def _describe_huggingface(layout, checkpoint):
    config = checkpoint.config
    if config is None:
        return _describe_family(layout, checkpoint)
    if config.get("model_type", "vit") != "vit":
        raise ValueError(
            f"{str(checkpoint.path.parent / 'config.json')!r} must be of model_type 'vit'; got {config['model_type']!r}"
        )
    gelu = _HF_GELUS.get(config.get("hidden_act", "gelu"))
    if gelu is None:
        known = [name for name, value in _HF_GELUS.items() if value]
        raise ValueError(f"hidden_act of config.json must be one of {known}; got {config['hidden_act']!r}")
    epsilon = float(config.get("layer_norm_eps", LAYOUTS[layout].epsilon))
    preprocessing = _huggingface_preprocessing(checkpoint)
    return Description(layout, gelu, epsilon, None, _labels(config), preprocessing)


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


_DESCRIBE = {"keras": _describe_keras, "huggingface": _describe_huggingface}
