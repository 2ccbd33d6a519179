"""The DeiT models (arXiv 2012.12877) in facebook's repositories on Hugging Face's hub."""

from typing import Any

from keras_vit.checkpoints.releases.release import HUB, Release
from keras_vit.config import Preprocessing


def _releases():
    for model, name, image_size, is_distilled, parameters in _TABLE:
        distilled = "-distilled" if is_distilled else ""
        yield Release(
            model=model,
            address=f"{HUB}facebook/deit-{name}{distilled}-patch16-{image_size}",
            alias=f"imagenet2012{distilled}",
            data_set="imagenet2012",
            preprocessing=_PROTOCOLS[image_size],
            bytes=4 * parameters,
            source="arXiv 2012.12877, github.com/facebookresearch/deit",
            arguments={"distilled": True} if is_distilled else {},
        )


# As in the authors' code, the shorter side is resized to size / 0.875, rounded down.
_IMAGENET: dict[str, Any] = {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225), "interpolation": "bicubic"}
_PROTOCOLS = {
    224: Preprocessing(size=256, crop=224, **_IMAGENET),
    384: Preprocessing(size=438, crop=384, **_IMAGENET),
}

# model, name of the size, image size, whether distilled, parameters
_TABLE = (
    ("DeiT-Ti_16", "tiny", 224, False, 5_717_416),
    ("DeiT-Ti_16", "tiny", 224, True, 5_910_800),
    ("DeiT-S_16", "small", 224, False, 22_050_664),
    ("DeiT-S_16", "small", 224, True, 22_436_432),
    ("DeiT-B_16", "base", 224, False, 86_567_656),
    ("DeiT-B_16", "base", 384, False, 86_859_496),
    ("DeiT-B_16", "base", 224, True, 87_338_192),
    ("DeiT-B_16", "base", 384, True, 87_630_032),
)

DEIT_RELEASES = tuple(_releases())
