"""features: several intermediates at once, as tokens or as maps."""

import keras
import numpy as np
import pytest

from keras_vit import features


@pytest.mark.parametrize(
    ("changes", "prefix", "grid"),
    [
        ({}, 1, (4, 4)),
        ({"image_size": (8, 24), "num_registers": 3}, 4, (2, 6)),
        ({"classifier": "gap", "image_size": (24, 8)}, 0, (6, 2)),
    ],
)
def test_maps_are_the_patch_tokens_in_raster_order(changes, prefix, grid, make_model, pictures, run):
    model = make_model(**changes)
    names, images = ["block_01", "patch_encoder", "encoder_norm"], pictures(model)
    maps = run(features(model, names), images)
    tokens = run(keras.Model(model.input, [model.get_layer(name).output for name in names]), images)
    for name, map_, sequence in zip(names, maps, tokens, strict=True):
        skipped = 0 if name == "patch_encoder" else prefix  # prefix tokens come after the patch encoder
        assert map_.shape == (3, *grid, 16)
        for row in range(grid[0]):
            for column in range(grid[1]):
                np.testing.assert_array_equal(
                    map_[:, row, column], sequence[:, skipped + row * grid[1] + column]
                )


def test_without_grid_every_output_is_as_the_layer_gives_it(make_model, pictures, run):
    model = make_model(representation_size=6)
    names = ["class_token", "block_00", "pooling", "pre_logits", "head"]
    outputs = run(features(model, names, grid=False), pictures(model))
    assert [output.shape[1:] for output in outputs] == [(17, 16), (17, 16), (16,), (6,), (5,)]
    np.testing.assert_array_equal(outputs[-1], run(model, pictures(model)))


def test_outputs_that_are_no_tokens_stay_as_they_are(make_model):
    model = make_model()
    assert [tuple(x.shape) for x in features(model, ["pooling", "head"]).outputs] == [(None, 16), (None, 5)]


def test_unpooled_logits_become_maps(make_model):
    model = make_model(classifier="token_unpooled")
    assert tuple(features(model, "head").outputs[0].shape) == (None, 4, 4, 5)


def test_one_name_is_a_list_of_one(make_model):
    model = make_model()
    assert len(features(model, "block_00").outputs) == len(features(model, ["block_00"]).outputs) == 1


def test_weights_are_shared(make_model, pictures, run):
    model = make_model()
    blocks = features(model, ["block_01"])
    before = run(blocks, pictures(model))
    model.get_layer("block_01").mlp.dense2.bias.assign(np.full(16, 9.0))
    assert np.abs(run(blocks, pictures(model))[0] - before[0]).max() > 5


@pytest.mark.parametrize(
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
        features(make_model(), names)
