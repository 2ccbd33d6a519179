import dataclasses
import json

import keras
import numpy as np
import pytest

from keras_vit import VisionTransformer, ViTConfig
from keras_vit.training import RECIPES, Recipe, list_recipes

PLAIN = {
    "name": "toy",
    "source": "this test",
    "optimizer": "sgd",
    "learning_rate": 0.1,
    "batch_size": 4,
    "steps": 8,
}
CONFIG = ViTConfig(
    name="toy",
    image_size=8,
    patch_size=4,
    hidden_dim=8,
    num_layers=1,
    num_heads=2,
    mlp_dim=8,
    classes=3,
    channels=1,
)


@pytest.mark.parametrize("name", list_recipes())
def test_every_recipe_has_its_own_name_a_source_and_survives_json(name):
    recipe = RECIPES[name]
    assert recipe.name == name and recipe.source
    assert Recipe.from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe


def test_quickstart_numbers():
    recipe = RECIPES["quickstart"]
    assert list_recipes() == ["quickstart"]
    assert (recipe.optimizer, recipe.dataset, recipe.model.classes, recipe.model.channels) == (
        "adamw",
        "digits",
        10,
        1,
    )


def test_recipes_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        RECIPES["quickstart"].epochs = 1


def test_replace_changes_a_copy():
    recipe = RECIPES["quickstart"]
    changed = recipe.replace(epochs=3, augment=("shift",))
    assert (changed.epochs, changed.augment) == (3, ("shift",))
    assert dataclasses.replace(changed, epochs=recipe.epochs, augment=recipe.augment) == recipe


def test_replace_refuses_unknown_fields_and_lists_the_known():
    with pytest.raises(ValueError) as error:
        RECIPES["quickstart"].replace(epoch=3)
    assert "'batch_size', 'epochs', 'steps'" in str(error.value)
    assert "got 'epoch'; did you mean 'epochs'?" in str(error.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"optimizer": "adam"}, "optimizer must be one of 'adamw', 'sgd'; got optimizer='adam'"),
        ({"learning_rate": -1}, "learning_rate must be a finite number above 0; got learning_rate=-1"),
        ({"batch_size": 0}, "batch_size must be an integer of at least 1; got batch_size=0"),
        ({"epochs": 2}, "exactly one of epochs and steps must be given; got epochs=2, steps=8"),
        ({"steps": None}, "exactly one of epochs and steps must be given; got epochs=None, steps=None"),
        (
            {"warmup_steps": 1, "warmup_fraction": 0.1},
            "at most one of warmup_steps and warmup_fraction may be given; "
            "got warmup_steps=1, warmup_fraction=0.1",
        ),
        ({"warmup_fraction": 1}, "warmup_fraction must be a number in [0, 1); got warmup_fraction=1"),
        ({"weight_decay": -0.1}, "weight_decay must be a finite number of at least 0; got weight_decay=-0.1"),
        (
            {"optimizer": "adamw", "momentum": 0.9},
            "momentum belongs to optimizer 'sgd'; got momentum=0.9, optimizer='adamw'",
        ),
        ({"clip_norm": 0}, "clip_norm must be a finite number above 0; got clip_norm=0"),
        ({"label_smoothing": 1.0}, "label_smoothing must be a number in [0, 1); got label_smoothing=1.0"),
        ({"dropout_rate": 1.5}, "dropout_rate must be a number in [0, 1); got dropout_rate=1.5"),
        ({"augment": "flip"}, "augment must be a tuple of names, such as ('flip',); got augment='flip'"),
        ({"augment": ("mirror",)}, "got augment='mirror'"),
        ({"seed": -1}, "seed must be an integer of at least 0; got seed=-1"),
        ({"dataset": "mnist"}, "dataset must be one of 'digits'; got dataset='mnist'"),
        ({"model": "ViT-B_16"}, "model must be a keras_vit.ViTConfig; got model='ViT-B_16'"),
        ({"name": ""}, "name must be a text; got name=''"),
    ],
)
def test_refuses(changes, message):
    with pytest.raises(ValueError) as error:
        Recipe(**{**PLAIN, **changes})
    assert message in str(error.value)


def test_compile_sets_optimizer_schedule_loss_and_metric():
    recipe = Recipe(
        **{**PLAIN, "momentum": 0.5, "weight_decay": 0.01, "clip_norm": 1.0, "warmup_fraction": 0.25}
    )
    model = VisionTransformer(CONFIG)
    assert recipe.compile(model) is model
    settings = model.optimizer.get_config()
    assert (settings["momentum"], settings["weight_decay"], settings["global_clipnorm"]) == (0.5, 0.01, 1.0)
    rates = [float(model.optimizer._learning_rate(step)) for step in (0, 1, 2, 5, 8)]
    np.testing.assert_allclose(
        rates, [0.0, 0.05, 0.1, 0.05, 0.0], atol=1e-8
    )  # 2 of 8 steps warm up, 5 is half way
    results = model.evaluate(
        np.zeros((3, 8, 8, 1), "float32"), np.array([0, 1, 2]), verbose=0, return_dict=True
    )
    assert results["loss"] == pytest.approx(np.log(3), rel=1e-6)  # the head starts at zero
    assert results["accuracy"] == pytest.approx(1 / 3)


def test_compile_steps_override_those_of_the_recipe():
    model = Recipe(**PLAIN, warmup_steps=2).compile(VisionTransformer(CONFIG), steps=22)
    rates = [float(model.optimizer._learning_rate(step)) for step in (1, 2, 12, 22)]
    np.testing.assert_allclose(rates, [0.05, 0.1, 0.05, 0.0], atol=1e-8)


def test_compile_smooths_labels_and_trains_softmax():
    model = VisionTransformer(CONFIG.replace(classifier_activation="softmax"))
    Recipe(**PLAIN, label_smoothing=0.3).compile(model)
    bias = np.array([2.0, 0.0, -1.0])
    model.get_layer("head").bias.assign(bias)
    log_p = bias - np.log(np.exp(bias).sum())
    loss = model.evaluate(np.zeros((1, 8, 8, 1), "float32"), np.array([1]), verbose=0)[0]
    assert loss == pytest.approx(-(0.7 * log_p[1] + 0.1 * log_p.sum()), rel=1e-5)


def test_compiled_model_survives_saving(tmp_path):
    model = VisionTransformer(CONFIG)
    Recipe(**PLAIN, label_smoothing=0.1, weight_decay=0.1).compile(model)
    model.fit(np.zeros((4, 8, 8, 1), "float32"), np.array([0, 1, 2, 0]), verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert again.loss.label_smoothing == 0.1
    assert int(again.optimizer.iterations) == 1
    assert float(again.optimizer._learning_rate(4)) == pytest.approx(0.05)


def test_compile_needs_steps_where_the_recipe_counts_epochs():
    with pytest.raises(ValueError, match="steps must be given: recipe 'quickstart' counts epochs"):
        RECIPES["quickstart"].compile(VisionTransformer(CONFIG))


def test_compile_refuses_a_model_with_other_rates():
    recipe = Recipe(**PLAIN, stochastic_depth_rate=0.1)
    with pytest.raises(ValueError, match="stochastic_depth_rate=0.1; the model was built with .*=0.0"):
        recipe.compile(VisionTransformer(CONFIG))
    recipe.compile(VisionTransformer(CONFIG.replace(**recipe.regularisation)))


def test_compile_refuses_an_activation_that_is_no_distribution():
    model = VisionTransformer(CONFIG.replace(classifier_activation="sigmoid"))
    with pytest.raises(ValueError, match="must give logits or softmax to be trained; got .*'sigmoid'"):
        Recipe(**PLAIN).compile(model)
