"""Recipes of the paper: pre-training (arXiv 2010.11929, Table 3), fine-tuning (Table 4), masked patches (B.1.2).

The first recipe, for scikit-learn's digits, is this project's.
"""

from typing import Any

from keras_vit.config import ViTConfig
from keras_vit.training.recipe import Recipe

_PAPER = "arXiv 2010.11929"
_ASSUMED = (
    "loss: google-research/vision_transformer, issue 34; the decay is taken to be decoupled and of kernels alone, as "
    "in big_vision, which the paper does not say"
)
_CROPS: dict[str, Any] = {"augment": ("inception_crop", "flip"), "image_size": 224}

_TABLE_3: dict[str, Any] = {
    "optimizer": "adamw",
    "batch_size": 4096,
    "warmup_steps": 10_000,
    **_CROPS,
    "loss": "sigmoid",
}
_LINEAR: dict[str, Any] = {"schedule": "linear", "final_learning_rate": 1e-5}

# data -> its source, what Table 3 states for it
_DATA: dict[str, tuple[str, dict[str, Any]]] = {
    "jft": ("JFT-300M", {"weight_decay": 0.1, "dropout_rate": 0.0, **_LINEAR}),
    "imagenet21k": (
        "ImageNet-21k; head bias: big_vision/configs/vit_i21k.py",
        {"weight_decay": 0.03, "dropout_rate": 0.1, "head_bias": -10.0, **_LINEAR},
    ),
    "imagenet": (
        "ImageNet; head bias: big_vision/configs/vit_i1k.py of 2024",
        {"weight_decay": 0.3, "dropout_rate": 0.1, "head_bias": -6.9, "clip_norm": 1.0},
    ),
}

# name -> models, epochs, learning rate
_PRETRAINING = {
    "jft/vit-b": ("ViT-B/16 and B/32", 7, 8e-4),
    "jft/vit-l32": ("ViT-L/32", 7, 6e-4),
    "jft/vit-l16": ("ViT-L/16", 7, 4e-4),
    "jft/vit-l16-14ep": ("ViT-L/16", 14, 4e-4),
    "jft/vit-h14": ("ViT-H/14", 14, 3e-4),
    "jft/r50": ("ResNet R50x1 and R50x2", 7, 1e-3),
    "jft/r101x1": ("ResNet R101x1", 7, 8e-4),
    "jft/r152": ("ResNet R152x1 and R152x2", 7, 6e-4),
    "jft/r50+vit-b": ("R50+ViT-B/16 and B/32", 7, 8e-4),
    "jft/r50+vit-l32": ("R50+ViT-L/32", 7, 2e-4),
    "jft/r50+vit-l16": ("R50+ViT-L/16", 7, 4e-4),
    "jft/r50+vit-l16-14ep": ("R50+ViT-L/16", 14, 4e-4),
    "imagenet21k/vit-b": ("ViT-B/16 and B/32", 90, 1e-3),
    "imagenet21k/vit-l": ("ViT-L/16 and L/32, the epochs of the published weights", 90, 1e-3),
    "imagenet21k/vit-l-30ep": ("ViT-L/16 and L/32", 30, 1e-3),
    "imagenet": ("all ViT", 300, 3e-3),
}

_TABLE_4: dict[str, Any] = {"optimizer": "sgd", "momentum": 0.9, "batch_size": 512, "clip_norm": 1.0}
_TABLE_4 |= {**_CROPS, "image_size": 384}
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

_SIZES: dict[str, Any] = {"hidden_dim": 64, "num_layers": 4, "num_heads": 4, "mlp_dim": 128}
_VIT_DIGITS = ViTConfig(name="ViT-digits", image_size=8, patch_size=4, channels=1, classes=10, **_SIZES)
_DIGITS: dict[str, Any] = {
    "source": "this project: scikit-learn's bundled digits on two CPU cores in about a minute",
    "dataset": "digits",
    "batch_size": 64,
    "warmup_fraction": 0.1,
    "augment": ("shift",),
}


def _pretraining(name, models, epochs, learning_rate):
    data, settings = _DATA[name.partition("/")[0]]
    return Recipe(
        name=f"vit/{name}",
        source=f"{_PAPER}, Table 3: {models} on {data}; {_ASSUMED}",
        epochs=epochs,
        learning_rate=learning_rate,
        **_TABLE_3,
        **settings,
    )


def fine_tuning(name, source, steps, warmup_steps, learning_rate, sweep, **changes):
    """Return a recipe with the settings of Table 4 and the given changes."""
    numbers = {"steps": steps, "warmup_steps": warmup_steps, "learning_rate": learning_rate, "sweep": sweep}
    return Recipe(name=name, source=source, **_TABLE_4, **numbers).replace(**changes)


def _fine_tuning(name, data, tables="Table 4", **changes):
    *numbers, unstated = _FINE_TUNING[data]
    return fine_tuning(f"vit/finetune/{name}", f"{_PAPER}, {tables}; {unstated}", *numbers, **changes)


RECIPES = (
    Recipe(
        name="quickstart",
        optimizer="adamw",
        learning_rate=3e-3,
        epochs=100,
        weight_decay=0.5,
        clip_norm=1.0,
        model=_VIT_DIGITS.replace(dropout_rate=0.1),
        **_DIGITS,
    ),
    *(_pretraining(name, *row) for name, row in _PRETRAINING.items()),
    *(_fine_tuning(name, name) for name in _FINE_TUNING),
    *(
        _fine_tuning(
            f"imagenet-{size}", "imagenet", f"Table 4 and Table 2 ({model})", image_size=size, ema_momentum=0.9999
        )
        for size, model in ((512, "ViT-L/16"), (518, "ViT-H/14"))
    ),
    Recipe(
        name="vit/masked-patches/jft",
        source=f"{_PAPER}, appendix B.1.2: ViT-B/16 on JFT-300M; weight decay: none is stated; augmentation: that of "
        "classification (google-research/vision_transformer, issue 103)",
        learning_rate=2e-4,
        steps=1_000_000,
        **_TABLE_3 | {"loss": "masked_patches"},
    ),
    Recipe(
        name="vit/masked-patches/digits",
        optimizer="adamw",
        learning_rate=1e-3,
        epochs=40,
        loss="masked_patches",
        model=_VIT_DIGITS.replace(patch_size=2),
        **_DIGITS,
    ),
)
