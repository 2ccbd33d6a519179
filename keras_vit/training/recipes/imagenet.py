"""Training on ImageNet-1k only: plain ViT-S/16, DeiT and Swin."""

from typing import Any

from keras_vit.training.recipe import Recipe
from keras_vit.training.recipes.augreg import PRETRAINING
from keras_vit.zoo import VARIANTS

_PLAIN = "arXiv 2205.01580 (Better plain ViT baselines), Table 1 and big_vision/configs/vit_s16_i1k.py"

# Mean of the patch tokens, fixed 2-D positions, and the tanh layer before the head
_VIT_S16 = VARIANTS["ViT-S_16"].config(
    image_size=224, pooling="gap", position_embedding="sincos2d", representation_size=384
)

# epochs -> reported top-1 accuracy
_PLAIN_EPOCHS = {90: 76.5, 150: 78.5, 300: 80.0}

_DEIT: dict[str, Any] = {
    "optimizer": "adamw",
    "batch_size": 1024,
    "learning_rate": 5e-4 * 1024 / 512,
    "epochs": 300,
    "weight_decay": 0.05,
    "label_smoothing": 0.1,
    # timm omits colour jitter when it uses RandAugment
    "augment": ("random_resized_crop", "flip", "timm_randaugment(9, 0.5)", "random_erasing(0.25)"),
    "mix": ("mixup(0.8)", "cutmix(1.0)"),
    "image_size": 224,
}
# two nodes of 8 with 32 images each
_DEIT_384: dict[str, Any] = {
    "batch_size": 512,
    "learning_rate": 5e-6,
    "epochs": 30,
    "weight_decay": 1e-8,
    "image_size": 384,
}
_DEIT_WARMUP: dict[str, Any] = {"warmup_epochs": 5, "warmup_learning_rate": 1e-6, "repeats": 3, "drop_path_rate": 0.1}

# size -> stochastic depth rate (arXiv 2103.14030, appendix A2.1)
_SWIN = {"t": 0.2, "s": 0.3, "b": 0.5}

RECIPES = (
    *(
        Recipe(
            name=f"plain-vit/s16-{epochs}ep",
            source=f"{_PLAIN}, {epochs} epochs, {accuracy} % top-1; its weight decay 1e-4 is 0.1 of the learning rate",
            epochs=epochs,
            augment=("inception_crop", "flip", "randaugment(2, 10)"),
            mix=("mixup(0.2)",),
            model=_VIT_S16,
            **PRETRAINING | {"batch_size": 1024},
        )
        for epochs, accuracy in _PLAIN_EPOCHS.items()
    ),
    Recipe(
        name="deit/imagenet",
        source=(
            "arXiv 2012.12877, Table 9 and facebookresearch/deit, also for the distilled models, in a "
            "keras_vit.Distiller (hard, taught by a RegNetY-16GF); without RandAugment it has 'color_jitter(0.3)' in "
            "its place; the cosine of timm 0.3.2 there begins with the run and changes by the epoch, ours begins after "
            "the warm-up, at most 1.5 % of the highest learning rate above it"
        ),
        final_learning_rate=1e-5,
        **_DEIT,
        **_DEIT_WARMUP,
    ),
    Recipe(
        name="deit/finetune-384",
        source="facebookresearch/deit, README (lr and min-lr 5e-6, so constant, 2 nodes of 8 with 32 images each)",
        schedule="constant",
        **_DEIT | _DEIT_384,
        **_DEIT_WARMUP,
    ),
    *(
        Recipe(
            name=f"swin/{size}",
            source=(
                f"arXiv 2103.14030, appendix A2.1 and microsoft/Swin-Transformer, Swin-{size.upper()}; without "
                "RandAugment it has 'color_jitter(0.4)' in its place"
            ),
            warmup_epochs=20,
            warmup_learning_rate=5e-7 * 1024 / 512,
            final_learning_rate=5e-6 * 1024 / 512,
            clip_norm=5.0,
            drop_path_rate=rate,
            **_DEIT,
        )
        for size, rate in _SWIN.items()
    ),
)
