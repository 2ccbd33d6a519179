"""The preprocessing of images that timm, OpenCLIP and the image processors of transformers state in JSON."""

import math
import re

from keras_vit import checks
from keras_vit.checkpoints.config_keys import checked_value, flag, one_of
from keras_vit.checks import check_integers
from keras_vit.config import Preprocessing
from keras_vit.files import read_toml
from keras_vit.logs import LOGGER

_PROCESSORS = read_toml("checkpoints/image_processors.toml")
_LONGEST, _STEP = 1333, 16  # of the longer side, and of both sides, for YOLOS
HF_INTERPOLATIONS = {0: "nearest", 2: "bilinear_antialias", 3: "bicubic"}  # numbers of PIL.Image.Resampling


def timm_preprocessing(values):
    """Return timm's evaluation preprocessing (`timm.data.create_transform`): resize to size / crop_pct, crop."""
    if "input_size" not in values:
        return None
    *_, height, width = check_integers("input_size in pretrained_cfg", values["input_size"])
    ratio = checks.check_positive("crop_pct in pretrained_cfg", values.get("crop_pct", 0.875))
    size = tuple(math.floor(side / ratio) for side in (height, width))
    return torchvision_preprocessing("timm", values, size, (height, width), " in pretrained_cfg")


def torchvision_preprocessing(library, values, size, crop, place=""):
    """Return the preprocessing of a library that resizes with torchvision; `place` is the end of keys in messages."""
    row = _PROCESSORS[library]
    values = {**row, **{key: value for key, value in values.items() if value not in (None, "")}}
    is_squashed = one_of(f"{row['mode']}{place}", values[row["mode"]], row["modes"])
    return Preprocessing(
        size=size if is_squashed else max(size),
        crop=crop,
        interpolation=one_of(f"interpolation{place}", values["interpolation"], row["interpolations"]),
        rounding="torchvision",
        mean=tuple(values["mean"]),
        std=tuple(values["std"]),
    )


def huggingface_preprocessing(values, class_name=None):
    """Return the preprocessing of an image processor of transformers, None for {}.

    Args:
        values: its JSON.
        class_name: name of its class if no value states it.
    """
    if not values:
        return None
    kind = str(values.get("image_processor_type") or values.get("feature_extractor_type") or class_name)
    kind = re.sub("(FeatureExtractor|ImageProcessor)(Fast|Pil)?$", "", kind)
    defaults = _PROCESSORS.get(kind, _PROCESSORS["ViT"])
    values = defaults | {key: value for key, value in values.items() if value is not None}
    size, rule = _of_task(kind, values) or _size(values)
    is_centred = rule.get("sizing") == "center_padding"
    unit = 255 if is_centred and values.get("do_rescale") is False else 1  # of mean and std
    for key in () if is_centred else ("do_resize", "do_rescale"):
        checked_value(key, values.get(key, True), [True])
    scale = checks.check_positive("rescale_factor", values.get("rescale_factor", 1 / 255))
    if not math.isclose(scale, 1 / 255, rel_tol=1e-4):
        raise ValueError(f"rescale_factor must be 1 / 255 for a model of keras_vit; got {scale!r}")
    crop = values.get("crop_size") if flag(values, "do_center_crop") else None
    if isinstance(crop, dict):
        crop = (crop["height"], crop["width"])
    if isinstance(size, int) and crop is None and "sizing" not in rule:
        LOGGER.warning(f"the file states the shorter side, {size}, and no crop: images are resized to {size} x {size}")
    is_normalised = checks.check_flag("do_normalize", values.get("do_normalize", True))
    return Preprocessing(
        size=size,
        crop=crop,
        pad=_is_padded(values) and "sizing" not in rule,
        interpolation=one_of("resample", values["resample"], HF_INTERPOLATIONS),
        rounding="transformers",
        **rule,
        mean=tuple(number / unit for number in values["image_mean"]) if is_normalised else (0.0, 0.0, 0.0),
        std=tuple(number / unit for number in (values["image_std"] if is_normalised else (1.0, 1.0, 1.0))),
    )


def _of_task(kind, values):
    """Return the size that an image processor of a task resizes to, and its rule; None for other processors."""
    size = values.get("size")
    if kind == "DPT" and values.get("do_resize") is False and flag(values, "do_pad"):  # facebook/dpt-dinov2
        return _size(values)[0], {"sizing": "center_padding", "multiple": values.get("size_divisor") or 1}
    if kind == "DPT":
        checked_value("do_pad", values.get("do_pad") or False, [False])
        rule = "nearest" if flag(values, "keep_aspect_ratio") else "stretch"
        return _size(values)[0], {"sizing": rule, "multiple": values["ensure_multiple_of"]}
    if kind in ("Owlv2", "VitPose"):
        on = {"Owlv2": "do_pad", "VitPose": "do_affine_transform"}[kind]
        checked_value(on, values.get(on, True), [True])
        return _size(values)[0], {"sizing": "square" if kind == "Owlv2" else "box"}
    if kind not in ("Yolos", "Eomt"):
        return None
    if not isinstance(size, dict):  # a file of 2022
        size = {"shortest_edge": size, "longest_edge": values.get("max_size", _LONGEST)}
    if "height" in size:
        return (size["height"], size["width"]), {"sizing": "stretch"}
    shortest, longest = size["shortest_edge"], size.get("longest_edge")
    if kind == "Yolos":
        return shortest, {"sizing": "shortest", "longest": longest, "multiple": _STEP}
    if flag(values, "do_split_image"):
        return shortest, {"sizing": "windows"}
    checked_value("do_pad", flag(values, "do_pad"), [True])
    checked_value("longest_edge in size", longest, [shortest])
    return shortest, {"sizing": "longest"}


def _is_padded(values):
    """Return whether images keep their aspect ratio inside a padded square."""
    return isinstance(values.get("size"), dict) and "longest_edge" in values["size"]


def _size(values):
    """Return the size that an image processor resizes to, and the arguments for images in their own aspect ratios."""
    size = values.get("size")
    if "max_num_patches" in values:  # SigLIP 2 NaFlex: the square of most patches
        most, step = (checks.check_integer(key, values[key]) for key in ("max_num_patches", "patch_size"))
        return (math.isqrt(most) * step,) * 2, {"patch_size": step, "max_tokens": most}
    if _is_padded(values):
        checked_value("do_pad", values.get("do_pad", True), [True])
        padded = values.get("pad_size") or {"height": size["longest_edge"], "width": size["longest_edge"]}
        checked_value("longest_edge in size", size["longest_edge"], [max(padded["height"], padded["width"])])
        size = padded
    if isinstance(size, dict):
        return size.get("shortest_edge") or (size["height"], size["width"]), {}
    return (checks.check_pair("size", size) if values.get("is_square") else size), {}
