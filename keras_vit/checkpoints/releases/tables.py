"""The rows of published checkpoints, one table per place of publication; AugReg's are in augreg.py."""

import dataclasses
from typing import Any

from keras_vit.checkpoints.releases.release import CLASSES, HUB, Release
from keras_vit.config import Preprocessing

VIT_BUCKET = "https://storage.googleapis.com/vit_models"
_BIT_BUCKET = "https://storage.googleapis.com/bit_models"

# --- google-research/vision_transformer, except AugReg

_MIB, _GIB = 2**20, 2**30

# directory, which is also the alias -> data set of the head, source, rows of
# (model, suffix of the file name, image size, representation size, bytes as listed by the bucket)
_VIT_FILES = {
    "imagenet21k": (
        "imagenet21k",
        "arXiv 2010.11929",
        (
            ("ViT-B_16", "", 224, 768, 393.69 * _MIB),
            ("ViT-B_32", "", 224, 768, 400.01 * _MIB),
            ("ViT-B_8", "", 224, 768, 393.72 * _MIB),
            ("ViT-L_16", "", 224, 1024, 1.22 * _GIB),
            ("ViT-L_32", "", 224, 1024, 1.23 * _GIB),
            ("ViT-H_14", "", 224, 1280, 2.46 * _GIB),
            ("R50+ViT-B_16", "", 224, 768, 439.85 * _MIB),
            ("R26+ViT-B_32", "", 224, 768, 450.23 * _MIB),
            ("R50+ViT-L_32", "", 224, 1024, 1.31 * _GIB),
        ),
    ),
    "imagenet21k+imagenet2012": (
        "imagenet2012",
        "arXiv 2010.11929",
        (
            ("ViT-B_16", "", 384, None, 331.4 * _MIB),
            ("ViT-B_16", "-224", 224, None, 330.29 * _MIB),
            ("ViT-B_32", "", 384, None, 336.89 * _MIB),
            ("ViT-B_8", "", 384, None, 334.78 * _MIB),
            ("ViT-L_16", "", 384, None, 1.14 * _GIB),
            ("ViT-L_16", "-224", 224, None, 1.13 * _GIB),
            ("ViT-L_32", "", 384, None, 1.14 * _GIB),
            ("R50+ViT-B_16", "", 384, None, 377.57 * _MIB),
        ),
    ),
    "sam": (
        "imagenet2012",
        "arXiv 2106.01548 (sharpness-aware minimisation)",
        (
            ("ViT-B_16", "", 224, None, 330.3 * _MIB),
            ("ViT-B_32", "", 224, None, 336.61 * _MIB),
            ("ViT-L_16", "", 224, None, 1.13 * _GIB),
            ("ViT-L_32", "", 224, None, 1.14 * _GIB),
            ("ViT-S_16", "", 224, None, 252.57 * _MIB),  # three times its weights, perhaps with optimizer state
        ),
    ),
}


def _vit_releases():
    for directory, (data_set, source, rows) in _VIT_FILES.items():
        for model, suffix, image_size, representation_size, size in rows:
            yield Release(
                model=model,
                address=f"{VIT_BUCKET}/{directory}/{model}{suffix}.npz",
                alias=directory,
                data_set=data_set,
                preprocessing=Preprocessing(size=image_size),
                bytes=round(size),
                source=f"{source}, github.com/google-research/vision_transformer",
                representation_size=representation_size,
            )


# --- Repositories of the hub: facebook's DeiT (arXiv 2012.12877) and microsoft's Swin (arXiv 2103.14030)

# At 224 pixels both crop by 0.875. At 384 the authors' code of DeiT resizes the shorter side to 384 / 0.875, rounded
# down; that of Swin does not crop (TEST.CROP in its configurations). The preprocessor_config.json of Swin's
# repositories has no crop at either size.
_IMAGENET: dict[str, Any] = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225), "interpolation": "bicubic"}
_AT_224 = Preprocessing(size=256, crop=224, **_IMAGENET)
_DEIT_PROTOCOLS = {224: _AT_224, 384: Preprocessing(size=438, crop=384, **_IMAGENET)}
_SWIN_PROTOCOLS = {224: _AT_224, 384: Preprocessing(size=384, **_IMAGENET)}

# model, name of the size, image size, whether distilled, parameters
_DEIT_TABLE = (
    ("DeiT-Ti_16", "tiny", 224, False, 5_717_416),
    ("DeiT-Ti_16", "tiny", 224, True, 5_910_800),
    ("DeiT-S_16", "small", 224, False, 22_050_664),
    ("DeiT-S_16", "small", 224, True, 22_436_432),
    ("DeiT-B_16", "base", 224, False, 86_567_656),
    ("DeiT-B_16", "base", 384, False, 86_859_496),
    ("DeiT-B_16", "base", 224, True, 87_338_192),
    ("DeiT-B_16", "base", 384, True, 87_630_032),
)


def _deit_releases():
    for model, name, image_size, is_distilled, parameters in _DEIT_TABLE:
        distilled = "-distilled" if is_distilled else ""
        yield Release(
            model=model,
            address=f"{HUB}facebook/deit-{name}{distilled}-patch16-{image_size}",
            alias=f"imagenet2012{distilled}",
            data_set="imagenet2012",
            preprocessing=_DEIT_PROTOCOLS[image_size],
            bytes=4 * parameters,
            source="arXiv 2012.12877, github.com/facebookresearch/deit",
            arguments={"distilled": True} if is_distilled else {},
        )


_WINDOW_SIZE = 7  # of the models in the zoo
_FINE_TUNED = "imagenet22k+imagenet2012"

# model, name of the size, image size, window size, suffix of the repository's name, alias, parameters.
# Base and Large with 1000 classes were converted from timm, whose files of these names were the authors' fine-tuned
# ones (`*_22kto1k.pth`); Tiny and Small were trained on ImageNet-1k only.
_SWIN_TABLE = (
    ("Swin-T", "tiny", 224, 7, "", "imagenet2012", 28_288_354),
    ("Swin-S", "small", 224, 7, "", "imagenet2012", 49_606_258),
    ("Swin-B", "base", 224, 7, "", _FINE_TUNED, 87_768_224),
    ("Swin-B", "base", 384, 12, "", _FINE_TUNED, 87_903_584),
    ("Swin-B", "base", 224, 7, "-in22k", "imagenet22k", 109_130_249),
    ("Swin-B", "base", 384, 12, "-in22k", "imagenet22k", 109_265_609),
    ("Swin-L", "large", 224, 7, "", _FINE_TUNED, 196_532_476),
    ("Swin-L", "large", 384, 12, "", _FINE_TUNED, 196_735_516),
    ("Swin-L", "large", 224, 7, "-in22k", "imagenet22k", 228_565_093),
    ("Swin-L", "large", 384, 12, "-in22k", "imagenet22k", 228_768_133),
)


def _swin_releases():
    for model, name, image_size, window_size, suffix, alias, parameters in _SWIN_TABLE:
        yield Release(
            model=model,
            address=f"{HUB}microsoft/swin-{name}-patch4-window{window_size}-{image_size}{suffix}",
            alias=alias,
            data_set="imagenet22k" if suffix else "imagenet2012",
            preprocessing=_SWIN_PROTOCOLS[image_size],
            bytes=4 * parameters,  # beside them the files hold indices, 1 % of the largest
            source="arXiv 2103.14030, github.com/microsoft/Swin-Transformer",
            arguments={"window_size": window_size} if window_size != _WINDOW_SIZE else {},
        )


# --- google-research/big_transfer (arXiv 1912.11370): BiT ResNets-v2

# BiT-S was trained on ImageNet-2012, BiT-M on ImageNet-21k; then prefix, suffix, alias, data set of the head, image
# size. Pre-training crops 224 pixels. The fine-tuning size is that of the released code (480, from 512, for
# ImageNet-size images); the paper has 384, and 480 only for R152x4, and no file states its size.
_BIT_KINDS = (
    ("S", "", "imagenet2012", "imagenet2012", 224),
    ("M", "", "imagenet21k", "imagenet21k", 224),
    ("M", "-ILSVRC2012", "imagenet21k+imagenet2012", "imagenet2012", 480),
)

# name, width of the features, parameters without the head
_BIT_MODELS = (
    ("R50x1", 2048, 23_500_352),
    ("R50x3", 6144, 211_174_080),
    ("R101x1", 2048, 42_492_480),
    ("R101x3", 6144, 381_789_888),
    ("R152x2", 4096, 232_238_208),
    ("R152x4", 8192, 928_340_224),
)


def _bit_releases():
    for name, width, parameters in _BIT_MODELS:
        for prefix, suffix, alias, data_set, image_size in _BIT_KINDS:
            yield Release(
                model=f"BiT-{name}",
                address=f"{_BIT_BUCKET}/BiT-{prefix}-{name}{suffix}.npz",
                alias=alias,
                data_set=data_set,
                preprocessing=Preprocessing(size=image_size),
                bytes=4 * (parameters + (width + 1) * CLASSES[data_set]),
                source="arXiv 1912.11370, github.com/google-research/big_transfer",
            )


VIT_RELEASES = tuple(_vit_releases())
HUB_RELEASES = (*_deit_releases(), *_swin_releases())
BIT_RELEASES = tuple(_bit_releases())

# --- Published accuracies: top-1 on the ImageNet-2012 validation images

_PAPER = "arXiv 2010.11929, Table 5"
_VIT = "github.com/google-research/vision_transformer"
_TIMM = "measured by timm"
_DEIT = "github.com/facebookresearch/deit"
_SWIN = "github.com/microsoft/Swin-Transformer"
_BIT = "arXiv 1912.11370"

# model, alias and side of the images in pixels -> top-1 in percent, source
_ACCURACIES = {
    ("ViT-B_16", "imagenet21k+imagenet2012", 224): (81.78, _TIMM),
    ("ViT-B_16", "imagenet21k+imagenet2012", 384): (84.21, _TIMM),
    ("ViT-B_32", "imagenet21k+imagenet2012", 384): (81.28, _PAPER),
    ("ViT-L_16", "imagenet21k+imagenet2012", 224): (82.7, _VIT),
    ("ViT-L_16", "imagenet21k+imagenet2012", 384): (85.15, _PAPER),
    ("ViT-L_32", "imagenet21k+imagenet2012", 384): (81.51, _TIMM),
    ("R50+ViT-B_16", "imagenet21k+imagenet2012", 384): (84.99, _TIMM),
    ("ViT-B_16", "augreg+imagenet2012", 224): (84.53, _TIMM),
    ("ViT-S_16", "augreg+imagenet2012", 224): (81.40, _TIMM),
    ("ViT-Ti_16", "augreg+imagenet2012", 224): (75.45, _TIMM),
    ("ViT-B_16", "sam", 224): (80.25, _TIMM),
    ("ViT-B_32", "sam", 224): (73.70, _TIMM),
    ("ViT-L_16", "augreg+imagenet2012", 384): (85.59, _VIT),
    ("ViT-B_16", "augreg+imagenet2012", 384): (85.49, _VIT),
    ("ViT-S_16", "augreg+imagenet2012", 384): (83.73, _VIT),
    ("R50+ViT-L_32", "augreg+imagenet2012", 384): (85.99, _VIT),
    ("R26+ViT-S_32", "augreg+imagenet2012", 384): (83.85, _VIT),
    ("ViT-Ti_16", "augreg+imagenet2012", 384): (78.22, _VIT),
    ("ViT-B_32", "augreg+imagenet2012", 384): (83.59, _VIT),
    ("ViT-S_32", "augreg+imagenet2012", 384): (79.58, _VIT),
    ("R+ViT-Ti_16", "augreg+imagenet2012", 384): (75.40, _VIT),
    ("DeiT-Ti_16", "imagenet2012", 224): (72.2, _DEIT),
    ("DeiT-Ti_16", "imagenet2012-distilled", 224): (74.5, _DEIT),
    ("DeiT-S_16", "imagenet2012", 224): (79.9, _DEIT),
    ("DeiT-S_16", "imagenet2012-distilled", 224): (81.2, _DEIT),
    ("DeiT-B_16", "imagenet2012", 224): (81.8, _DEIT),
    ("DeiT-B_16", "imagenet2012", 384): (82.9, _DEIT),
    ("DeiT-B_16", "imagenet2012-distilled", 224): (83.4, _DEIT),
    ("DeiT-B_16", "imagenet2012-distilled", 384): (85.2, _DEIT),
    ("Swin-T", "imagenet2012", 224): (81.2, _SWIN),
    ("Swin-S", "imagenet2012", 224): (83.2, _SWIN),
    ("Swin-B", "imagenet22k+imagenet2012", 224): (85.2, _SWIN),
    ("Swin-B", "imagenet22k+imagenet2012", 384): (86.4, _SWIN),
    ("Swin-L", "imagenet22k+imagenet2012", 224): (86.3, _SWIN),
    ("Swin-L", "imagenet22k+imagenet2012", 384): (87.3, _SWIN),
    ("BiT-R152x4", "imagenet2012", 224): (81.30, _BIT),
    ("BiT-R152x4", "imagenet21k+imagenet2012", 480): (85.39, _BIT),
}


@dataclasses.dataclass(frozen=True)
class PublishedAccuracy:
    """An accuracy that others measured.

    Attributes:
        top1: top-1 accuracy in percent.
        source: publication of the number.
    """

    top1: float
    source: str


def published_accuracy(release):
    """Return the `PublishedAccuracy` of a `Release`, None if it is unknown.

    The numbers of Table 5 are from the paper's own runs, which the published files repeat.
    """
    found = _ACCURACIES.get((release.model, release.alias, release.image_size))
    return None if found is None else PublishedAccuracy(*found)
