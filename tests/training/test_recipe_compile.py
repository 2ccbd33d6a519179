"""Recipe.compile: what it makes of a model, and which models it refuses."""

import keras
import numpy as np
import pytest
from faults import for_each

import keras_vit
from keras_vit import BiTResNet, VisionTransformer, ViTConfig
from keras_vit.models.derived import of_pixels
from keras_vit.training import RECIPES, Recipe

PLAIN = {
    "name": "toy",
    "source": "this test",
    "optimizer": "sgd",
    "learning_rate": 0.1,
    "batch_size": 4,
    "steps": 8,
}
EPOCHS = {**PLAIN, "steps": None, "epochs": 4}
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
BLACK = np.zeros((3, 8, 8, 1), "float32")


def rates(model, steps):
    return [float(model.optimizer._learning_rate(step)) for step in steps]


def with_new_head(activation=None, **changes):
    encoder = VisionTransformer(CONFIG.replace(include_top=False, **changes))
    inputs = keras.Input((8, 8, 1))
    return keras_vit.Model(inputs, keras.layers.Dense(3, activation, kernel_initializer="zeros")(encoder(inputs)))


def test_sets_optimizer_schedule_loss_and_metric():
    recipe = Recipe(**PLAIN, momentum=0.5, weight_decay=0.01, clip_norm=1.0, warmup_fraction=0.25)
    model = VisionTransformer(CONFIG)
    assert recipe.compile(model) is model
    settings = model.optimizer.get_config()
    assert (settings["momentum"], settings["weight_decay"], settings["global_clipnorm"]) == (0.5, 0.01, 1.0)
    # 2 of 8 steps warm up, 5 is half way
    np.testing.assert_allclose(rates(model, (0, 1, 2, 5, 8)), [0.0, 0.05, 0.1, 0.05, 0.0], atol=1e-8)
    results = model.evaluate(BLACK, np.array([0, 1, 2]), verbose=0, return_dict=True)
    assert results["loss"] == pytest.approx(np.log(3), rel=1e-6)  # the head starts at zero
    assert results["accuracy"] == pytest.approx(1 / 3)


def test_every_option_reaches_keras():
    recipe = Recipe(
        **PLAIN, ema_momentum=0.9, gradient_accumulation_steps=2, steps_per_execution=4, layer_decay=0.5, microbatches=2
    )
    model = recipe.compile(VisionTransformer(CONFIG))
    settings = model.optimizer.get_config()
    assert (settings["use_ema"], settings["ema_momentum"], settings["gradient_accumulation_steps"]) == (True, 0.9, 2)
    assert min(settings["rate_factors"]) == 0.25 and max(settings["rate_factors"]) == 1.0
    assert model.steps_per_execution == 4
    assert model.get_compile_config()["microbatches"] == 2
    assert Recipe(**PLAIN).compile(model).get_compile_config().get("microbatches", 1) == 1


class TestSteps:
    def test_given_steps_override_those_of_the_recipe(self):
        model = Recipe(**PLAIN, warmup_steps=2).compile(VisionTransformer(CONFIG), steps=22)
        np.testing.assert_allclose(rates(model, (1, 2, 12, 22)), [0.05, 0.1, 0.05, 0.0], atol=1e-8)

    @pytest.mark.parametrize("given", [{"steps": 40}, {"steps_per_epoch": 10}, {"steps": 40, "steps_per_epoch": 10}])
    def test_epochs_become_steps(self, given):
        model = Recipe(**EPOCHS, warmup_epochs=1.5).compile(VisionTransformer(CONFIG), **given)
        np.testing.assert_allclose(rates(model, (0, 3, 15, 40)), [0.0, 0.02, 0.1, 0.0], atol=1e-8)

    def test_shares_of_the_run(self):
        recipe = Recipe(**EPOCHS, schedule="step", decay_at=(0.25, 0.5), warmup_fraction=0.1)
        model = recipe.compile(VisionTransformer(CONFIG), steps=100)
        np.testing.assert_allclose(rates(model, (5, 25, 26, 50, 51)), [0.05, 0.1, 0.01, 0.01, 0.001], rtol=1e-6)

    def test_are_needed_where_the_recipe_counts_epochs(self):
        with pytest.raises(ValueError, match="steps must be given: recipe 'quickstart' has epochs=100"):
            RECIPES["quickstart"].compile(VisionTransformer(CONFIG))

    def test_warmup_that_is_longer_than_the_run(self):
        with pytest.raises(ValueError, match="below the steps of the run; got 10000 of 300 steps"):
            RECIPES["augreg/none"].compile(VisionTransformer(CONFIG), steps_per_epoch=1)


class TestLoss:
    def test_smooths_labels_and_trains_softmax(self):
        model = VisionTransformer(CONFIG.replace(classifier_activation="softmax"))
        Recipe(**PLAIN, label_smoothing=0.3).compile(model)
        bias = np.array([2.0, 0.0, -1.0])
        model.get_layer("head").bias.assign(bias)
        log_p = bias - np.log(np.exp(bias).sum())
        loss = model.evaluate(BLACK[:1], np.array([1]), verbose=0)[0]
        assert loss == pytest.approx(-(0.7 * log_p[1] + 0.1 * log_p.sum()), rel=1e-5)

    @pytest.mark.parametrize("activation", [None, "sigmoid"])
    def test_sigmoid_with_its_head_bias(self, activation):
        model = VisionTransformer(CONFIG.replace(classifier_activation=activation))
        Recipe(**PLAIN, loss="sigmoid", head_bias=-6.9).compile(model)
        loss = model.evaluate(BLACK[:1], np.array([1]), verbose=0)[0]
        assert loss == pytest.approx(6.9 + 3 * np.log1p(np.exp(-6.9)), rel=1e-4)

    def test_head_bias_leaves_a_trained_head(self):
        model = VisionTransformer(CONFIG.replace(distilled=True))
        trained, fresh = model.get_layer("head").bias, model.get_layer("head_dist").bias
        trained.assign([0.0, 0.5, 0.0])
        Recipe(**PLAIN, loss="sigmoid", head_bias=-10).compile(model)
        assert trained.numpy().tolist() == [0.0, 0.5, 0.0] and fresh.numpy().tolist() == [-10.0] * 3

    def test_head_bias_needs_one(self):
        model = VisionTransformer(CONFIG.replace(include_top=False))
        with pytest.raises(ValueError, match=r"heads with a bias; 'toy' ends in \['encoder_norm'\]"):
            Recipe(**PLAIN, loss="sigmoid", head_bias=-10).compile(model)

    @for_each(("loss", "activation"), [("softmax", "sigmoid"), ("sigmoid", "softmax"), ("softmax", "relu")])
    def test_refuses_another_activation(self, loss, activation):
        for model in (VisionTransformer(CONFIG.replace(classifier_activation=activation)), with_new_head(activation)):
            with pytest.raises(ValueError, match=f"must return logits or {loss} .*; got {activation}"):
                Recipe(**PLAIN, loss=loss).compile(model)


class TestModels:
    def test_a_model_around_ours(self):
        model = with_new_head("softmax", dropout_rate=0.1)
        recipe = Recipe(**PLAIN, loss="softmax", layer_decay=0.5, dropout_rate=0.1)
        recipe.compile(model)
        assert model.evaluate(BLACK, np.array([0, 1, 2]), verbose=0)[0] == pytest.approx(np.log(3), rel=1e-6)
        with pytest.raises(ValueError, match="dropout_rate=0.2; the model was built with dropout_rate=0.1"):
            recipe.replace(dropout_rate=0.2).compile(model)

    @for_each(
        "fixed",
        [{"drop_path_rate": 0.1}, {"remat": "block"}, {"dtype": "mixed_bfloat16"}],
    )
    def test_refuses_a_model_that_was_built_otherwise(self, fixed):
        recipe, [(name, value)] = Recipe(**PLAIN, **fixed), fixed.items()
        with pytest.raises(ValueError, match=f"trains with {name}={value}; the model was built with {name}="):
            recipe.compile(VisionTransformer(CONFIG))
        recipe.compile(VisionTransformer(recipe.configure(CONFIG)))

    def test_microbatches_need_a_model_that_has_them(self):
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        with pytest.raises(ValueError, match=r"microbatches=2 needs a keras_vit.Model; got Sequential"):
            Recipe(**PLAIN, microbatches=2).compile(model)

    def test_image_size_is_for_models_that_are_yet_to_be_built(self):
        Recipe(**PLAIN, image_size=16).compile(VisionTransformer(CONFIG))

    def test_what_is_off_and_absent_is_no_contradiction(self):
        recipe = Recipe(**PLAIN, dropout_rate=0.0)
        config = keras_vit.BiTConfig(name="toy", image_size=32, stage_sizes=(1,), width_factor=0.5, classes=3)
        recipe.compile(BiTResNet(config))
        recipe.compile(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]))


def test_both_heads_of_a_distilled_model_need_standardised_images():
    model = VisionTransformer(CONFIG.replace(distilled=True))
    for trained in (model, of_pixels(model)):
        with pytest.raises(ValueError, match="input_dtype must be 'float32' for .* a distilled model.*; got .*'uint8'"):
            Recipe(**PLAIN, input_dtype="uint8").compile(trained)


def test_compiled_model_survives_saving(tmp_path):
    model = VisionTransformer(CONFIG)
    Recipe(**PLAIN, schedule="linear", warmup_steps=2, label_smoothing=0.1, weight_decay=0.1).compile(model)
    variables = model.trainable_variables
    model.optimizer.apply([keras.ops.ones(variable.shape) for variable in variables], variables)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert (again.loss.kind, again.loss.label_smoothing) == ("softmax", 0.1)
    assert int(again.optimizer.iterations) == 1
    np.testing.assert_allclose(rates(again, (1, 2, 5, 8)), [0.05, 0.1, 0.05, 0.0], atol=1e-8)
    assert set(again.evaluate(BLACK, np.array([0, 1, 2]), verbose=0, return_dict=True)) == {"accuracy", "loss"}
