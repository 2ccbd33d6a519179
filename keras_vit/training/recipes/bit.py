"""BiT (arXiv 1912.11370): pre-training, and fine-tuning by the HyperRule."""

from typing import Any

from keras_vit import checks
from keras_vit.training.recipe import Recipe
from keras_vit.typing import Size

_PAPER = "arXiv 1912.11370"
_SGD: dict[str, Any] = {"optimizer": "sgd", "momentum": 0.9, "schedule": "step"}

# name -> data, epochs, epochs after which the learning rate is divided by ten, loss, source of the loss
_SOFTMAX, _SIGMOID = {"loss": "softmax"}, {"loss": "sigmoid"}
_PRETRAINING: dict[str, tuple[str, int, tuple[int, ...], dict[str, Any], str]] = {
    "s": ("ILSVRC-2012", 90, (30, 60, 80), _SOFTMAX, "big_vision/configs/bit_i1k.py"),
    "m": ("ImageNet-21k", 90, (30, 60, 80), {**_SIGMOID, "head_bias": -10.0}, "big_vision/configs/bit_i21k.py"),
    "l": ("JFT-300M", 40, (10, 23, 30, 37), _SIGMOID, "as in bit/m, for images with several labels; unconfirmed"),
}

# name -> fewer examples than, steps, warm-up, mix
_HYPER_RULE = {
    "small": (20_000, 500, 100, ()),
    "medium": (500_000, 10_000, 500, ("mixup(0.1)",)),
    "large": (float("inf"), 20_000, 500, ("mixup(0.1)",)),
}

_SMALL_IMAGES, _IMAGES = (160, 128), (448, 384)  # side before the random crop, side after it
_SMALL_AREA = 96 * 96


def bit_hyperrule(examples: int, image_size: Size) -> Recipe:
    """Return the fine-tuning recipe of the HyperRule (arXiv 1912.11370, section 3.3).

    Args:
        examples: number of training images.
        image_size: (height, width) of the images in pixels, or one integer. Images with an area below 96 x 96 are
            resized to 160 and cropped to 128, others are resized to 448 and cropped to 384.

    Raises:
        ValueError: if `examples` is not an integer above 0, or `image_size` is not a valid size.
    """
    examples = checks.check_integer("examples", examples)
    height, width = checks.check_pair("image_size", image_size)
    row = next(name for name, (limit, *_) in _HYPER_RULE.items() if examples < limit)
    return _fine_tuning(row, _SMALL_IMAGES if height * width < _SMALL_AREA else _IMAGES)


def _fine_tuning(name, sides):
    limit, steps, warmup_steps, mix = _HYPER_RULE[name]
    resized, cropped = sides
    return Recipe(
        name=f"bit/finetune/{name}",
        source=(
            f"{_PAPER}, section 3.3, HyperRule for fewer than {limit:,} examples, images of {cropped} pixels; "
            "keras_vit.training.bit_hyperrule chooses; warm-up: google-research/big_transfer, whose code decays the "
            "500 steps of small at 200, 300 and 400, and takes 512 and 480 pixels"
        ),
        learning_rate=0.003,
        batch_size=512,
        steps=steps,
        decay_at=(0.3, 0.6, 0.9),
        warmup_steps=warmup_steps,
        augment=(f"random_crop({resized})", "flip"),
        mix=mix,
        image_size=cropped,
        **_SGD,
    )


RECIPES = (
    *(
        Recipe(
            name=f"bit/{name}",
            source=(
                f"{_PAPER}, section 3.3, on {data}; its weight decay 1e-4 enters the gradient, which momentum 0.9 adds "
                "up to ten times as much: decoupled it is 1e-3, as in big_vision/configs/bit_i1k.py and bit_i21k.py; "
                f"loss: {loss_source}; augmentation: google-research/big_vision"
            ),
            learning_rate=0.03 * 4096 / 256,
            batch_size=4096,
            epochs=epochs,
            decay_at=tuple(epoch / epochs for epoch in decays),
            warmup_steps=5_000,
            weight_decay=1e-3,
            augment=("inception_crop", "flip"),
            image_size=224,
            **_SGD,
            **loss,
        )
        for name, (data, epochs, decays, loss, loss_source) in _PRETRAINING.items()
    ),
    *(_fine_tuning(name, _IMAGES) for name in _HYPER_RULE),
)
