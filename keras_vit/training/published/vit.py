"""Recipes of the paper: pre-training (arXiv 2010.11929, Table 3), fine-tuning (Table 4), masked patches (B.1.2)."""

from typing import Any

from keras_vit.config import ViTConfig
from keras_vit.training.recipe import Recipe

_PAPER = "arXiv 2010.11929"
_ASSUMED = (
    "loss: google-research/vision_transformer, issue 34; the decay is taken to be decoupled and of kernels alone, as "
    "in big_vision, which the paper does not say"
)

# name -> models, epochs, learning rate; all with a linear schedule, weight decay 0.1 and no dropout
_JFT = {
    "vit-b": ("ViT-B/16 and B/32", 7, 8e-4),
    "vit-l32": ("ViT-L/32", 7, 6e-4),
    "vit-l16": ("ViT-L/16", 7, 4e-4),
    "vit-l16-14ep": ("ViT-L/16", 14, 4e-4),
    "vit-h14": ("ViT-H/14", 14, 3e-4),
    "r50": ("ResNet R50x1 and R50x2", 7, 1e-3),
    "r101x1": ("ResNet R101x1", 7, 8e-4),
    "r152": ("ResNet R152x1 and R152x2", 7, 6e-4),
    "r50+vit-b": ("R50+ViT-B/16 and B/32", 7, 8e-4),
    "r50+vit-l32": ("R50+ViT-L/32", 7, 2e-4),
    "r50+vit-l16": ("R50+ViT-L/16", 7, 4e-4),
    "r50+vit-l16-14ep": ("R50+ViT-L/16", 14, 4e-4),
}

# name -> models, epochs; ImageNet-21k
_IMAGENET21K = {
    "vit-b": ("ViT-B/16 and B/32", 90),
    "vit-l": ("ViT-L/16 and L/32, the epochs of the published weights", 90),
    "vit-l-30ep": ("ViT-L/16 and L/32", 30),
}

_SWEEP = (0.001, 0.003, 0.01, 0.03)
_DEFAULT_RATE = "learning rate: the official code's default 0.03"
_DEFAULT_WARMUP = "warm-up: the official code's default"
_SHORT_WARMUP = (
    "warm-up: AugReg's for 500 steps; the official code's default of 500 would be the whole run, and the paper's is "
    "unconfirmed"
)

# name -> steps, warm-up, learning rate, the paper's grid, source of what Table 4 does not state
_FINE_TUNING = {
    "imagenet": (20_000, 500, 0.03, (0.003, 0.01, 0.03, 0.06), f"{_DEFAULT_RATE}; {_DEFAULT_WARMUP}"),
    "cifar10": (10_000, 500, 0.01, _SWEEP, f"learning rate: the official code's for ViT-B/16; {_DEFAULT_WARMUP}"),
    "cifar100": (10_000, 500, 0.03, _SWEEP, f"{_DEFAULT_RATE}; {_DEFAULT_WARMUP}"),
    "pets": (500, 100, 0.03, _SWEEP, f"{_DEFAULT_RATE}; {_SHORT_WARMUP}"),
    "flowers": (500, 100, 0.03, _SWEEP, f"{_DEFAULT_RATE}; {_SHORT_WARMUP}"),
    "vtab": (2_500, 500, 0.01, (0.01,), _DEFAULT_WARMUP),
}


def _pretraining(name, models, data, **numbers):
    return Recipe(
        name=name,
        source=f"{_PAPER}, Table 3: {models} on {data}; {_ASSUMED}",
        **{
            "optimizer": "adamw",
            "batch_size": 4096,
            "warmup_steps": 10_000,
            "loss": "sigmoid",
            "augment": ("inception_crop", "flip"),
            "image_size": 224,
            **numbers,
        },
    )


_MASKED_PATCHES: dict[str, Any] = {"optimizer": "adamw", "schedule": "cosine", "loss": "masked_patches"}
_LINEAR = {"schedule": "linear", "final_learning_rate": 1e-5}


def fine_tuning(name, source, **numbers):
    """Return a fine-tuning recipe with the settings of Table 4, changed by `numbers`."""
    table = {
        "optimizer": "sgd",
        "momentum": 0.9,
        "batch_size": 512,
        "clip_norm": 1.0,
        "augment": ("inception_crop", "flip"),
        "image_size": 384,
    }
    return Recipe(name=name, source=source, **{**table, **numbers})


def _table_4(name, data, suffix="", addition="", **changes):
    steps, warmup_steps, learning_rate, sweep, unstated = _FINE_TUNING[data]
    return fine_tuning(
        f"vit/finetune/{name}",
        f"{_PAPER}, Table 4{suffix}; {unstated}{addition}",
        steps=steps,
        warmup_steps=warmup_steps,
        learning_rate=learning_rate,
        sweep=sweep,
        **changes,
    )


RECIPES = (
    *(
        _pretraining(
            f"vit/jft/{name}",
            models,
            "JFT-300M",
            epochs=epochs,
            learning_rate=learning_rate,
            weight_decay=0.1,
            dropout_rate=0.0,
            **_LINEAR,
        )
        for name, (models, epochs, learning_rate) in _JFT.items()
    ),
    *(
        _pretraining(
            f"vit/imagenet21k/{name}",
            models,
            "ImageNet-21k; head bias: big_vision/configs/vit_i21k.py",
            epochs=epochs,
            learning_rate=1e-3,
            weight_decay=0.03,
            dropout_rate=0.1,
            head_bias=-10.0,
            **_LINEAR,
        )
        for name, (models, epochs) in _IMAGENET21K.items()
    ),
    _pretraining(
        "vit/imagenet",
        "all ViT",
        "ImageNet; head bias: big_vision/configs/vit_i1k.py of 2024",
        epochs=300,
        learning_rate=3e-3,
        schedule="cosine",
        weight_decay=0.3,
        dropout_rate=0.1,
        head_bias=-6.9,
        clip_norm=1.0,
    ),
    *(_table_4(name, name) for name in _FINE_TUNING),
    _table_4("imagenet-512", "imagenet", " and Table 2 (ViT-L/16)", image_size=512, ema_momentum=0.9999),
    _table_4("imagenet-518", "imagenet", " and Table 2 (ViT-H/14)", image_size=518, ema_momentum=0.9999),
    Recipe(
        name="vit/masked-patches/jft",
        source=f"{_PAPER}, appendix B.1.2: ViT-B/16 on JFT-300M; weight decay: none is stated; augmentation: that of "
        "classification (google-research/vision_transformer, issue 103)",
        **{**_MASKED_PATCHES, "augment": ("inception_crop", "flip"), "image_size": 224},
        learning_rate=2e-4,
        batch_size=4096,
        steps=1_000_000,
        warmup_steps=10_000,
    ),
    Recipe(
        name="vit/masked-patches/digits",
        source="this project: scikit-learn's bundled digits on two CPU cores in about a minute",
        **{**_MASKED_PATCHES, "augment": ("shift",)},
        learning_rate=1e-3,
        batch_size=64,
        epochs=40,
        warmup_fraction=0.1,
        dataset="digits",
        model=ViTConfig(
            name="ViT-digits",
            image_size=8,
            patch_size=2,
            hidden_dim=64,
            num_layers=4,
            num_heads=4,
            mlp_dim=128,
            classes=10,
            channels=1,
        ),
    ),
)
