"""The files of google-research/vision_transformer, except AugReg's."""

from keras_vit.checkpoints.releases.release import Release
from keras_vit.config import Preprocessing

BUCKET = "https://storage.googleapis.com/vit_models"


def _releases():
    for directory, (data_set, source, rows) in _TABLE.items():
        for model, suffix, image_size, representation_size, size in rows:
            yield Release(
                model=model,
                address=f"{BUCKET}/{directory}/{model}{suffix}.npz",
                alias=directory,
                data_set=data_set,
                preprocessing=Preprocessing(size=image_size),
                bytes=round(size),
                source=f"{source}, github.com/google-research/vision_transformer",
                representation_size=representation_size,
            )


_MIB, _GIB = 2**20, 2**30

# directory, which is also the alias -> data set of the head, source, rows of
# (model, suffix of the file name, image size, representation size, bytes as listed by the bucket)
_TABLE = {
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

VIT_RELEASES = tuple(_releases())
