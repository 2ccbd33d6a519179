"""feature_extractor: several intermediates at once, as tokens or as maps."""

import keras
import numpy as np
import pytest
from faults import for_each

from keras_vit import SwinConfig, SwinTransformer, VisionTransformer, feature_extractor


@pytest.mark.parametrize(
    ("changes", "prefix", "grid"),
    [
        ({}, 1, (4, 4)),
        ({"image_size": (8, 24), "num_registers": 3}, 4, (2, 6)),
        ({"pooling": "gap", "image_size": (24, 8)}, 0, (6, 2)),
    ],
)
def test_maps_are_the_patch_tokens_in_raster_order(changes, prefix, grid, make_model, make_images, run):
    model = make_model(**changes)
    names, images = ["block_01", "patch_encoder", "encoder_norm"], make_images(model)
    maps = run(feature_extractor(model, names), images)
    tokens = run(keras.Model(model.input, [model.get_layer(name).output for name in names]), images)
    for name, map_, sequence in zip(names, maps, tokens, strict=True):
        skipped = 0 if name == "patch_encoder" else prefix  # prefix tokens come after the patch encoder
        assert map_.shape == (3, *grid, 16)
        for row in range(grid[0]):
            for column in range(grid[1]):
                np.testing.assert_array_equal(map_[:, row, column], sequence[:, skipped + row * grid[1] + column])


def test_without_grid_every_output_is_as_the_layer_gives_it(make_model, make_images, run):
    model = make_model(representation_size=6)
    names = ["class_token", "block_00", "pooling", "pre_logits", "head"]
    outputs = run(feature_extractor(model, names, grid=False), make_images(model))
    assert [output.shape[1:] for output in outputs] == [(17, 16), (17, 16), (16,), (6,), (5,)]
    np.testing.assert_array_equal(outputs[-1], run(model, make_images(model)))


def test_outputs_that_are_no_tokens_stay_as_they_are(make_model):
    model = make_model()
    assert [tuple(x.shape) for x in feature_extractor(model, ["pooling", "head"]).outputs] == [(None, 16), (None, 5)]


def test_unpooled_logits_become_maps(make_model):
    model = make_model(pooling="token_unpooled")
    assert tuple(feature_extractor(model, "head").outputs[0].shape) == (None, 4, 4, 5)


def test_one_name_is_a_list_of_one(make_model):
    model = make_model()
    assert len(feature_extractor(model, "block_00").outputs) == len(feature_extractor(model, ["block_00"]).outputs) == 1


def test_tokens_of_a_swin_become_the_map_of_their_stage(run):
    config = {"embed_dim": 8, "depths": (1, 1, 1), "num_heads": (1, 1, 2), "window_size": 3, "patch_size": 4}
    model = SwinTransformer(SwinConfig(name="tiny", image_size=(20, 36), classes=3, **config))
    images = np.random.default_rng(0).normal(size=(2, 20, 36, 3)).astype("float32")
    names = ["patch_encoder", "patch_map", "encoder_tokens", "encoder_norm", "stage_2"]
    first, first_map, last, last_map, middle = run(feature_extractor(model, names), images)
    assert (first.shape, last.shape, middle.shape) == ((2, 5, 9, 8), (2, 2, 3, 32), (2, 3, 5, 16))
    np.testing.assert_array_equal(first, first_map)
    np.testing.assert_array_equal(last, last_map)


def test_the_map_of_a_stem_of_ones_own_is_that_of_this_models_images(make_config, run):
    inputs = keras.Input((None, None, 3))
    stem = keras.Model(inputs, keras.layers.Conv2D(6, 2, 2, name="conv")(inputs), name="mine")
    model = VisionTransformer(make_config(patch_size=2), stem=stem)
    images = np.random.default_rng(0).normal(size=(2, 16, 16, 3)).astype("float32")
    map_, tokens = run(feature_extractor(model, ["mine", "block_00"]), images)
    np.testing.assert_allclose(map_, run(stem, images), atol=1e-6)
    assert tokens.shape == (2, 4, 4, 16)


def test_a_layer_that_was_called_outside_the_model_as_well(make_model, make_images, run):
    model = make_model()
    before = run(feature_extractor(model, ["block_00"]), make_images(model))
    model.get_layer("block_00")(keras.Input((17, 16)))
    np.testing.assert_array_equal(run(feature_extractor(model, ["block_00"]), make_images(model)), before)


def test_a_layer_that_the_model_calls_several_times_is_refused(make_model):
    model = make_model(position_placement="shared")
    with pytest.raises(ValueError, match="got 'position_embs', called 2 times"):
        feature_extractor(model, ["block_00", "position_embs"])
    assert tuple(feature_extractor(model, "block_00").outputs[0].shape) == (None, 4, 4, 16)


def test_a_model_of_another_package_is_refused():
    with pytest.raises(TypeError, match="model must be a model of keras_vit; got Sequential"):
        feature_extractor(keras.Sequential(), "dense")


def test_weights_are_shared(make_model, make_images, run):
    model = make_model()
    blocks = feature_extractor(model, ["block_01"])
    before = run(blocks, make_images(model))
    model.get_layer("block_01").mlp.dense2.bias.assign(np.full(16, 9.0))
    assert np.abs(run(blocks, make_images(model))[0] - before[0]).max() > 5


@for_each(
    ("names", "message"),
    [
        (
            ["block_00", "block_2"],
            r"names must be layers of the model, among \['images', 'patch_encoder', .* got 'block_2'",
        ),
        ("encoder", "names must be layers of the model, among .* got 'encoder'"),
        ([], "names must name at least one layer; got an empty list"),
    ],
)
def test_wrong_names_are_refused(names, message, make_model):
    with pytest.raises(ValueError, match=message):
        feature_extractor(make_model(), names)


def test_one_name_gives_an_output_that_layers_can_be_put_on(make_model, make_images):
    model = make_model()
    maps = feature_extractor(model, "block_00")
    assert tuple(maps.output.shape) == (None, 4, 4, 16)
    inputs = keras.Input((16, 16, 3))
    on_top = keras.Model(inputs, keras.layers.GlobalAveragePooling2D()(maps(inputs)))
    images = make_images(model)
    expected = keras.ops.convert_to_numpy(maps(images)).mean(axis=(1, 2))
    np.testing.assert_allclose(keras.ops.convert_to_numpy(on_top(images)), expected, atol=1e-5)


def test_maps_are_enlarged_bilinearly(make_model, make_images, run):
    model = make_model()
    maps, images = run(feature_extractor(model, "block_01"), make_images(model)), make_images(model)
    expected = keras.layers.UpSampling2D(4, "channels_last", "bilinear")(maps)
    np.testing.assert_allclose(run(feature_extractor(model, "block_01", enlarge=4), images), expected, atol=1e-5)
    with pytest.raises(ValueError, match=r"Enlarge needs images or maps of shape .* got \(None, 16\)"):
        feature_extractor(model, ["block_01", "pooling"], enlarge=2)
