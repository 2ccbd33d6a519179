"""AugReg (arXiv 2106.10270, "How to train your ViT?"): its pre-training grid and its fine-tuning."""

from typing import Any

from keras_vit.training.recipe import Recipe
from keras_vit.training.recipes.vit import fine_tuning

_PAPER = "arXiv 2106.10270"

# level -> augmentation after the crop and the flip, ways to mix
_LEVELS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "none": ((), ()),
    "light1": (("randaugment(2, 0)",), ()),
    "light2": (("randaugment(2, 10)",), ("mixup(0.2)",)),
    "medium1": (("randaugment(2, 15)",), ("mixup(0.2)",)),
    "medium2": (("randaugment(2, 15)",), ("mixup(0.5)",)),
    "strong1": (("randaugment(2, 20)",), ("mixup(0.5)",)),
    "strong2": (("randaugment(2, 20)",), ("mixup(0.8)",)),
}

_I1K = (
    "big_vision/configs/vit_i1k.py as first published in 2022; by 2024 it had the sigmoid loss with head bias -6.9: "
    ".replace(loss='sigmoid', head_bias=-6.9)"
)
_I21K = "big_vision/configs/vit_i21k.py"

# also the plain ViT-S/16 of big_vision
PRETRAINING: dict[str, Any] = {
    "optimizer": "adamw",
    "learning_rate": 1e-3,
    "batch_size": 4096,
    "warmup_steps": 10_000,
    "weight_decay": 0.1,
    "clip_norm": 1.0,
    "image_size": 224,
}
_NO_DROPOUT = {"dropout_rate": 0.0, "drop_path_rate": 0.0}

# folder of the name -> data, epochs, loss, head bias, source of these
_DATA = {
    "": ("ImageNet", 300, "softmax", None, _I1K),
    "i21k/": ("ImageNet-21k", 300, "sigmoid", -10.0, _I21K),
    "i21k-30ep/": ("ImageNet-21k", 30, "sigmoid", -10.0, _I21K),
}

# data -> (steps, warm-up) pairs, learning rate, the paper's grid
_TRANSFERS = {
    "imagenet": (((20_000, 500),), 0.03, (0.01, 0.03)),
    "pets": (((500, 100), (2_500, 200)), 0.003, (0.001, 0.003, 0.01)),
    "kitti": (((500, 100), (2_500, 200)), 0.003, (0.001, 0.003, 0.01)),
    "cifar100": (((2_500, 200), (10_000, 500)), 0.003, (0.001, 0.003, 0.01)),
    "resisc45": (((2_500, 200), (10_000, 500)), 0.003, (0.001, 0.003, 0.01)),
}


def _pretraining(folder, level):
    data, epochs, loss, head_bias, loss_source = _DATA[folder]
    randaugment, mix = _LEVELS[level]
    return Recipe(
        name=f"augreg/{folder}{level}",
        source=(
            f"{_PAPER}, {data}, {epochs} epochs, augmentation {level}, weight decay 0.1, no dropout; the grid's other "
            "cells are .replace(weight_decay=0.03) and .replace(dropout_rate=0.1, drop_path_rate=0.1); "
            f"loss: {loss_source}"
        ),
        epochs=epochs,
        loss=loss,
        head_bias=head_bias,
        augment=("inception_crop", "flip", *randaugment),
        mix=mix,
        **PRETRAINING,
        **_NO_DROPOUT,
    )


def _transfer(data, steps, warmup_steps):
    lengths, learning_rate, sweep = _TRANSFERS[data]
    chosen = "that of the recommended B/16 and S/16" if data == "imagenet" else "the middle of the grid"
    name = f"augreg/finetune/{data}" + (f"-{steps}" if len(lengths) > 1 else "")
    source = f"{_PAPER}, transfer; the rest as arXiv 2010.11929, Table 4; learning rate: {chosen}"
    return fine_tuning(name, source, steps, warmup_steps, learning_rate, sweep, **_NO_DROPOUT)


RECIPES = (
    *(_pretraining(folder, level) for folder in _DATA for level in _LEVELS),
    *(_transfer(data, *length) for data, (lengths, _, _) in _TRANSFERS.items() for length in lengths),
)
