"""Hybrids: the transformer on feature maps, of the ResNet of the paper or of any CNN the user brings."""

import keras
import numpy as np
import pytest
from faults import for_each

import keras_vit
from keras_vit import ResNetConfig, VisionTransformer

RESNET = ResNetConfig(stage_sizes=(1, 2), width_factor=0.5)


def cnn(input_shape=(None, None, 3), strides=2, name="cnn"):
    inputs = keras.Input(input_shape)
    maps = keras.layers.Conv2D(6, 3, strides=strides, padding="same", activation="relu")(inputs)
    maps = keras.layers.BatchNormalization()(keras.layers.Conv2D(6, 1)(maps))
    return keras.Model(inputs, maps, name=name)


def test_layers_of_a_hybrid(make_config):
    model = VisionTransformer(make_config(stem=RESNET, patch_size=1, image_size=32))
    stem = ["root_conv", "root_norm", "root_relu", "root_pool", "stage_1", "stage_2", "patch_encoder"]
    assert [layer.name for layer in model.layers][1:8] == stem
    assert model.get_layer("stage_2").output.shape == (None, 4, 4, 256)
    assert model.config.stem == RESNET.resolve() and model.config.grid_size == (4, 4)


@pytest.mark.parametrize(("image_size", "grid"), [((32, 48), (4, 6)), ((33, 40), (5, 5)), ((7, 9), (1, 2))])
def test_a_resnet_takes_inputs_of_any_size(image_size, grid, make_model):
    model = make_model(stem=RESNET, patch_size=1, image_size=image_size)
    assert model.config.grid_size == grid
    logits = model(np.ones((2, *image_size, 3), "float32"))
    assert logits.shape == (2, 5) and np.isfinite(keras.ops.convert_to_numpy(logits)).all()


def test_patches_are_cut_from_the_map_of_a_stem_of_the_users_own(make_model, make_config):
    stem = cnn()
    model = VisionTransformer(make_config(image_size=(16, 24), patch_size=(2, 4)), stem=stem)
    assert model.config.grid_size == (4, 3)  # of the map of 8 x 12
    assert model.get_layer("cnn") is stem
    images = np.random.default_rng(0).normal(size=(2, 16, 24, 3)).astype("float32")
    encoder = keras.Model(model.input, model.get_layer("patch_encoder").output)
    tokens = keras.ops.convert_to_numpy(encoder(images))
    maps = keras.ops.convert_to_numpy(stem(images))
    kernel, bias = model.get_layer("patch_encoder").get_weights()
    patch = maps[:, 2:4, 4:8].reshape(2, -1)  # second row, second column
    np.testing.assert_allclose(tokens[:, 1 * 3 + 1], patch @ kernel.reshape(-1, 16) + bias, atol=1e-5)


def test_a_stem_of_the_users_own_is_saved_cloned_and_resized(make_config, tmp_path):
    model = VisionTransformer(make_config(patch_size=2), stem=cnn())
    model.get_layer("head").set_weights([np.random.default_rng(0).normal(size=(16, 5)), np.zeros(5)])
    images = np.random.default_rng(1).normal(size=(2, 16, 16, 3)).astype("float32")
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again(images), model(images))
    assert again.config == model.config and again.get_layer("cnn") is not model.get_layer("cnn")
    np.testing.assert_array_equal(keras_vit.clone(model)(images), model(images))
    larger = keras_vit.resize(model, (24, 16))
    assert larger.config.grid_size == (6, 4) and larger(np.ones((1, 24, 16, 3))).shape == (1, 5)


@pytest.mark.slow
def test_resnet50_of_keras_as_the_stem(make_config):
    stem = keras.applications.ResNet50(include_top=False, weights=None, input_shape=(None, None, 3))
    model = VisionTransformer(make_config(image_size=64, patch_size=1), stem=stem)
    assert model.config.grid_size == (2, 2) and model.get_layer("patch_encoder").grid_size((None, 2, 2, 2048)) == (2, 2)
    assert keras.ops.convert_to_numpy(model(np.ones((1, 64, 64, 3), "float32"))).shape == (1, 5)


def test_the_stem_is_trained(make_config):
    model = VisionTransformer(make_config(patch_size=2), stem=cnn())
    model.get_layer("head").set_weights([np.random.default_rng(0).normal(size=(16, 5)), np.zeros(5)])
    before = model.get_layer("cnn").get_weights()[0]
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss, run_eagerly=True)
    images = np.random.default_rng(1).normal(size=(4, 16, 16, 3)).astype("float32")
    model.fit(images, np.arange(4), epochs=1, verbose=0)
    assert np.abs(model.get_layer("cnn").get_weights()[0] - before).max() > 0


def two_maps():
    inputs = keras.Input((None, None, 3))
    maps = keras.layers.ReLU()(inputs)
    return keras.Model(inputs, [maps, maps])


def pooled():
    inputs = keras.Input((16, 16, 3))
    return keras.Model(inputs, keras.layers.GlobalAveragePooling2D()(inputs))


@for_each(
    ("changes", "stem", "error", "message"),
    [
        ({}, lambda: "resnet", TypeError, "stem must be a keras model that ends in a feature map, or None; got str"),
        ({}, pooled, ValueError, r"stem must end in one feature map \(batch, rows, columns, channels\)"),
        ({}, two_maps, ValueError, "stem must end in one feature map"),
        (
            {},
            lambda: cnn((32, 32, 3)),
            ValueError,
            r"stem must take images of shape \(None, 16, 16, 3\), the config's; it takes \(None, 32, 32, 3\)",
        ),
        ({"stem": RESNET, "patch_size": 1}, cnn, ValueError, "config.stem must be None if stem is given"),
        ({"image_size": 4}, lambda: cnn(strides=4), ValueError, "feature map .* must be at least patch_size"),
    ],
)
def test_wrong_stems_are_refused(changes, stem, error, message, make_config):
    stem = stem()
    with pytest.raises(error, match=message):
        VisionTransformer(make_config(**{"patch_size": 2, **changes}), stem=stem)


def test_a_config_of_another_stem_needs_that_stem(make_config):
    config = VisionTransformer(make_config(patch_size=2), stem=cnn()).config
    with pytest.raises(ValueError, match="stem must be the model that config.stem describes; got None"):
        VisionTransformer(config)


@pytest.mark.parametrize("name", ["model.keras", "model.weights.h5"])
def test_files_of_keras_load_into_a_second_model_on_the_same_cnn(make_config, tmp_path, name):
    """The layers of the second CNN have other made-up names."""
    config = make_config(patch_size=2)
    model, again = (VisionTransformer(config, stem=cnn()) for _ in range(2))
    rng = np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(np.abs(rng.normal(0.1, 0.3, weight.shape)))
    (model.save if name.endswith(".keras") else model.save_weights)(tmp_path / name)
    keras_vit.load_weights(again, tmp_path / name)
    images = np.random.default_rng(1).normal(size=(2, 16, 16, 3)).astype("float32")
    np.testing.assert_array_equal(again(images), model(images))


def test_a_stem_that_is_not_functional_is_refused(make_config):
    unbuilt = keras.Sequential([keras.layers.Conv2D(4, 3)], name="mine")
    with pytest.raises(ValueError, match="stem must be a functional keras model, .* built; got 'mine'"):
        VisionTransformer(make_config(patch_size=2), stem=unbuilt)
