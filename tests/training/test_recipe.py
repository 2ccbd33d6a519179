"""Recipe: its fields, its copies and its dict form; test_recipe_compile.py has what it makes of a model."""

import dataclasses
import json

import pytest
from faults import for_each

from keras_vit import BiTConfig, SwinConfig, ViTConfig
from keras_vit.training import RECIPES, Recipe

PLAIN = {
    "name": "toy",
    "source": "this test",
    "optimizer": "sgd",
    "learning_rate": 0.1,
    "batch_size": 4,
    "steps": 8,
}
EPOCHS = {**PLAIN, "steps": None, "epochs": 3}
VIT = ViTConfig(name="toy", image_size=8, patch_size=4, hidden_dim=8, num_layers=1, num_heads=2, mlp_dim=8)
SWIN = SwinConfig(name="toy", image_size=32, embed_dim=8, depths=(1,), num_heads=(2,), window_size=2)
BIT = BiTConfig(name="toy", image_size=32, stage_sizes=(1,), width_factor=0.5)


def test_recipes_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        RECIPES["quickstart"].epochs = 1


def test_replace_changes_a_copy():
    recipe = RECIPES["quickstart"]
    changed = recipe.replace(epochs=3, augment=("flip",))
    assert (changed.epochs, changed.augment) == (3, ("flip",))
    assert dataclasses.replace(changed, epochs=recipe.epochs, augment=recipe.augment) == recipe


@for_each(
    ("recipe", "changes", "expected"),
    [
        (Recipe(**PLAIN), {"epochs": 2}, {"epochs": 2, "steps": None}),
        (Recipe(**EPOCHS, warmup_epochs=1), {"steps": 9, "warmup_steps": 2}, {"epochs": None, "warmup_epochs": 0}),
        (Recipe(**PLAIN, warmup_steps=2), {"warmup_fraction": 0.5}, {"warmup_steps": 0, "warmup_fraction": 0.5}),
        (Recipe(**PLAIN, warmup_steps=2), {"warmup_steps": 0}, {"warmup_steps": 0}),
        (Recipe(**PLAIN, warmup_fraction=0.5), {"warmup_steps": 0}, {"warmup_steps": 0, "warmup_fraction": 0.0}),
        (Recipe(**EPOCHS, warmup_epochs=1), {"warmup_fraction": 0.0}, {"warmup_epochs": 0.0, "epochs": 3}),
        (Recipe(**EPOCHS, warmup_epochs=1), {"warmup_epochs": 2.5}, {"warmup_epochs": 2.5, "epochs": 3}),
    ],
)
def test_replace_takes_the_one_that_is_given(recipe, changes, expected):
    changed = recipe.replace(**changes)
    assert {name: getattr(changed, name) for name in expected} == expected


def test_replace_refuses_both():
    with pytest.raises(ValueError, match="exactly one of epochs and steps must be given; got epochs=2, steps=3"):
        Recipe(**PLAIN).replace(epochs=2, steps=3)


def test_replace_refuses_unknown_fields():
    with pytest.raises(ValueError) as error:
        RECIPES["quickstart"].replace(epoch=3)
    assert "got 'epoch' (did you mean 'epochs'?)" in str(error.value)
    with pytest.raises(ValueError, match="keys must be among .*'batch_size', 'epochs', 'steps', .*got 'xyz'$"):
        RECIPES["quickstart"].replace(xyz=3)


@pytest.mark.parametrize("model", [VIT, SWIN, BIT], ids=["vit", "swin", "bit"])
def test_every_field_survives_json(model):
    recipe = Recipe(
        **{**PLAIN, "steps": None},
        epochs=7,
        schedule="step",
        decay_at=(0.25, 0.5),
        decay_factor=0.3,
        warmup_epochs=0.5,
        warmup_learning_rate=0.01,
        weight_decay=0.2,
        momentum=0.8,
        clip_norm=2.0,
        loss="sigmoid",
        head_bias=-3,
        label_smoothing=0.1,
        augment=("inception_crop", "randaugment(2, 15)"),
        mix=("mixup(0.5)",),
        repeats=2,
        image_size=96,
        dropout_rate=0.1,
        attention_dropout_rate=0.2,
        drop_path_rate=0.3,
        ema_momentum=0.99,
        layer_decay=0.75,
        patch_rate=0.5,
        microbatches=2,
        gradient_accumulation_steps=3,
        steps_per_execution=2,
        dtype="mixed_bfloat16",
        remat="block",
        input_dtype="uint8",
        seed=5,
        dataset="digits",
        model=model,
        sweep=(0.1, 0.3),
    )
    alike = {field.name for field in dataclasses.fields(Recipe) if getattr(recipe, field.name) == field.default}
    contradict_the_others = {"steps", "final_learning_rate", "warmup_steps", "warmup_fraction", "beta_2"}
    of_tasks = {"head", "max_objects", "encoder_rate", "encoder_warmup_steps", "frozen"}
    others = {"pretraining", "clip_module_norm", "clip_weight_norm", "crops", "final_weight_decay", *of_tasks}
    assert alike - others == contradict_the_others
    again = Recipe.from_dict(json.loads(json.dumps(recipe.to_dict())))
    assert again == recipe and type(again.model) is type(model)
    assert recipe.image_size == (96, 96) and recipe.head_bias == -3.0


@for_each(
    ("changes", "message"),
    [
        ({"optimizer": "adam"}, "optimizer must be one of 'adamw', 'sgd'; got optimizer='adam'"),
        ({"learning_rate": -1}, "learning_rate must be a finite number above 0; got learning_rate=-1"),
        ({"batch_size": 0}, "batch_size must be an integer of at least 1; got batch_size=0"),
        ({"epochs": 2}, "exactly one of epochs and steps must be given; got epochs=2, steps=8"),
        ({"steps": None}, "exactly one of epochs and steps must be given; got epochs=None, steps=None"),
        (
            {"warmup_steps": 1, "warmup_fraction": 0.1},
            "at most one of warmup_steps, warmup_fraction and warmup_epochs may be given; "
            "got warmup_steps=1, warmup_fraction=0.1, warmup_epochs=0.0",
        ),
        ({"warmup_fraction": 1}, "warmup_fraction must be a number in [0, 1); got warmup_fraction=1"),
        (
            {"warmup_steps": 8},
            "warmup_steps must be below steps; got warmup_steps=8, steps=8 (try recipe.replace(warmup_steps=...), or "
            "--set warmup_steps=...)",
        ),
        ({"warmup_epochs": 1}, "warmup_epochs requires a recipe with epochs; got warmup_epochs=1.0, epochs=None"),
        ({"steps": None, "epochs": 3, "warmup_epochs": 3}, "warmup_epochs must be below epochs; got warmup_epochs=3.0"),
        ({"warmup_learning_rate": 0.01}, "warmup_learning_rate requires a warm-up; got warmup_learning_rate=0.01"),
        (
            {"warmup_learning_rate": 0.2, "warmup_steps": 1},
            "warmup_learning_rate must not exceed learning_rate; got warmup_learning_rate=0.2, learning_rate=0.1",
        ),
        (
            {"final_learning_rate": 0.2},
            "final_learning_rate must not exceed learning_rate; got final_learning_rate=0.2, learning_rate=0.1",
        ),
        (
            {"final_learning_rate": 0.01, "schedule": "constant"},
            "final_learning_rate requires schedule 'cosine' or 'linear' or 'polynomial'",
        ),
        ({"schedule": "exponential"}, "schedule must be one of 'cosine', 'linear', 'polynomial', 'step', 'constant'"),
        ({"schedule": "step"}, "decay_at must be given with schedule 'step', and only with it; got decay_at=()"),
        ({"decay_at": (0.5,)}, "and only with it; got decay_at=(0.5,), schedule='cosine'"),
        ({"decay_at": (0.6, 0.3)}, "decay_at must be ascending; got decay_at=(0.6, 0.3)"),
        ({"decay_at": (1.0,)}, "decay_at[0] must be a number in (0, 1); got decay_at[0]=1.0"),
        ({"decay_factor": 0.5}, "decay_factor requires schedule 'step'; got decay_factor=0.5, schedule='cosine'"),
        ({"weight_decay": -0.1}, "weight_decay must be a finite number of at least 0; got weight_decay=-0.1"),
        (
            {"optimizer": "adamw", "momentum": 0.9},
            "momentum requires optimizer 'sgd'; got momentum=0.9, optimizer='adamw'",
        ),
        ({"beta_2": 0.95, "optimizer": "sgd"}, "beta_2 requires optimizer 'adamw'; got beta_2=0.95, optimizer='sgd'"),
        ({"beta_2": 1.0}, "beta_2 must be a number in [0, 1); got beta_2=1.0"),
        ({"clip_norm": 0}, "clip_norm must be a finite number above 0; got clip_norm=0"),
        ({"loss": "hinge"}, "loss must be one of 'softmax', 'sigmoid', 'masked_patches', 'masked_autoencoder', "),
        ({"head_bias": -10}, "head_bias requires loss 'sigmoid'"),
        ({"head_bias": "low", "loss": "sigmoid"}, "head_bias must be a finite number; got head_bias='low'"),
        ({"label_smoothing": 1.0}, "label_smoothing must be a number in [0, 1); got label_smoothing=1.0"),
        ({"dropout_rate": 1.5}, "dropout_rate must be a number in [0, 1); got dropout_rate=1.5"),
        ({"augment": "flip"}, "augment must be a sequence of strings"),
        ({"augment": ("mirror",)}, "got augment='mirror'"),
        ({"augment": ("scale_jitter(0.5, 2)",)}, "got augment='scale_jitter'"),
        ({"augment": ("inception_crop",), "loss": "masks"}, "got augment='inception_crop'"),
        ({"frozen": True}, "frozen requires loss 'segmentation' or 'masks' or"),
        ({"loss": "silog", "repeats": 2}, "repeats requires another loss, with labels of images; got repeats=2"),
        ({"loss": "masks", "frozen": True, "encoder_warmup_steps": 2}, "requires an encoder that is not frozen"),
        ({"mix": ("mixup(-1)",)}, "mix 'mixup(-1)'"),
        ({"repeats": 5}, "repeats must not exceed batch_size; got repeats=5, batch_size=4"),
        ({"ema_momentum": 1}, "ema_momentum must be a number in [0, 1); got ema_momentum=1"),
        ({"layer_decay": 1.1}, "layer_decay must be a finite number in (0, 1]; got layer_decay=1.1"),
        ({"layer_decay": 0}, "layer_decay must be a finite number in (0, 1]; got layer_decay=0"),
        ({"microbatches": 3}, "microbatches must divide batch_size; got microbatches=3, batch_size=4"),
        ({"gradient_accumulation_steps": 1}, "gradient_accumulation_steps must be an integer of at least 2"),
        ({"steps_per_execution": 3}, "steps_per_execution must divide steps; got steps_per_execution=3, steps=8"),
        ({"dtype": "bfloat17"}, "dtype must be the name of a Keras dtype policy, such as 'mixed_bfloat16'; got dtype="),
        ({"remat": 1}, "remat must be one of 'attention', 'block'; got remat=1"),
        ({"input_dtype": "float16"}, "input_dtype must be one of 'float32', 'uint8'; got input_dtype='float16'"),
        ({"image_size": (8, 8, 3)}, "image_size must be one positive integer or a pair (height, width)"),
        ({"seed": -1}, "seed must be an integer of at least 0 and at most 4294967295; got seed=-1"),
        ({"seed": 2**32}, "seed must be an integer of at least 0 and at most 4294967295; got seed=4294967296"),
        ({"dataset": "mnist"}, "dataset must be one of 'digits'; got dataset='mnist'"),
        (
            {"model": "ViT-B_16"},
            "ViTConfig or SwinConfig or BiTConfig or AxialResNetConfig of keras_vit, or None; got model='ViT-B_16'",
        ),
        ({"model": {"name": "toy"}}, "class_name of model must be one of 'ViTConfig', 'SwinConfig'"),
        ({"sweep": 0.1}, "sweep must be a sequence of learning rates; got sweep=0.1"),
        ({"name": ""}, "name must be a string that is not empty; got name=''"),
    ],
)
def test_refuses(changes, message):
    with pytest.raises(ValueError) as error:
        Recipe(**{**PLAIN, **changes})
    assert message in str(error.value)


class TestTotalSteps:
    def test_epochs_drop_the_remainder(self):
        assert Recipe(**EPOCHS).total_steps(11) == (3, 2)
        assert RECIPES["deit/imagenet"].total_steps(1_281_167) == (300, 1251)

    @for_each(
        ("recipe", "size", "expected"),
        [
            ("vit/finetune/imagenet", 1_281_167, (8, 2500)),  # 7.99 passes
            ("vit/finetune/cifar10", 50_000, (100, 100)),  # 102.4
            ("vit/finetune/pets", 3_680, (50, 10)),  # 69.6, between divisors 50 and 100
            ("vit/finetune/vtab", 10_000_000, (1, 2500)),
        ],
    )
    def test_steps_are_kept_in_epochs_of_about_a_pass(self, recipe, size, expected):
        assert RECIPES[recipe].total_steps(size) == expected

    @pytest.mark.parametrize(
        ("steps", "size", "epochs", "message"),
        [
            (101, 40, 101, "has about 10; recipe.replace(steps=100)"),
            (997, 400, 1, "has about 100; recipe.replace(steps=1000)"),
        ],
    )
    def test_steps_without_divisors_are_kept_with_a_warning(self, steps, size, epochs, message):
        with pytest.warns(UserWarning) as caught:
            assert Recipe(**{**PLAIN, "steps": steps}).total_steps(size) == (epochs, steps // epochs)
        [warning] = caught
        assert f"form epochs of {steps // epochs} steps" in str(warning.message) and message in str(warning.message)

    def test_an_epoch_has_a_step_however_few_images_there_are(self):
        assert Recipe(**{**PLAIN, "steps": 7}).total_steps(1) == (7, 1)

    def test_epochs_hold_whole_executions(self):
        recipe = Recipe(**{**PLAIN, "steps": 60, "steps_per_execution": 12})
        assert recipe.total_steps(4 * 7) == (5, 12)  # 8.6 passes; 5 executions

    def test_refuses(self):
        with pytest.raises(ValueError, match="batch_size must be at most 3, the images; got 4"):
            Recipe(**EPOCHS).total_steps(3)
        with pytest.raises(ValueError, match="steps_per_execution=2 must divide 3 steps per epoch"):
            Recipe(**EPOCHS, steps_per_execution=2).total_steps(12)


class TestConfigure:
    def test_rates_dtype_remat_and_size_reach_the_config(self):
        fixed = {"drop_path_rate": 0.1, "dtype": "mixed_bfloat16", "remat": "block", "image_size": (16, 12)}
        recipe = Recipe(**PLAIN, **fixed)
        assert recipe.configure(VIT) == VIT.replace(**fixed)

    def test_what_a_recipe_leaves_open_stays(self):
        config = VIT.replace(dropout_rate=0.2)
        assert Recipe(**PLAIN).configure(config) == config

    def test_what_is_off_and_absent_is_left_out(self):
        recipe = Recipe(**PLAIN, dropout_rate=0.0, attention_dropout_rate=0.0, remat=None)
        assert recipe.configure(BIT) == BIT
        assert recipe.model_arguments(SwinConfig) == {"dropout_rate": 0.0}

    @for_each(
        ("fixed", "config"),
        [({"attention_dropout_rate": 0.1}, SWIN), ({"dropout_rate": 0.1}, BIT), ({"remat": "block"}, BIT)],
    )
    def test_refuses_what_the_architecture_does_not_have(self, fixed, config):
        [name] = fixed
        with pytest.raises(ValueError, match=f"{name}=.* {type(config).__name__}.*: use recipe.replace\\({name}=None"):
            Recipe(**PLAIN, **fixed).configure(config)
