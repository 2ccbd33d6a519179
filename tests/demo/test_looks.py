"""What a look finds is what the package's functions give, for models with and without attention."""

import dataclasses

import numpy as np
import pytest
from families import CLASSES, FAMILIES

import keras_vit
from keras_vit import analysis
from keras_vit.demo import looks

WITH_ATTENTION = {"plain": 2, "registers": 2, "merging": 2, "DeiT distilled": 2, "axial": 4, "Swin": 2}


def image(size=(48, 40)):
    return np.random.default_rng(0).integers(0, 256, (*size, 3), dtype="uint8")


@pytest.mark.parametrize(("name", "blocks"), WITH_ATTENTION.items())
def test_rollouts_end_with_every_block(name, blocks):
    model = FAMILIES[name].build()
    found = looks.look(model, image)
    inputs = keras_vit.preprocess(image(), model.preprocessing)
    np.testing.assert_array_equal(found.inputs, inputs)
    assert len(found.blocks) == blocks and found.remarks == []
    for depth in range(1, blocks + 1):
        rollout = analysis.attention_rollout(model, inputs, found.blocks[:depth])[0]
        np.testing.assert_allclose(found.rollouts[found.blocks[depth - 1]], rollout, atol=1e-6)
        shown = analysis.overlay(found.image, rollout).astype(int)
        assert np.abs(looks.rollout_overlay(found, depth) - shown).max() <= 1
        shown = analysis.heat_map(found.image, rollout).astype(int)
        assert np.abs(looks.rollout_heat_map(found, depth) - shown).max() <= 1
    heads = looks.head_heat_maps(found, model, 1)
    maps = analysis.head_maps(model, inputs, found.blocks[0])[0]
    assert len(heads) == len(maps)
    np.testing.assert_array_equal(heads[0], analysis.heat_map(found.image, maps[0]))
    if name == "Swin":
        assert all(block.startswith("stage_2") for block in found.blocks)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_answers_as_predict_does(name):
    model = FAMILIES[name].build()
    found = looks.look(model, image, top=3)
    expected = keras_vit.predict(model, image(), top=3)[0]
    assert [label for label, _ in found.answers] == [label for label, _ in expected]
    np.testing.assert_allclose([s for _, s in found.answers], [s for _, s in expected], atol=1e-6)
    assert len(looks.look(model, image).answers) == CLASSES
    parts = ["decode and resize", "model", *(["attention"] if found.blocks else [])]
    assert list(found.milliseconds) == parts and all(0 < took < 60_000 for took in found.milliseconds.values())


@pytest.mark.parametrize("name", ["BiT", "axial ResNet"])
def test_without_attention_a_sentence_says_so(name):
    found = looks.look(FAMILIES[name].build(), image)
    assert found.blocks == [] and found.answers
    (remark,) = found.remarks
    assert remark.startswith("There is no attention to show: model must have transformer blocks")
    assert remark.endswith("tiny has none.")


def test_a_head_of_zeros_is_told():
    found = looks.look(keras_vit.VisionTransformer(FAMILIES["plain"].config), image)
    assert found.remarks[0].startswith("The head of tiny has a kernel of zeros and returns the same")


def test_what_the_model_sees_is_shown_large_enough():
    model = FAMILIES["plain"].build()
    found = looks.look(model, image)
    assert found.image.shape == (224, 224, 3) and found.image.dtype == np.uint8
    seen = np.rint(255 * model.preprocessing.to_images(found.inputs)[0]).astype("uint8")
    np.testing.assert_array_equal(found.image[::7, ::7], seen)
    np.testing.assert_array_equal(found.image[6::7, 6::7], seen)


@pytest.mark.parametrize("brightness", [0, 255])
def test_heat_maps_are_hot_where_the_rollout_is_high(brightness):
    found = looks.look(FAMILIES["plain"].build(), lambda: np.full((48, 48, 3), brightness, "uint8"))
    rollout = np.zeros((8, 8))
    rollout[2, 5] = 1
    found = dataclasses.replace(found, rollouts={"block_00": rollout})
    heat_map = looks.rollout_heat_map(found, 1).astype(int)
    side = len(heat_map) // 8
    brightest = np.unravel_index(heat_map.sum(-1).argmax(), heat_map.shape[:2])
    assert tuple(place // side for place in brightest) == (2, 5)
    warmth = heat_map[..., 0] - heat_map[..., 2]  # red without blue: orange and yellow, not violet or grey
    assert warmth[brightest] > 100 > 20 > warmth[:, : 2 * side].max()


def test_blocks_are_counted_from_one():
    found = looks.look(FAMILIES["plain"].build(), image)
    assert [looks.block_name(found, depth) for depth in (1, 2)] == ["block_00", "block_01"]
    for depth in (0, 3, -1):
        with pytest.raises(ValueError, match=f"depth must be one of 1, 2; got depth={depth}"):
            looks.rollout_overlay(found, depth)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (ValueError("x must be\n  one; got 2"), "X must be one; got 2."),
        (OSError("No file."), "No file."),
        (ValueError(), "ValueError."),
        ("a" * 400, "A" + "a" * 295 + " ..."),
    ],
)
def test_a_message_becomes_one_sentence(message, expected):
    assert looks.sentence(message) == expected
