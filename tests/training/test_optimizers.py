import keras
import numpy as np
import pytest

import keras_vit
from keras_vit import VisionTransformer, ViTConfig
from keras_vit.training import Recipe
from keras_vit.training.compile import create_optimizer as create

CONFIG = ViTConfig(
    name="toy",
    image_size=8,
    patch_size=4,
    hidden_dim=8,
    num_layers=2,
    num_heads=2,
    mlp_dim=8,
    classes=3,
    num_registers=1,
    layer_scale_init=0.1,
    representation_size=5,
    channels=1,
)


def create_optimizer(name, learning_rate, model, **fields):
    plain = {"name": "toy", "source": "this test", "batch_size": 1, "steps": 1, "learning_rate": learning_rate}
    return create(Recipe(optimizer=name, **plain, **fields), learning_rate, model)


@pytest.fixture
def model():
    model = VisionTransformer(CONFIG)
    rng = np.random.default_rng(0)
    for variable in model.trainable_variables:
        variable.assign(rng.normal(size=variable.shape))
    return model


def apply_zeros(optimizer, model):
    """What an update with gradients of zero multiplies each variable by; where it is not one number, None."""
    variables = model.trainable_variables
    before = [variable.numpy() for variable in variables]
    optimizer.apply([keras.ops.zeros(variable.shape) for variable in variables], variables)
    ratios = [v.numpy() / old for v, old in zip(variables, before, strict=True)]
    assert all(np.ptp(ratio) < 1e-6 for ratio in ratios)
    return {v.path: float(ratio.mean()) for v, ratio in zip(variables, ratios, strict=True)}


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_decays_kernels_alone_by_learning_rate_times_weight_decay(model, name):
    ratios = apply_zeros(create_optimizer(name, 0.1, model, weight_decay=0.5), model)
    decayed = {path for path, ratio in ratios.items() if ratio != 1}
    # Matrices and nothing else: patches, pre_logits, head and, in two blocks, query-key-value, output and MLP.
    assert len(decayed) == 3 + 2 * 4 and all(path.split("/")[-1] == "kernel" for path in decayed)
    assert all(ratios[path] == pytest.approx(1 - 0.1 * 0.5, rel=1e-6) for path in decayed)
    kept = {path.split("/")[-1] for path in ratios if path not in decayed}
    assert {"bias", "gamma", "beta"} < kept and "kernel" not in kept
    assert any("position" in path for path in set(ratios) - decayed)
    assert any("class_token" in path for path in set(ratios) - decayed)


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_layer_decay_shortens_the_step_of_early_layers(model, name):
    """BEiT and MAE: 0.5^(L + 1 - l) for block l of L = 2, seen in the length of a first step by gradients of one."""
    optimizer = create_optimizer(name, 0.1, model, layer_decay=0.5)
    variables = model.trainable_variables
    before = [variable.numpy() for variable in variables]
    optimizer.apply([keras.ops.ones(variable.shape) for variable in variables], variables)
    steps = {}
    for variable, old in zip(variables, before, strict=True):
        step = old - variable.numpy()
        assert np.ptp(step) < 1e-6
        steps.setdefault(variable.path.split("/")[0], set()).add(round(float(step.mean()), 5))
    embedding, last = {0.0125}, {0.1}
    assert steps == {
        "patch_encoder": embedding,
        "class_token": embedding,
        "position_embs": embedding,
        "block_00": {0.025},
        "block_01": {0.05},
        "encoder_norm": last,
        "pre_logits": last,
        "head": last,
    }


def test_layer_decay_and_weight_decay_survive_a_saved_model(model, tmp_path):
    model.compile(create_optimizer("adamw", 0.1, model, weight_decay=0.5, layer_decay=0.5), "mse")
    model.optimizer.build(model.trainable_variables)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    ratios = apply_zeros(again.optimizer, again)
    decays = {path: 1 - ratio for path, ratio in ratios.items() if ratio != 1}
    assert decays["patch_encoder/projection/kernel"] == pytest.approx(0.05 / 8, rel=1e-4)
    assert decays["head/kernel"] == pytest.approx(0.05, rel=1e-4)
    assert len(decays) == 11


def test_layer_decay_of_a_model_around_ours_and_of_frozen_layers(model):
    keras_vit.freeze(model, up_to="block_00")
    inputs = keras.Input((8, 8, 1))
    outer = keras_vit.Model(inputs, keras.layers.Dense(2, name="mine")(model(inputs)))
    optimizer = create_optimizer("sgd", 0.1, outer, layer_decay=0.5)
    factors = dict(zip((v.path for v in outer.trainable_variables), optimizer.rate_factors, strict=True))
    assert {path.split("/")[0]: factor for path, factor in factors.items()} == {
        "block_01": 0.5,
        "encoder_norm": 1.0,
        "pre_logits": 1.0,
        "head": 1.0,
        "mine": 1.0,
    }


def test_clips_the_global_norm(model):
    optimizer = create_optimizer("sgd", 1.0, model, momentum=0.0, clip_norm=2.0)
    variables = model.trainable_variables
    before = [variable.numpy() for variable in variables]
    optimizer.apply([10.0 * keras.ops.ones(variable.shape) for variable in variables], variables)
    steps = [v.numpy() - b for v, b in zip(variables, before, strict=True)]
    assert np.sqrt(sum(np.sum(step**2) for step in steps)) == pytest.approx(2.0, rel=1e-4)
    # one direction kept over all variables
    assert np.ptp(np.concatenate([step.ravel() for step in steps])) < 1e-5


def test_averages_the_weights(model):
    optimizer = create_optimizer("sgd", 1.0, model, momentum=0.0, ema_momentum=0.75)
    variables, seen = model.trainable_variables, []
    for _ in range(3):
        optimizer.apply([keras.ops.ones(variable.shape) for variable in variables], variables)
        seen.append(variables[0].numpy())
    optimizer.finalize_variable_values(variables)
    expected = 0.75 * (0.75 * seen[0] + 0.25 * seen[1]) + 0.25 * seen[2]
    np.testing.assert_allclose(variables[0].numpy(), expected, rtol=1e-5, atol=1e-6)


def test_accumulates_as_keras_does(model):
    optimizer = create_optimizer("sgd", 1.0, model, momentum=0.0, weight_decay=0.5, gradient_accumulation_steps=2)
    variables = model.trainable_variables
    before = variables[0].numpy()
    for scale in (1.0, 3.0):
        np.testing.assert_array_equal(variables[0].numpy(), before)
        optimizer.apply([scale * keras.ops.ones(variable.shape) for variable in variables], variables)
    assert variables[0].path == "patch_encoder/projection/kernel"
    np.testing.assert_allclose(variables[0].numpy(), before * 0.5 - 2.0, rtol=1e-5, atol=1e-6)


def test_settings(model):
    adamw = create_optimizer("adamw", 0.1, model).get_config()
    assert (adamw["beta_1"], adamw["beta_2"], adamw["epsilon"]) == (0.9, 0.999, 1e-8)
    assert create_optimizer("sgd", 0.1, model).get_config()["momentum"] == 0.9
    assert create_optimizer("sgd", 0.1, model, momentum=0.0).get_config()["momentum"] == 0.0


@pytest.mark.parametrize(("name", "stock"), [("adamw", keras.optimizers.AdamW), ("sgd", keras.optimizers.SGD)])
def test_is_keras_s_own_where_that_does(model, name, stock):
    assert type(create_optimizer(name, 0.1, model, clip_norm=1.0, ema_momentum=0.9)) is stock
    assert isinstance(create_optimizer(name, 0.1, model, weight_decay=0.1), stock)


def test_refuses_an_unbuilt_model():
    with pytest.raises(ValueError, match="model must be built"):
        create_optimizer("sgd", 0.1, keras.Sequential([keras.layers.Dense(1)]))


def test_refuses_layer_decay_without_blocks():
    plain = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)], name="plain")
    with pytest.raises(ValueError, match="layer_decay needs one keras_vit model.*'plain' contains 0"):
        create_optimizer("sgd", 0.1, plain, layer_decay=0.5)
