"""AugReg (arXiv 2106.10270, "How to train your ViT?"): its pre-training grid and its fine-tuning."""

from keras_vit.training.published.vit import fine_tuning
from keras_vit.training.recipe import Recipe

_PAPER = "arXiv 2106.10270"

# level -> layers and magnitude of RandAugment (None for none), alpha of MixUp (0 for none)
_LEVELS = {
    "none": (None, 0.0),
    "light1": ((2, 0), 0.0),
    "light2": ((2, 10), 0.2),
    "medium1": ((2, 15), 0.2),
    "medium2": ((2, 15), 0.5),
    "strong1": ((2, 20), 0.5),
    "strong2": ((2, 20), 0.8),
}

_I1K = (
    "big_vision/configs/vit_i1k.py as first published in 2022; by 2024 it had the sigmoid loss with head bias -6.9: "
    ".replace(loss='sigmoid', head_bias=-6.9)"
)
_I21K = "big_vision/configs/vit_i21k.py"

# folder of the name -> data, epochs, loss and head bias, source of these
_DATA = {
    "": ("ImageNet", 300, {"loss": "softmax"}, _I1K),
    "i21k/": ("ImageNet-21k", 300, {"loss": "sigmoid", "head_bias": -10.0}, _I21K),
    "i21k-30ep/": ("ImageNet-21k", 30, {"loss": "sigmoid", "head_bias": -10.0}, _I21K),
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
    data, epochs, loss, loss_source = _DATA[folder]
    randaugment, alpha = _LEVELS[level]
    return Recipe(
        name=f"augreg/{folder}{level}",
        source=(
            f"{_PAPER}, {data}, {epochs} epochs, augmentation {level}, weight decay 0.1, no dropout; the grid's other "
            "cells are .replace(weight_decay=0.03) and .replace(dropout_rate=0.1, drop_path_rate=0.1); "
            f"loss: {loss_source}"
        ),
        optimizer="adamw",
        learning_rate=1e-3,
        batch_size=4096,
        epochs=epochs,
        warmup_steps=10_000,
        weight_decay=0.1,
        clip_norm=1.0,
        augment=("inception_crop", "flip", *(["randaugment({}, {})".format(*randaugment)] if randaugment else [])),
        mix=(f"mixup({alpha})",) if alpha else (),
        image_size=224,
        dropout_rate=0.0,
        drop_path_rate=0.0,
        **loss,
    )


def _transfer(data, steps, warmup_steps):
    lengths, learning_rate, sweep = _TRANSFERS[data]
    chosen = "that of the recommended B/16 and S/16" if data == "imagenet" else "the middle of the grid"
    return fine_tuning(
        f"augreg/finetune/{data}" + (f"-{steps}" if len(lengths) > 1 else ""),
        f"{_PAPER}, transfer; the rest as arXiv 2010.11929, Table 4; learning rate: {chosen}",
        steps=steps,
        warmup_steps=warmup_steps,
        learning_rate=learning_rate,
        sweep=sweep,
        dropout_rate=0.0,
        drop_path_rate=0.0,
    )


RECIPES = (
    *(_pretraining(folder, level) for folder in _DATA for level in _LEVELS),
    *(_transfer(data, *length) for data, (lengths, _, _) in _TRANSFERS.items() for length in lengths),
)
