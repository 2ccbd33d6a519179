"""PatchCorruption: how often what happens, over many patches; and what becomes of the embeddings, in NumPy."""

import json

import keras
import numpy as np
import pytest
from faults import for_each
from keras import ops

from keras_vit.layers.patch_corruption import PatchCorruption, corrupted_count, take_tokens

BATCH, PATCHES = 400, 49  # 19,600 patches


def draw(layer, batch=BATCH, patches=PATCHES, seed=3):
    layer.build((None, patches, 2))
    return [ops.convert_to_numpy(drawn) for drawn in layer.draw(np.zeros((batch, patches, 2), "float32"), seed)]


def happened(sources, places):
    """Shares of the corrupted patches that became the learned embedding, another patch, and nothing else."""
    at_places = np.take_along_axis(sources, places, 1)
    masked, kept = at_places == -1, at_places == places
    return [float(kind.mean()) for kind in (masked, ~masked & ~kept, kept)]


@pytest.mark.parametrize(("rate", "count"), [(0.5, 24), (0.15, 7), (1.0, 49)])
def test_every_image_has_as_many_corrupted_patches(rate, count):
    sources, places = draw(PatchCorruption(rate))
    assert corrupted_count(rate, PATCHES) == count
    assert places.shape == (BATCH, count) and places.min() >= 0 and places.max() < PATCHES
    assert np.all(np.diff(places, axis=1) > 0), "ascending, none twice"
    untouched = np.ones_like(sources, bool)
    np.put_along_axis(untouched, places, False, 1)
    np.testing.assert_array_equal(sources[untouched], np.broadcast_to(np.arange(PATCHES), sources.shape)[untouched])


@pytest.mark.parametrize("shares", [(0.8, 0.1, 0.1), (0.5, 0.3, 0.2), (1, 0, 0), (0, 1, 0), (0, 0, 1)])
def test_rates_over_many_patches(shares):
    found = happened(*draw(PatchCorruption(1.0, shares)))
    deviation = np.sqrt(np.multiply(shares, np.subtract(1, shares)) / (BATCH * PATCHES))
    assert np.all(np.abs(np.subtract(found, shares)) <= 4 * deviation), found


def test_every_place_and_every_other_patch_is_equally_likely():
    """Chi-square, whose mean is its degrees of freedom and whose deviation is the root of twice that."""
    sources, places = draw(PatchCorruption(0.5, (0, 1, 0)), batch=4000, patches=10)
    others = (np.take_along_axis(sources, places, 1) - places) % 10
    for counts in (np.bincount(places.ravel(), minlength=10), np.bincount(others.ravel(), minlength=10)[1:]):
        expected = counts.sum() / len(counts)
        chi_square = ((counts - expected) ** 2 / expected).sum()
        assert chi_square < len(counts) + 4 * np.sqrt(2 * len(counts)), counts
    assert np.all(others > 0), "another one"


def test_what_becomes_of_the_embeddings():
    layer = PatchCorruption(0.75)
    tokens = np.random.default_rng(0).normal(size=(3, 4, 5)).astype("float32")
    layer.build(tokens.shape)
    sources = np.array([[-1, 1, 2, 3], [0, 3, -1, 1], [0, 1, 2, 3]], "int32")
    found = ops.convert_to_numpy(layer.corrupt(tokens, sources))
    embedding = ops.convert_to_numpy(layer.mask_embedding)
    assert embedding.shape == (5,) and 0 < np.abs(embedding).max() < 0.1
    for image, patch in np.ndindex(3, 4):
        source = sources[image, patch]
        np.testing.assert_array_equal(found[image, patch], embedding if source < 0 else tokens[image, source])


def test_one_patch_becomes_another_as_it_was_before():
    """Also where that other one is corrupted itself."""
    tokens = np.arange(8, dtype="float32").reshape(1, 8, 1)
    found = ops.convert_to_numpy(PatchCorruption(1.0, (0, 1, 0), seed=1)(tokens)[0])
    assert np.all(found != tokens) and set(found.ravel()) <= set(range(8))


def test_draws_differ_from_call_to_call_and_follow_from_the_seed():
    tokens = np.zeros((4, 16, 2), "float32")
    first, second = (PatchCorruption(0.5, seed=5) for _ in range(2))
    places = [ops.convert_to_numpy(first(tokens, training=True)[1]) for _ in range(2)]
    assert np.any(places[0] != places[1])
    ops.convert_to_numpy(second(tokens, training=False)[1])  # a validation before the first step
    again = [ops.convert_to_numpy(second(tokens, training=True)[1]) for _ in range(2)]
    np.testing.assert_array_equal(places, again)
    assert np.any(ops.convert_to_numpy(PatchCorruption(0.5)(tokens, training=True)[1]) != places[0])


def test_taking_tokens():
    tokens = np.random.default_rng(0).normal(size=(2, 5, 3)).astype("float32")
    places = np.array([[4, 0, 0], [1, -1, 2]])
    expected = np.stack([row[at] for row, at in zip(tokens, places, strict=True)])
    expected[1, 1] = 0
    np.testing.assert_array_equal(ops.convert_to_numpy(take_tokens(tokens, places)), expected)


def test_config_and_policies():
    layer = PatchCorruption(0.25, (0.5, 0.25, 0.25), seed=4, dtype="mixed_bfloat16")
    again = keras.saving.deserialize_keras_object(json.loads(json.dumps(keras.saving.serialize_keras_object(layer))))
    assert type(again) is PatchCorruption and again.get_config() == layer.get_config()
    tokens, places = layer(np.ones((2, 8, 4), "float32"))
    assert keras.backend.standardize_dtype(tokens.dtype) == "bfloat16" and places.shape == (2, 2)
    assert layer.mask_embedding.dtype == "float32"


@for_each(
    ("arguments", "message"),
    [
        ((0.0,), r"corruption_rate must be a number in \(0, 1\]; got corruption_rate=0.0"),
        ((1.5,), r"corruption_rate must be a number in \(0, 1\]; got corruption_rate=1.5"),
        ((0.5, (0.8, 0.1)), r"shares must be three probabilities that sum to 1.*; got shares=\(0.8, 0.1\)"),
        ((0.5, (0.8, 0.3, -0.1)), r"got shares=\(0.8, 0.3, -0.1\)"),
        ((0.5, (0.8, 0.1, 0.2)), r"got shares=\(0.8, 0.1, 0.2\)"),
    ],
)
def test_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        PatchCorruption(*arguments)


def test_refuses_too_few_patches():
    with pytest.raises(ValueError, match="must corrupt at least one of the 4 patches; got corruption_rate=0.1"):
        PatchCorruption(0.1).build((None, 4, 2))
    with pytest.raises(ValueError, match=r"shares\[1\] must be 0 where there is a single patch; got shares=\(0.8"):
        PatchCorruption(1.0).build((None, 1, 2))
