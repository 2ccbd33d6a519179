"""The Swin Transformers (arXiv 2103.14030) in microsoft's repositories on Hugging Face's hub."""

from typing import Any

from keras_vit.checkpoints.releases.release import HUB, Release
from keras_vit.config import Preprocessing


def _releases():
    for model, name, image_size, window_size, suffix, alias, parameters in _TABLE:
        yield Release(
            model=model,
            address=f"{HUB}microsoft/swin-{name}-patch4-window{window_size}-{image_size}{suffix}",
            alias=alias,
            data_set="imagenet22k" if suffix else "imagenet2012",
            preprocessing=_PROTOCOLS[image_size],
            bytes=4 * parameters,  # beside them the files hold indices, 1 % of the largest
            source="arXiv 2103.14030, github.com/microsoft/Swin-Transformer",
            arguments={"window_size": window_size} if window_size != _WINDOW_SIZE else {},
        )


_WINDOW_SIZE = 7  # of the models in the zoo

# The authors' code crops by 0.875 at 224 pixels and does not crop at 384 (TEST.CROP in their configurations). The
# preprocessor_config.json of these repositories has no crop at either size.
_IMAGENET: dict[str, Any] = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225), "interpolation": "bicubic"}
_PROTOCOLS = {
    224: Preprocessing(size=256, crop=224, **_IMAGENET),
    384: Preprocessing(size=384, **_IMAGENET),
}

_FINE_TUNED = "imagenet22k+imagenet2012"

# model, name of the size, image size, window size, suffix of the repository's name, alias, parameters.
# Base and Large with 1000 classes were converted from timm, whose files of these names were the authors' fine-tuned
# ones (`*_22kto1k.pth`); Tiny and Small were trained on ImageNet-1k only.
_TABLE = (
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

SWIN_RELEASES = tuple(_releases())
