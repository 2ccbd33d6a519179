"""The AugReg files (arXiv 2106.10270) outside of the table, by their naming scheme."""

import re

from keras_vit.checkpoints.releases.release import CLASSES, Release
from keras_vit.config import Preprocessing


def is_augreg(file):
    """Return whether a file name starts as AugReg names do."""
    return file.split("-")[0] in _MODELS


def parse_augreg(filename):
    """Return the release of any AugReg file from its name (arXiv 2106.10270).

    The scheme is `{model}-{i1k|i21k|i21k_30}-{300|30}ep-lr_{x}-aug_{level}-wd_{x}-do_{x}-sd_{x}`; fine-tuned files
    append `--{data_set}-steps_{20k|10k|2k|0k}-lr_{x}-res_{224|384}`. The function does not check that the file exists.

    Args:
        filename: the name, with or without the prefix `augreg/` and the suffix `.npz`.

    Raises:
        ValueError: if the name does not follow the scheme or a part has an unknown value.
    """
    file = filename.removeprefix("augreg/").removesuffix(".npz")
    match = _NAME.fullmatch(file)
    if match is None:
        raise ValueError(
            "the name of an AugReg file must be "
            "{model}-{upstream}-{epochs}ep-lr_{x}-aug_{level}-wd_{x}-do_{x}-sd_{x}, "
            "for a fine-tune followed by --{data_set}-steps_{steps}-lr_{x}-res_{res}; "
            f"got {filename!r}"
        )
    for part, choices in _CHOICES.items():
        if match[part] not in (None, *choices):
            raise ValueError(f"{part} in {filename!r} must be one of {str(choices)[1:-1]}; got {match[part]!r}")
    size = int(match["res"] or _UPSTREAM_SIZE)
    data_set = match["data_set"] or _UPSTREAMS[match["upstream"]]
    model, width, stride, parameters = _MODELS[match["model"]]
    new_positions = (size // stride) ** 2 - (_UPSTREAM_SIZE // stride) ** 2
    parameters += width * new_positions + (width + 1) * CLASSES[data_set]
    return Release(
        model=model,
        address=f"https://storage.googleapis.com/vit_models/augreg/{file}.npz",
        alias=None,
        data_set=data_set,
        preprocessing=Preprocessing(size=size),
        bytes=4 * parameters,
        source="arXiv 2106.10270 (AugReg), github.com/google-research/vision_transformer",
    )


# model in AugReg's names -> zoo model, width D, pixels per token, parameters at 224 without the head
_MODELS = {
    "Ti_16": ("ViT-Ti_16", 192, 16, 5_524_416),
    "S_32": ("ViT-S_32", 384, 32, 22_493_952),
    "S_16": ("ViT-S_16", 384, 16, 21_665_664),
    "B_32": ("ViT-B_32", 768, 32, 87_455_232),
    "B_16": ("ViT-B_16", 768, 16, 85_798_656),
    "B_8": ("ViT-B_8", 768, 8, 85_807_872),
    "L_16": ("ViT-L_16", 1024, 16, 303_301_632),
    "R_Ti_16": ("R+ViT-Ti_16", 192, 32, 6_144_704),  # its tokens are 32 pixels apart, in spite of the name
    "R26_S_32": ("R26+ViT-S_32", 384, 32, 36_046_912),
    "R50_L_32": ("R50+ViT-L_32", 1024, 32, 327_969_856),
}

_UPSTREAM_SIZE = 224
_UPSTREAMS = {"i1k": "imagenet2012", "i21k": "imagenet21k", "i21k_30": "imagenet21k"}
_CHOICES = {
    "model": tuple(_MODELS),
    "upstream": tuple(_UPSTREAMS),
    "epochs": ("300", "30"),
    "level": ("none", "light0", "light1", "medium1", "medium2", "strong1", "strong2"),
    "data_set": ("imagenet2012", "cifar10", "cifar100", "oxford_iiit_pet", "kitti", "resisc45"),
    "steps": ("20k", "10k", "2k", "0k"),
    "res": ("224", "384"),
}
_NAME = re.compile(
    r"(?P<model>\w+)-(?P<upstream>\w+)-(?P<epochs>\d+)ep-lr_[\d.]+-aug_(?P<level>\w+)-wd_[\d.]+-do_[\d.]+-sd_[\d.]+"
    r"(--(?P<data_set>\w+)-steps_(?P<steps>\w+)-lr_[\d.]+-res_(?P<res>\d+))?"
)
