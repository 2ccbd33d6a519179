"""AxialResNet: its count of parameters, its intermediates, training, saving and other image sizes."""

import keras
import numpy as np
import pytest
from slow_rows import slow_after

import keras_vit
from keras_vit.config import AxialResNetConfig, ViTConfig
from keras_vit.models.resnet import AxialResNet

TINY = {
    "name": "tiny-axial",
    "image_size": (40, 24),
    "stage_sizes": (2, 1),
    "width_factor": 0.125,
    "num_heads": 2,
    "classes": 5,
}


@pytest.mark.slow
def test_parameters_of_axial_resnet_50():
    """The formula, with d channels of attention in 8 heads along an axis of K cells:

    attention:  2 d^2 of the projection to query, key and value, (2K - 1) 2d / 8 relative positions, and batch norms of
                2d channels (projection), 3 x 8 (logits) and 2d (outputs);
    unit:       c d down and d 2d up, an attention along each axis, batch norms of d and 2d channels; where it changes
                channels or size, c 2d and a batch norm of 2d for the shortcut;
    model:      49 x 3 x 64 and a batch norm of 64 for the root, 2048 x 1000 + 1000 for the head.

    A batch norm has 2 trained and 2 moving numbers per channel. The trained ones are the 43,973,480 of `axial50l` in
    csrhddlam/axial-deeplab, counted by torch.
    """
    trained, norm_channels = 49 * 3 * 64, 64
    channels, side = 64, 224 // 4
    for index, num_units in enumerate((3, 4, 6, 3)):
        d = 128 * 2**index
        for unit in range(num_units):
            trained += channels * d + d * 2 * d + 2 * (2 * d * d + (2 * side - 1) * 2 * d // 8)
            norm_channels += d + 2 * d + 2 * (2 * d + 3 * 8 + 2 * d)
            if unit == 0:
                trained += channels * 2 * d
                norm_channels += 2 * d
                side = side if index == 0 else side // 2
            channels = 2 * d
    trained += 2 * norm_channels + channels * 1000 + 1000
    assert trained == 43_973_480
    assert trained + 2 * norm_channels == 44_148_968
    config = AxialResNetConfig(name="AxialResNet-50", image_size=224, stage_sizes=(3, 4, 6, 3))
    with keras.StatelessScope(initialize_variables=False):
        model = AxialResNet(config)
    counts = [sum(int(np.prod(w.shape)) for w in weights) for weights in (model.trainable_weights, model.weights)]
    total = model.count_params()
    keras.utils.clear_session()  # else the next model would allocate these variables
    assert counts == [trained, trained + 2 * norm_channels] and total == counts[1]


def test_intermediates_have_names_and_sizes_round_up():
    model = _make_model()
    assert [layer.name for layer in model.layers] == [
        "images",
        "root_conv",
        "root_norm",
        "root_relu",
        "root_pool",
        "stage_1",
        "stage_2",
        "pooling",
        "head",
    ]
    shapes = {layer.name: layer.output.shape for layer in model.layers}
    assert shapes["root_conv"] == (None, 20, 12, 8) and shapes["root_pool"] == (None, 10, 6, 8)
    assert shapes["stage_1"] == (None, 10, 6, 32) and shapes["stage_2"] == (None, 5, 3, 64)
    assert shapes["pooling"] == (None, 64) and shapes["head"] == (None, 5)
    odd = AxialResNet(AxialResNetConfig(**TINY | {"image_size": (37, 9), "stage_sizes": (1, 1, 1)}))
    assert odd.get_layer("stage_3").output.shape == (None, 3, 1, 128)
    assert odd(np.ones((2, 37, 9, 3), "float32")).shape == (2, 5)


def test_paths_of_weights():
    paths = [weight.path for weight in _make_model().weights]
    assert len(paths) == len(set(paths))
    for path in (
        "root_conv/kernel",
        "root_norm/moving_mean",
        "stage_1/unit_01/shortcut/kernel",
        "stage_1/unit_02/height_attention/relative_positions",
        "stage_2/unit_01/width_attention/qkv/kernel",
        "stage_2/unit_01/up_norm/gamma",
        "head/bias",
    ):
        assert path in paths


def test_is_its_stages_one_after_the_other(make_images):
    model = _make_model()
    x = images = make_images(model, 2)
    for layer in model.layers[1:-2]:
        x = layer(x)
    features = _numpy(x).mean(axis=(1, 2))
    head = model.get_layer("head")
    np.testing.assert_allclose(_numpy(model(images)), features @ _numpy(head.kernel) + _numpy(head.bias), atol=1e-4)


def test_settings_reach_the_layers():
    model = AxialResNet(AxialResNetConfig(**TINY | {"epsilon": 1e-3, "classifier_activation": "softmax"}))
    norms = [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.BatchNormalization)]
    # the root's; in each of three units the two of the bottleneck and six per attention; two of shortcuts
    assert len(norms) == 1 + 3 * (2 + 2 * 6) + 2
    assert {norm.epsilon for norm in norms} == {1e-3} and {norm.momentum for norm in norms} == {0.9}
    assert model.get_layer("stage_1").units[0].height_attention.num_heads == 2
    np.testing.assert_allclose(_numpy(model(np.ones((2, 40, 24, 3), "float32"))), 0.2)  # the head starts at 0


def test_without_top_ends_at_the_pooled_features(make_images):
    model = _make_model(include_top=False)
    assert model.layers[-1].name == "pooling"
    assert model(make_images(model, 2)).shape == (2, 64)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", slow_after(1, ["float32", "mixed_bfloat16"]))
def test_trains_saves_and_reloads(dtype, make_images, tmp_path):
    model = _make_model(dtype=dtype, stage_sizes=(1, 1))
    images = make_images(model, 6)
    assert model.output.dtype == "float32"
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    eager = keras.backend.backend() == "tensorflow"  # four steps are faster than one compilation
    model.compile(keras.optimizers.SGD(0.01), loss, jit_compile=False, run_eagerly=eager)
    losses = model.fit(images, np.arange(6) % 5, batch_size=6, epochs=4, verbose=0).history["loss"]
    assert np.isfinite(losses).all() and losses[-1] < 0.9 * losses[0]
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert type(again) is AxialResNet and again.config == model.config and again.config.dtype == dtype
    logits = _numpy(model(images))
    assert np.isfinite(logits).all() and np.abs(logits).max() > 0.01
    np.testing.assert_array_equal(_numpy(again(images)), logits)


@pytest.mark.slow
def test_mixed_bfloat16_is_close_to_float32(make_images):
    model, rough = _make_model(), _make_model(dtype="mixed_bfloat16")
    images = make_images(model)
    logits = _numpy(model(images))
    assert {weight.dtype for weight in rough.weights} == {"float32"}
    np.testing.assert_allclose(_numpy(rough(images)), logits, atol=0.05 * np.abs(logits).max())


@pytest.mark.slow
def test_other_image_size_takes_all_weights_and_resizes_the_relative_positions(make_images, tmp_path):
    model = _make_model()
    model.save_weights(tmp_path / "model.weights.h5")
    resized = keras_vit.resize(model, (48, 64))
    loaded = AxialResNet(model.config.replace(image_size=(48, 64)))
    loaded.load_weights(tmp_path / "model.weights.h5")
    others = 0
    for old, new, read in zip(model.weights, resized.weights, loaded.weights, strict=True):
        np.testing.assert_allclose(_numpy(new), _numpy(read), atol=1e-6)
        if old.path.endswith("relative_positions"):
            middle, new_middle = old.shape[0] // 2, new.shape[0] // 2  # offset 0
            np.testing.assert_allclose(_numpy(new)[new_middle], _numpy(old)[middle], atol=1e-6)
            np.testing.assert_allclose(_numpy(new)[[0, -1]], _numpy(old)[[0, -1]], atol=1e-6)
            others += old.shape != new.shape
        else:
            np.testing.assert_array_equal(_numpy(new), _numpy(old))
    assert others == 2 * 3
    assert np.isfinite(_numpy(resized(make_images(resized)))).all()
    back = keras_vit.resize(resized, (40, 24))
    assert back.config == model.config


@pytest.mark.slow
def test_clone_has_equal_outputs(make_images):
    model = _make_model()
    images = make_images(model)
    np.testing.assert_array_equal(_numpy(keras_vit.clone(model)(images)), _numpy(model(images)))


def test_config_of_another_architecture_is_refused():
    config = ViTConfig(
        name="v", image_size=16, patch_size=4, hidden_dim=8, num_layers=1, num_heads=1, mlp_dim=8, classes=2
    )
    with pytest.raises(TypeError, match="config must be a keras_vit.AxialResNetConfig; got ViTConfig"):
        AxialResNet(config)


def _make_model(**changes):
    """A tiny model of random weights, with variances above 0 and kernels that keep the values near 1."""
    model = AxialResNet(AxialResNetConfig(**{**TINY, **changes}))
    rng = np.random.default_rng(5)
    for weight in model.weights:
        values = rng.normal(0.0, 0.3, weight.shape)
        if weight.path.endswith("moving_variance"):
            values = 0.7 + np.abs(values)
        elif weight.path.endswith("gamma"):
            values = 0.7 + values
        elif weight.path.endswith("kernel"):
            values /= 0.3 * np.sqrt(np.prod(weight.shape[:-1]))
        weight.assign(values.astype("float32"))
    return model


def _numpy(tensor):
    return keras.ops.convert_to_numpy(keras.ops.cast(tensor, "float32"))
