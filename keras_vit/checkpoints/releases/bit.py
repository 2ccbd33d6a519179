"""The files of google-research/big_transfer (arXiv 1912.11370): BiT ResNets-v2."""

from keras_vit.checkpoints.releases.release import CLASSES, Release
from keras_vit.config import Preprocessing

_BUCKET = "https://storage.googleapis.com/bit_models"


def _releases():
    for name, width, parameters in _MODELS:
        for prefix, suffix, alias, data_set, image_size in _KINDS:
            yield Release(
                model=f"BiT-{name}",
                address=f"{_BUCKET}/BiT-{prefix}-{name}{suffix}.npz",
                alias=alias,
                data_set=data_set,
                preprocessing=Preprocessing(size=image_size),
                bytes=4 * (parameters + (width + 1) * CLASSES[data_set]),
                source="arXiv 1912.11370, github.com/google-research/big_transfer",
            )


# BiT-S was trained on ImageNet-2012, BiT-M on ImageNet-21k; then prefix, suffix, alias, data set of the head, image
# size. Pre-training crops 224 pixels. The fine-tuning size is that of the released code (480, from 512, for
# ImageNet-size images); the paper has 384, and 480 only for R152x4, and no file states its size.
_KINDS = (
    ("S", "", "imagenet2012", "imagenet2012", 224),
    ("M", "", "imagenet21k", "imagenet21k", 224),
    ("M", "-ILSVRC2012", "imagenet21k+imagenet2012", "imagenet2012", 480),
)

# name, width of the features, parameters without the head
_MODELS = (
    ("R50x1", 2048, 23_500_352),
    ("R50x3", 6144, 211_174_080),
    ("R101x1", 2048, 42_492_480),
    ("R101x3", 6144, 381_789_888),
    ("R152x2", 4096, 232_238_208),
    ("R152x4", 8192, 928_340_224),
)

BIT_RELEASES = tuple(_releases())
