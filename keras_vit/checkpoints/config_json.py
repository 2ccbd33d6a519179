"""What a weights file states in JSON: our metadata, Keras's config, and the files of others beside it."""

import contextlib
import dataclasses
import math
import re
from typing import Any

from keras_vit import checks
from keras_vit.checks import check_integers, check_string
from keras_vit.config import Preprocessing
from keras_vit.config.unseen import KEY, from_text, unseen

_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclasses.dataclass(frozen=True)
class Stated:
    """What a file states.

    Attributes:
        stated: dict from fields of our configs to values; a stem's fields are `stem.NAME`. See `config.unseen`.
        grid_size: (rows, columns) of its position table, None if it states no image size.
        labels: tuple of class names, or None.
        preprocessing: `Preprocessing`, or None.
        notes: tuple of strings about the file.
    """

    stated: dict[str, Any] = dataclasses.field(default_factory=dict)
    grid_size: tuple | None = None
    labels: tuple | None = None
    preprocessing: Preprocessing | None = None
    notes: tuple = ()


def read_stated(checkpoint, family, layout):
    """Return the `Stated` of a file: config.json wins over our metadata.

    Args:
        checkpoint: see `readers.open_checkpoint`.
        family: family of the arrays, `family` of a config.
        layout: name of the layout of the arrays.

    Raises:
        ValueError: if a value has the wrong type or the package does not support the architecture; the message names
            the file.
    """
    path, values = checkpoint.path, checkpoint.config
    if layout == "keras" and values is not None:
        return _read_keras(path, values)
    theirs = Stated()
    if values is not None:
        with _named(repr(str(path.parent / "config.json"))):
            if any(key in values for key in _TIMM_KEYS):
                theirs = _read_timm(values, family, layout, checkpoint.entries)
            else:
                theirs = _read_huggingface(values, family)
    with _named(repr(str(path.parent / "preprocessor_config.json"))):
        preprocessing = theirs.preprocessing or _huggingface_preprocessing(checkpoint.preprocessor)
    with _named(f"the metadata of {str(path)!r}"):
        ours = from_text(checkpoint.metadata.get(KEY), str(path))
        grid_size = theirs.grid_size
        if grid_size is None and "grid_size" in ours:
            grid_size = checks.check_pair("grid_size", ours["grid_size"])
        if "preprocessing" in ours:
            # The same weights fit a model with `include_preprocessing` and one without. A preprocessor_config.json has
            # a single bilinear interpolation, so it cannot distinguish two of ours.
            exact = Preprocessing.from_dict({**ours["preprocessing"], "in_model": False})
            alike = {**vars(exact), "interpolation": "bilinear_antialias"}
            if preprocessing is None or (exact.interpolation == "bilinear" and vars(preprocessing) == alike):
                preprocessing = exact
    return Stated({**ours["config"], **theirs.stated}, grid_size, theirs.labels, preprocessing, theirs.notes)


@contextlib.contextmanager
def _named(file):
    """Add the file to an error; the errors from Python, such as a missing key, mean an invalid structure."""
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        reason = error if type(error) is ValueError else f"its structure is invalid: {error!r}"
        raise ValueError(f"{file}: {reason}") from error


def _read_keras(path, values):
    """Return the contents of the config.json in a `.keras` file, which has the whole config of its model."""
    with _named(f"config.json in {str(path)!r}"):
        held = values.get("config", {})
        if not isinstance(held.get("config"), dict):
            hint = " (keras.models.load_model(path).encoder is one)" if "encoder" in held else ""
            got = values.get("class_name")
            raise ValueError(f"the file must hold a model of keras_vit with a config; got {got!r}{hint}")
        labels = None if held["labels"] is None else tuple(held["labels"])
        return Stated(unseen(held["config"]), None, labels, Preprocessing.from_dict(held["preprocessing"]))


def _checked(values, table, irrelevant, place=""):
    """Return ({our field: value}, sorted unknown keys); `table` has our field, or None, and the check of each key."""
    fields = {field: check(f"{key}{place}", values[key]) for key, (field, check) in table.items() if key in values}
    fields.pop(None, None)
    return fields, sorted(key for key in values if key not in table and not irrelevant.fullmatch(key))


# --- Hugging Face


def _one_of(choices):
    def check(name, value):
        if not isinstance(value, (str, int)) or value not in choices:
            raise ValueError(f"{name} must be one of {list(choices)}; got {value!r}")
        return choices[value]

    return check


def _only(*allowed):
    """Return a check that accepts only these values, which are the ones that the package supports."""

    def check(name, value):
        if not any(value is one or (type(value) is type(one) and value == one) for one in allowed):
            expected = " or ".join(map(repr, allowed))
            raise ValueError(f"{name} must be {expected} for a model of keras_vit; got {value!r}")

    return check


_HF_MODEL_TYPES = {"vit": ("vit", "deit"), "swin": ("swin",)}
HF_GELUS = {"gelu": "erf", "gelu_pytorch_tanh": "tanh", "gelu_new": "tanh"}

# key -> our field (None for a value that is checked and needs no field), check
_HF_SHARED = {
    "hidden_act": ("gelu", _one_of(HF_GELUS)),
    "layer_norm_eps": ("epsilon", checks.check_positive),
    "num_channels": ("channels", checks.check_integer),
    "patch_size": ("patch_size", checks.check_pair),
    "qkv_bias": ("qkv_bias", checks.check_flag),
}
HF_KEYS = {
    "vit": {
        **_HF_SHARED,
        "hidden_size": ("hidden_dim", checks.check_integer),
        "num_hidden_layers": ("num_layers", checks.check_integer),
        "num_attention_heads": ("num_heads", checks.check_integer),
        "intermediate_size": ("mlp_dim", checks.check_integer),
        "pooler_act": (None, _only("tanh")),
    },
    "swin": {
        **_HF_SHARED,
        "embed_dim": ("embed_dim", checks.check_integer),
        "depths": ("depths", check_integers),
        "num_heads": ("num_heads", check_integers),
        "window_size": ("window_size", checks.check_integer),
        "mlp_ratio": ("mlp_ratio", checks.check_positive),
        "use_absolute_embeddings": (None, _only(False)),
    },
}
# Keys about training or labels, and keys that follow from others.
_HF_IRRELEVANT = re.compile(
    r"_.*|architectures|model_type|transformers_version|(torch_)?dtype|id2label|label2id|num_labels|problem_type|"
    r"finetuning_task|image_size|initializer_range|encoder_stride|pooler_output_size|\w*dropout\w*|drop_path_rate|"
    r"path_norm|layerdrop|output_\w+|out_(features|indices)|return_dict|use_cache|torchscript|num_layers|hidden_size|"
    r"stage_names|is_encoder_decoder|is_decoder|chunk_size_feed_forward|tie_word_embeddings|patch_norm"
)


def _read_huggingface(values, family):
    known = _HF_MODEL_TYPES.get(family, ())
    model_type = values.get("model_type", known[0] if known else None)
    if model_type not in known:
        raise ValueError(f"model_type must be {' or '.join(map(repr, known)) or None}; got {model_type!r}")
    fields, unread = _checked(values, HF_KEYS[family], _HF_IRRELEVANT)
    grid = _grid(values.get("image_size"), fields.get("patch_size"), "image_size")
    notes = (f"config.json also has {', '.join(unread)}, which keras_vit does not read",) if unread else ()
    return Stated(fields, grid, _labels(values), None, notes)


def _grid(image_size, patch_size, name):
    if image_size is None or patch_size is None:
        return None
    return tuple(side // step for side, step in zip(checks.check_pair(name, image_size), patch_size, strict=True))


def _labels(values):
    """Return the class names, or None for the placeholders LABEL_0, LABEL_1, ..."""
    names = values.get("id2label") or {}
    try:
        labels = tuple(str(names[key]) for key in sorted(names, key=int))
    except ValueError:
        raise ValueError(f"id2label must have integer keys; got {list(names)[:3]}") from None
    return None if not labels or labels[0] == "LABEL_0" else labels


# --- timm

_TIMM_HEADS = {"tiny": 3, "little": 5, "small": 6, "medium": 8, "mediumd": 8, "betwixt": 10, "base": 12}
_TIMM_HEADS |= dict.fromkeys(("large", "huge", "giant", "gigantic"), 16)
_SWIN_HEADS = {"tiny": (3, 6, 12, 24), "small": (3, 6, 12, 24), "base": (4, 8, 16, 32), "large": (6, 12, 24, 48)}
_GAP = {"pooling": "gap"}

# pattern of `architecture` -> heads by size, further words that its name may have and their meaning. Other words stand
# for unsupported architectures: rpn (post-norm), xp (parallel blocks), rope, clip (QuickGELU), and so on.
_WORDS: dict[str, dict[str, Any]] = {"in21k": {}, "in22k": {}, "miil": {}, "sam": {}, "dinov2": {}, "gap": _GAP}
_WORDS |= {f"reg{count}": {"num_registers": count} for count in (1, 4, 8)} | {"siglip": {"pooling": "map"}}
_TIMM_ARCHITECTURES = {
    "vit": (
        (r"(vit|deit|deit3)_(?P<size>[a-z]+)_(distilled_)?patch(?P<patch_size>\d+)(?P<words>(_\w+)?)", _TIMM_HEADS),
        (r"vit_(?P<size>[a-z]+)_r(\d*)_s\d+(_p\d+)?(?P<words>(_\w+)?)", _TIMM_HEADS),
    ),
    "swin": (
        (r"swin_(?P<size>[a-z]+)_patch(?P<patch_size>\d+)_window(?P<window_size>\d+)(?P<words>(_\w+)?)", _SWIN_HEADS),
    ),
}
_TIMM_KEYS = ("architecture", "model_args", "global_pool", "pretrained_cfg", "input_size")  # timm < 0.9: last
# a Swin has a list with one number per stage
_HEADS: dict[bool, Any] = {False: checks.check_integer, True: check_integers}
_TIMM_POOLS = {"token": "token", "avg": "gap", "map": "map", "": "unpooled"}

# key of `model_args` -> our field (None for a value that needs no field), check
_TIMM_ARGUMENTS = {
    "num_heads": ("num_heads", lambda name, value: _HEADS[isinstance(value, list)](name, value)),
    "embed_dim": ("hidden_dim", checks.check_integer),
    "depth": ("num_layers", checks.check_integer),
    "depths": ("depths", check_integers),
    "patch_size": ("patch_size", checks.check_pair),
    "window_size": ("window_size", checks.check_integer),
    "in_chans": ("channels", checks.check_integer),
    "qkv_bias": ("qkv_bias", checks.check_flag),
    "qk_norm": ("qk_norm", checks.check_flag),
    "reg_tokens": ("num_registers", lambda name, value: checks.check_integer(name, value, minimum=0)),
    "class_token": ("class_token", checks.check_flag),
    "global_pool": ("pooling", _one_of(_TIMM_POOLS)),
    "act_layer": ("gelu", _one_of({"gelu": "erf", "gelu_tanh": "tanh"})),
    "norm_layer": ("epsilon", _one_of({"layernorm": 1e-6})),
    "final_norm": (None, _only(True)),
    "proj_bias": (None, _only(True)),
    "pre_norm": (None, _only(False)),
    "scale_attn_norm": (None, _only(False)),
    "scale_mlp_norm": (None, _only(False)),
    "dynamic_img_size": (None, _only(False, True)),
    "img_size": (None, checks.check_pair),
}
# Keys about training or initial values, and keys that the arrays show.
_TIMM_IRRELEVANT = re.compile(
    r"(\w+_)?drop_(path_)?rate|weight_init|fix_init|strict_img_size|dynamic_img_pad|num_classes|init_values|"
    r"no_embed_class|fc_norm|mlp_ratio|always_partition"
)


def _read_timm(values, family, layout, entries):
    architecture, arguments = values.get("architecture"), values.get("model_args") or {}
    fields = {} if architecture is None else _of_architecture(architecture, family)
    if values.get("global_pool") is not None:
        arguments = {"global_pool": values["global_pool"], **arguments}
    checked, unknown = _checked(arguments, _TIMM_ARGUMENTS, _TIMM_IRRELEVANT, " in model_args")
    if unknown:
        raise ValueError(f"{unknown[0]} in model_args is not supported by keras_vit; got {arguments[unknown[0]]!r}")
    fields |= checked
    if layout == "timm" and "pooling" in fields:  # the array names show a class token next to another pooling
        fields.setdefault("class_token", "cls_token" in entries)
        fields["norm_position"] = "after_pooling" if "fc_norm.weight" in entries else "before_pooling"
    grid = _grid(arguments.get("img_size"), fields.get("patch_size"), "img_size in model_args")
    labels = values.get("label_names")
    labels = tuple(map(str, labels)) if isinstance(labels, list) else None
    return Stated(fields, grid, labels, _timm_preprocessing(values.get("pretrained_cfg") or values, "pretrained_cfg"))


def _of_architecture(architecture, family):
    """Return the fields that the name of a timm architecture states."""
    for pattern, heads in _TIMM_ARCHITECTURES.get(family, ()):
        match = re.fullmatch(pattern, check_string("architecture", architecture))
        if match is None or match["size"] not in heads:
            continue
        words = [word for word in match["words"].split("_") if word and not word.isdecimal()]
        if set(words) <= set(_WORDS):
            fields = {"num_heads": heads[match["size"]]}
            for name, make in (("patch_size", lambda side: (side, side)), ("window_size", int)):
                if name in match.groupdict():
                    fields[name] = make(int(match[name]))
            for word in words:
                fields |= _WORDS[word]
            return fields
    raise ValueError(
        "architecture must be one that keras_vit builds, such as 'vit_base_patch16_224', "
        f"'deit3_small_patch16_224' or 'swin_tiny_patch4_window7_224'; got {architecture!r}"
    )


_TIMM_INTERPOLATIONS = {"nearest": "nearest", "bilinear": "bilinear_antialias", "bicubic": "bicubic"}
_TIMM_CROP_MODES = {"center": False, "squash": True}


def _timm_preprocessing(values, name):
    """Return timm's evaluation preprocessing (`timm.data.create_transform`): resize to size / crop_pct, then crop.

    The quotient is rounded down.
    """
    if "input_size" not in values:
        return None
    *_, height, width = check_integers(f"input_size in {name}", values["input_size"])
    ratio = checks.check_positive(f"crop_pct in {name}", values.get("crop_pct", 0.875))
    sides = [math.floor(side / ratio) for side in (height, width)]
    is_squashed = _one_of(_TIMM_CROP_MODES)(f"crop_mode in {name}", values.get("crop_mode") or "center")
    interpolation = values.get("interpolation") or "bilinear"
    return Preprocessing(
        size=tuple(sides) if is_squashed else max(sides),
        crop=(height, width),
        interpolation=_one_of(_TIMM_INTERPOLATIONS)(f"interpolation in {name}", interpolation),
        mean=tuple(values.get("mean", _IMAGENET_MEAN)),
        std=tuple(values.get("std", _IMAGENET_STD)),
    )


# --- preprocessor_config.json

HF_INTERPOLATIONS = {0: "nearest", 2: "bilinear_antialias", 3: "bicubic"}  # numbers of PIL.Image.Resampling


def _check_scale(name, value):
    if value is not True and not math.isclose(checks.check_positive(name, value), 1 / 255, rel_tol=1e-4):
        raise ValueError(f"{name} must be 1 / 255 for a model of keras_vit; got {value!r}")


_HF_STEPS = {"do_resize": _only(True), "do_rescale": _only(True), "rescale_factor": _check_scale}


def _huggingface_preprocessing(values):
    if values is None:
        return None
    for key, check in _HF_STEPS.items():
        check(key, values.get(key, True))
    size, crop = values.get("size", 224), values.get("crop_size")
    if isinstance(size, dict):
        size = size.get("shortest_edge") or (size["height"], size["width"])
    if isinstance(crop, dict):
        crop = (crop["height"], crop["width"])
    is_normalised = checks.check_flag("do_normalize", values.get("do_normalize", True))
    return Preprocessing(
        size=size if isinstance(size, int) else tuple(size),
        crop=crop if values.get("do_center_crop") else None,
        interpolation=_one_of(HF_INTERPOLATIONS)("resample", values.get("resample", 2)),
        mean=tuple(values.get("image_mean", (0.5, 0.5, 0.5))) if is_normalised else (0.0, 0.0, 0.0),
        std=tuple(values.get("image_std", (0.5, 0.5, 0.5))) if is_normalised else (1.0, 1.0, 1.0),
    )
