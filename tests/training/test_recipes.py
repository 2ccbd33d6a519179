"""The table of recipes: its numbers against the sources', and that each of them makes a tiny model learn."""

import functools
import json

import keras
import numpy as np
import pytest
from faults import for_each
from slow_rows import slow_after

from keras_vit import VisionTransformer, ViTConfig
from keras_vit.data.augment import parse_augment
from keras_vit.training import RECIPES, Recipe, bit_hyperrule, list_recipes
from keras_vit.training.recipe_checks import SELF_SUPERVISED, TASKS

TINY = ViTConfig(
    name="tiny", image_size=8, patch_size=4, hidden_dim=8, num_layers=1, num_heads=2, mlp_dim=8, classes=3, channels=1
)
STEPS_PER_EPOCH = 2_000


@for_each("name", list_recipes())
def test_every_recipe_has_its_own_name_a_source_and_survives_json(name):
    recipe = RECIPES[name]
    assert recipe.name == name and recipe.source
    assert Recipe.from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe
    assert not recipe.sweep or recipe.learning_rate in recipe.sweep
    if recipe.loss in TASKS:
        assert recipe.augment[-1].startswith(("flip", "scale_jitter", "rotate"))
        return
    kinds = [operation.kind for operation in parse_augment(recipe.augment)]
    if recipe.loss == "self_distillation":
        assert not kinds  # `multi_crop_pipeline` crops
    else:
        assert recipe.dataset == "digits" or kinds[0] == "crop" and "crop" not in kinds[1:]


def schedule(recipe, step, steps, warmup):
    """The learning rate of a recipe, said plainly."""
    if step < warmup:
        low = recipe.warmup_learning_rate
        return low + (recipe.learning_rate - low) * step / warmup
    progress, high, end = (step - warmup) / (steps - warmup), recipe.learning_rate, recipe.final_learning_rate
    return {
        "cosine": end + (high - end) * (1 + np.cos(np.pi * progress)) / 2,
        "linear": end + (high - end) * (1 - progress),
        "polynomial": end + (high - end) * (1 - progress) ** 0.9,
        "constant": high,
        "step": high / 10 ** sum(step > share * steps for share in recipe.decay_at),
    }[recipe.schedule]


@functools.cache
def _encoder(config):
    """One model for all recipes of the same rates."""
    return VisionTransformer(config)


@pytest.mark.parametrize("name", slow_after(30, [name for name in list_recipes() if RECIPES[name].loss not in TASKS]))
def test_every_recipe_compiles_with_its_schedule(name):
    recipe = RECIPES[name]
    encoder = _encoder(recipe.replace(image_size=None).configure(TINY))
    encoder.get_layer("head").bias.assign(np.zeros(3))  # as if untrained, for the head bias
    model = SELF_SUPERVISED[recipe.loss](encoder) if recipe.loss in SELF_SUPERVISED else encoder
    recipe.compile(model, steps_per_epoch=STEPS_PER_EPOCH)
    steps = recipe.steps or recipe.epochs * STEPS_PER_EPOCH
    warmup = round(recipe.warmup_steps or recipe.warmup_fraction * steps or recipe.warmup_epochs * STEPS_PER_EPOCH)
    asked = [0, warmup // 2, warmup, (warmup + steps) // 2, steps - 1, steps]
    learning_rate = model.optimizer.get_config()["learning_rate"]
    assert isinstance(learning_rate, dict), "a schedule"
    rates = [float(model.optimizer._learning_rate(step)) for step in asked]
    expected = [schedule(recipe, step, steps, warmup) for step in asked]
    np.testing.assert_allclose(rates, expected, rtol=1e-4, atol=1e-6 * recipe.learning_rate)
    assert isinstance(model.optimizer, {"adamw": keras.optimizers.AdamW, "sgd": keras.optimizers.SGD}[recipe.optimizer])
    head = encoder.get_layer("head").bias.numpy()
    assert np.all(head == np.float32(recipe.head_bias or 0.0))


def test_list():
    assert list_recipes("augreg/*1")[:3] == ["augreg/light1", "augreg/medium1", "augreg/strong1"]
    assert list_recipes("quick*") == ["quickstart"] and list_recipes("no such") == []
    assert len(list_recipes()) == len(RECIPES) == 93


@for_each(
    ("name", "meant"),
    [
        ("quickstrat", r" \(did you mean 'quickstart' or "),
        ("vit/finetune/pet", r" \(did.*'vit/finetune/pets'"),
        ("", ""),
    ],
)
def test_a_name_that_is_none_is_answered_with_those_near_it(name, meant):
    with pytest.raises(KeyError, match=f"there is no recipe '{name}'{meant}.*list_recipes"):
        RECIPES[name]
    assert RECIPES.get(name) is None and name not in RECIPES


def fields(name, *names):
    return tuple(getattr(RECIPES[name], field) for field in names)


def test_quickstart_numbers():
    recipe = RECIPES["quickstart"]
    assert (recipe.optimizer, recipe.dataset, recipe.model.classes, recipe.model.channels) == ("adamw", "digits", 10, 1)


def test_table_3():
    """arXiv 2010.11929, Table 3."""
    rows = ("epochs", "learning_rate", "schedule", "weight_decay", "dropout_rate")
    assert fields("vit/jft/vit-b", *rows) == (7, 8e-4, "linear", 0.1, 0.0)
    assert fields("vit/jft/vit-l32", *rows) == (7, 6e-4, "linear", 0.1, 0.0)
    assert fields("vit/jft/vit-l16-14ep", *rows) == (14, 4e-4, "linear", 0.1, 0.0)
    assert fields("vit/jft/vit-h14", *rows) == (14, 3e-4, "linear", 0.1, 0.0)
    assert [RECIPES[f"vit/jft/{name}"].learning_rate for name in ("r50", "r101x1", "r152")] == [1e-3, 8e-4, 6e-4]
    hybrids = ("r50+vit-b", "r50+vit-l32", "r50+vit-l16", "r50+vit-l16-14ep")
    assert [RECIPES[f"vit/jft/{name}"].learning_rate for name in hybrids] == [8e-4, 2e-4, 4e-4, 4e-4]
    assert fields("vit/imagenet21k/vit-b", *rows) == (90, 1e-3, "linear", 0.03, 0.1)
    assert fields("vit/imagenet21k/vit-l-30ep", *rows) == (30, 1e-3, "linear", 0.03, 0.1)
    assert fields("vit/imagenet", *rows, "clip_norm") == (300, 3e-3, "cosine", 0.3, 0.1, 1.0)
    for name in [*list_recipes("vit/jft/*"), *list_recipes("vit/imagenet*")]:
        common = ("batch_size", "warmup_steps", "image_size", "loss", "augment")
        assert fields(name, *common) == (4096, 10_000, (224, 224), "sigmoid", ("inception_crop", "flip"))
        assert RECIPES[name].final_learning_rate == (0.0 if name == "vit/imagenet" else 1e-5)


def test_table_4():
    """arXiv 2010.11929, Table 4."""
    low, high = (0.001, 0.003, 0.01, 0.03), (0.003, 0.01, 0.03, 0.06)
    expected = {
        "imagenet": (20_000, high),
        "cifar10": (10_000, low),
        "cifar100": (10_000, low),
        "pets": (500, low),
        "flowers": (500, low),
        "vtab": (2_500, (0.01,)),
        "imagenet-512": (20_000, high),
        "imagenet-518": (20_000, high),
    }
    assert {name.split("/")[-1]: fields(name, "steps", "sweep") for name in list_recipes("vit/finetune/*")} == expected
    for name in list_recipes("vit/finetune/*"):
        common = ("optimizer", "momentum", "batch_size", "schedule", "weight_decay", "clip_norm", "loss")
        assert fields(name, *common) == ("sgd", 0.9, 512, "cosine", 0.0, 1.0, "softmax")
    assert fields("vit/finetune/imagenet-518", "image_size", "ema_momentum") == ((518, 518), 0.9999)
    assert fields("vit/finetune/imagenet", "image_size", "ema_momentum") == ((384, 384), None)


def test_masked_patches():
    """arXiv 2010.11929, appendix B.1.2."""
    rows = ("loss", "optimizer", "learning_rate", "batch_size", "steps", "warmup_steps", "schedule", "augment")
    numbers = ("adamw", 2e-4, 4096, 1_000_000, 10_000, "cosine", ("inception_crop", "flip"))
    assert fields("vit/masked-patches/jft", *rows) == ("masked_patches", *numbers)
    assert fields("vit/masked-patches/jft", "image_size", "weight_decay") == ((224, 224), 0.0)
    assert fields("vit/masked-patches/digits", "loss", "dataset") == ("masked_patches", "digits")


def test_masked_autoencoder():
    """arXiv 2111.06377, Tables 8 and 9, with the linear scaling of the learning rate; PRETRAIN.md and FINETUNE.md."""
    rows = ("loss", "learning_rate", "batch_size", "epochs", "warmup_epochs", "weight_decay", "beta_2", "augment")
    numbers = (1.5e-4 * 16, 4096, 800, 40, 0.05, 0.95, ("random_resized_crop(0.2)", "flip"))
    assert fields("mae/imagenet", *rows) == ("masked_autoencoder", *numbers)
    rows = ("learning_rate", "batch_size", "epochs", "layer_decay", "drop_path_rate")
    expected = {"b": (2e-3, 1024, 100, 0.65, 0.1), "l": (4e-3, 1024, 50, 0.75, 0.2), "h": (4e-3, 1024, 50, 0.75, 0.3)}
    assert {name: fields(f"mae/finetune/{name}", *rows) for name in expected} == expected


def test_augreg_grid():
    """arXiv 2106.10270: layers and magnitude of RandAugment, alpha of MixUp."""
    rand = {"light1": "(2, 0)", "light2": "(2, 10)", "medium1": "(2, 15)", "medium2": "(2, 15)", "strong1": "(2, 20)"}
    rand |= {"strong2": "(2, 20)"}
    alpha = {"light2": 0.2, "medium1": 0.2, "medium2": 0.5, "strong1": 0.5, "strong2": 0.8}
    for folder, epochs, loss in (("", 300, "softmax"), ("i21k/", 300, "sigmoid"), ("i21k-30ep/", 30, "sigmoid")):
        for level in ("none", *rand):
            name = f"augreg/{folder}{level}"
            texts = [f"randaugment{rand[level]}"] if level in rand else []
            assert fields(name, "augment", "epochs", "loss") == (("inception_crop", "flip", *texts), epochs, loss)
            assert RECIPES[name].mix == ((f"mixup({alpha[level]})",) if level in alpha else ())
            common = ("learning_rate", "batch_size", "warmup_steps", "clip_norm", "weight_decay")
            assert fields(name, *common) == (1e-3, 4096, 10_000, 1.0, 0.1)
    cell = RECIPES["augreg/medium1"].replace(weight_decay=0.03, dropout_rate=0.1, drop_path_rate=0.1)
    assert (cell.dropout_rate, cell.drop_path_rate) == (0.1, 0.1)


def test_trainings_on_imagenet():
    plain = ("batch_size", "learning_rate", "weight_decay", "warmup_steps", "clip_norm", "mix")
    assert fields("plain-vit/s16-90ep", *plain) == (1024, 1e-3, 0.1, 10_000, 1.0, ("mixup(0.2)",))
    model = VisionTransformer(RECIPES["plain-vit/s16-90ep"].model)
    # FACTS of ViT-S/16 without head, less class token and positions, with pre_logits and a head of 1000
    assert model.count_params() == 21_665_664 - 384 * 198 + 384 * 385 + 385 * 1000
    deit = ("learning_rate", "weight_decay", "warmup_epochs", "warmup_learning_rate", "final_learning_rate", "repeats")
    assert fields("deit/imagenet", *deit) == (1e-3, 0.05, 5, 1e-6, 1e-5, 3)
    deit = ("learning_rate", "weight_decay", "epochs", "image_size", "batch_size")
    assert fields("deit/finetune-384", *deit) == (5e-6, 1e-8, 30, (384, 384), 512)
    assert [fields(f"swin/{size}", "drop_path_rate", "clip_norm") for size in "tsb"] == [
        (0.2, 5.0),
        (0.3, 5.0),
        (0.5, 5.0),
    ]


def test_cifar10_from_scratch():
    """configs/pretrained/cct_7-3x1_cifar10_300epochs.yml and src/vit.py of SHI-Labs/Compact-Transformers."""
    rates = ("learning_rate", "final_learning_rate", "warmup_learning_rate", "warmup_epochs", "schedule", "epochs")
    assert fields("cifar10/scratch", *rates) == (55e-5, 1e-5, 1e-5, 10, "cosine", 300)
    others = ("optimizer", "batch_size", "weight_decay", "label_smoothing", "drop_path_rate", "mix", "image_size")
    numbers = ("adamw", 128, 6e-2, 0.1, 0.1, ("mixup(0.8)", "cutmix(1.0)"), (32, 32))
    assert fields("cifar10/scratch", *others) == numbers
    config = RECIPES["cifar10/scratch"].model
    assert (config.grid_size, config.attention_dropout_rate) == ((8, 8), 0.1)
    # ViT-Lite-7/4 has 256-wide tokens, 7 blocks and MLPs of 512
    block = 4 * 256 * 257 + 512 * 257 + 256 * 513 + 4 * 256
    assert VisionTransformer(config).count_params() == 256 * 49 + 7 * block + 2 * 256 + 10 * 257


def test_bit_pretraining():
    """arXiv 1912.11370: 0.03 * batch / 256; a tenth after 30, 60 and 80 of 90 epochs, or 10, 23, 30, 37 of 40."""
    model = VisionTransformer(TINY)
    for name, epochs, changes in (("bit/s", 90, (30, 60, 80)), ("bit/l", 40, (10, 23, 30, 37))):
        RECIPES[name].compile(model, steps_per_epoch=1000)
        rates = [float(model.optimizer._learning_rate(1000 * epoch + 1)) for epoch in (9, *changes)]
        np.testing.assert_allclose(rates, [0.48 / 10**k for k in range(len(changes) + 1)], rtol=1e-5)
        assert RECIPES[name].epochs == epochs
    assert [fields(f"bit/{name}", "loss", "head_bias") for name in "sml"] == [
        ("softmax", None),  # big_vision/configs/bit_i1k.py
        ("sigmoid", -10.0),  # big_vision/configs/bit_i21k.py
        ("sigmoid", None),
    ]


def test_bit_decays_weights_as_the_paper():
    """Weight decay 1e-4 in the gradient, with the paper's momentum of 0.9: the decay per step once it has settled."""
    recipe, learning_rate = RECIPES["bit/s"], 0.01
    value, velocity = 1.0, 0.0
    for _ in range(200):
        velocity = recipe.momentum * velocity + 1e-4 * value
        previous, value = value, value - learning_rate * velocity
    assert 1 - value / previous == pytest.approx(learning_rate * recipe.weight_decay, rel=1e-3)


@for_each(
    ("examples", "image_size", "name", "steps", "sides", "mix"),
    [
        (19_999, 300, "small", 500, (448, 384), ()),
        (20_000, (95, 97), "medium", 10_000, (160, 128), ("mixup(0.1)",)),
        (50_000, 32, "medium", 10_000, (160, 128), ("mixup(0.1)",)),
        (500_000, 96, "large", 20_000, (448, 384), ("mixup(0.1)",)),
    ],
)
def test_bit_hyperrule(examples, image_size, name, steps, sides, mix):
    recipe = bit_hyperrule(examples, image_size)
    assert recipe.name == f"bit/finetune/{name}"
    assert (recipe.steps, recipe.mix, recipe.learning_rate, recipe.batch_size) == (steps, mix, 0.003, 512)
    assert (recipe.augment[0], recipe.image_size[0]) == (f"random_crop({sides[0]})", sides[1])
    if sides[1] == 384:
        assert recipe == RECIPES[recipe.name]
