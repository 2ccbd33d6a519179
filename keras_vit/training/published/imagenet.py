"""Training on ImageNet-1k only: plain ViT-S/16, DeiT and Swin."""

from typing import Any

from keras_vit.config import ViTConfig
from keras_vit.training.recipe import Recipe

_PLAIN = "arXiv 2205.01580 (Better plain ViT baselines), Table 1 and big_vision/configs/vit_s16_i1k.py"

# Mean of the patch tokens, fixed 2-D positions, and the tanh layer before the head
_VIT_S16 = ViTConfig(
    name="ViT-S_16",
    image_size=224,
    patch_size=16,
    hidden_dim=384,
    num_layers=12,
    num_heads=6,
    mlp_dim=1536,
    pooling="gap",
    position_embedding="sincos2d",
    representation_size=384,
)

# epochs -> reported top-1 accuracy
_PLAIN_EPOCHS = {90: 76.5, 150: 78.5, 300: 80.0}

# The augmentation of DeiT; timm omits colour jitter when it uses RandAugment
_DEIT_AUGMENT = ("random_resized_crop", "flip", "timm_randaugment(9, 0.5)", "random_erasing(0.25)")
_DEIT_MIX = ("mixup(0.8)", "cutmix(1.0)")
_DEIT: dict[str, Any] = {
    "optimizer": "adamw",
    "batch_size": 1024,
    "learning_rate": 5e-4 * 1024 / 512,
    "epochs": 300,
    "weight_decay": 0.05,
    "label_smoothing": 0.1,
    "augment": _DEIT_AUGMENT,
    "mix": _DEIT_MIX,
    "image_size": 224,
}

# size -> stochastic depth rate (arXiv 2103.14030, appendix A2.1)
_SWIN = {"t": 0.2, "s": 0.3, "b": 0.5}

RECIPES = (
    *(
        Recipe(
            name=f"plain-vit/s16-{epochs}ep",
            source=f"{_PLAIN}, {epochs} epochs, {accuracy} % top-1; its weight decay 1e-4 is 0.1 of the learning rate",
            optimizer="adamw",
            learning_rate=1e-3,
            batch_size=1024,
            epochs=epochs,
            warmup_steps=10_000,
            weight_decay=0.1,
            clip_norm=1.0,
            augment=("inception_crop", "flip", "randaugment(2, 10)"),
            mix=("mixup(0.2)",),
            image_size=224,
            model=_VIT_S16,
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
        warmup_epochs=5,
        warmup_learning_rate=1e-6,
        final_learning_rate=1e-5,
        repeats=3,
        drop_path_rate=0.1,
        **_DEIT,
    ),
    Recipe(
        name="deit/finetune-384",
        source="facebookresearch/deit, README (lr and min-lr 5e-6, so constant, 2 nodes of 8 with 32 images each)",
        warmup_epochs=5,
        warmup_learning_rate=1e-6,
        schedule="constant",
        repeats=3,
        drop_path_rate=0.1,
        **{
            **_DEIT,
            "batch_size": 512,
            "learning_rate": 5e-6,
            "epochs": 30,
            "weight_decay": 1e-8,
            "image_size": 384,
        },
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
