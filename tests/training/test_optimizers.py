import keras
import numpy as np
import pytest

from keras_vit import VisionTransformer, ViTConfig
from keras_vit.training.optimizers import create_optimizer


@pytest.fixture
def model():
    config = ViTConfig(
        name="toy",
        image_size=8,
        patch_size=4,
        hidden_dim=8,
        num_layers=1,
        num_heads=2,
        mlp_dim=8,
        classes=3,
        num_registers=1,
        layer_scale_init=0.1,
        representation_size=5,
        channels=1,
    )
    model = VisionTransformer(config)
    rng = np.random.default_rng(0)
    for variable in model.trainable_variables:
        variable.assign(rng.normal(size=variable.shape))
    return model


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_decays_kernels_alone_by_learning_rate_times_weight_decay(model, name):
    optimizer = create_optimizer(name, 0.1, model, weight_decay=0.5)
    before = {variable.path: variable.numpy() for variable in model.trainable_variables}
    variables = model.trainable_variables
    optimizer.apply([keras.ops.zeros(variable.shape) for variable in variables], variables)
    decayed = set()
    for variable in variables:
        after = variable.numpy()
        if not np.array_equal(after, before[variable.path]):
            np.testing.assert_allclose(after, (1 - 0.1 * 0.5) * before[variable.path], rtol=1e-6)
            decayed.add(variable.path)
    # Matrices and nothing else: patches, query-key-value, output, two of the MLP, pre_logits, head.
    assert len(decayed) == 7
    assert all(path.split("/")[-1] == "kernel" for path in decayed)
    kept = {path.split("/")[-1] for path in before if path not in decayed}
    assert {"bias", "gamma", "beta"} < kept and "kernel" not in kept
    assert any("position" in path for path in set(before) - decayed)
    assert any("class_token" in path for path in set(before) - decayed)


def test_clips_the_global_norm(model):
    optimizer = create_optimizer("sgd", 1.0, model, momentum=0.0, clip_norm=2.0)
    variables = model.trainable_variables
    before = [variable.numpy() for variable in variables]
    optimizer.apply([10.0 * keras.ops.ones(variable.shape) for variable in variables], variables)
    steps = [v.numpy() - b for v, b in zip(variables, before, strict=True)]
    assert np.sqrt(sum(np.sum(step**2) for step in steps)) == pytest.approx(2.0, rel=1e-4)
    assert (
        np.ptp(np.concatenate([step.ravel() for step in steps])) < 1e-5
    )  # one direction kept over all variables


def test_settings(model):
    adamw = create_optimizer("adamw", 0.1, model).get_config()
    assert (adamw["beta_1"], adamw["beta_2"], adamw["epsilon"]) == (0.9, 0.999, 1e-8)
    assert create_optimizer("sgd", 0.1, model).get_config()["momentum"] == 0.9
    assert create_optimizer("sgd", 0.1, model, momentum=0.0).get_config()["momentum"] == 0.0


def test_refuses_an_unknown_name(model):
    with pytest.raises(ValueError, match="optimizer must be one of 'adamw', 'sgd'; got optimizer='adam'"):
        create_optimizer("adam", 0.1, model)


def test_refuses_an_unbuilt_model():
    with pytest.raises(ValueError, match="model must be built"):
        create_optimizer("sgd", 0.1, keras.Sequential([keras.layers.Dense(1)]))
