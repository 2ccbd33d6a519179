"""The position ablation of the paper's appendix D.4 (Table 8): what is added, and where."""

import itertools
import re

import keras
import numpy as np
import pytest
from faults import for_each

import keras_vit
from keras_vit.config.needs import values_of

COMBINATIONS = list(itertools.product(values_of("position_embedding"), values_of("position_placement")))
ILLEGAL = [(name, "stem") for name in ("relative", "relative_2d", "relative_mlp")]
ILLEGAL += [("none", "every"), ("none", "shared")]
LEGAL = [pair for pair in COMBINATIONS if pair not in ILLEGAL]

# (embedding, placement) -> names of the layers of positions, and numbers of positions they learn for 16 patches and
# a class token, in units of the width (16) or of the width of a head (8)
LAYERS = {
    ("learned", "stem"): (["position_embs"], 17 * 16),
    ("learned", "every"): (["position_embs", "position_embs_01"], 2 * 17 * 16),
    ("learned", "shared"): (["position_embs"], 17 * 16),
    ("learned_2d", "stem"): (["position_embs"], 16 + (4 + 4) * 8),
    ("learned_2d", "every"): (["position_embs", "position_embs_01"], 2 * (16 + (4 + 4) * 8)),
    ("learned_2d", "shared"): (["position_embs"], 16 + (4 + 4) * 8),
    ("factorized", "stem"): (["position_embs"], 16 + (4 + 4) * 16),
    ("factorized", "every"): (["position_embs", "position_embs_01"], 2 * (16 + (4 + 4) * 16)),
    ("factorized", "shared"): (["position_embs"], 16 + (4 + 4) * 16),
    ("sincos2d", "stem"): (["position_embs"], 0),
    ("sincos2d", "every"): (["position_embs", "position_embs_01"], 0),
    ("sincos2d", "shared"): (["position_embs"], 0),
    ("sincos2d_mae", "stem"): (["position_embs"], 0),
    ("sincos2d_mae", "every"): (["position_embs", "position_embs_01"], 0),
    ("sincos2d_mae", "shared"): (["position_embs"], 0),
    # one bias per head (2) and offset, and three with the class token
    ("relative_2d", "every"): (["attention_bias_00", "attention_bias_01"], 2 * 2 * (7 * 7 + 3)),
    ("relative_2d", "shared"): (["attention_bias"], 2 * (7 * 7 + 3)),
    # an MLP from 2 values to 128 and a bias per head (2)
    ("relative_mlp", "every"): (["attention_bias_00", "attention_bias_01"], 2 * (3 * 128 + 129 * 2)),
    ("relative_mlp", "shared"): (["attention_bias"], 3 * 128 + 129 * 2),
    ("relative", "every"): (["relative_positions", "relative_positions_01"], 2 * 31 * 8),
    ("relative", "shared"): (["relative_positions"], 31 * 8),
    ("none", "stem"): (["position_embs"], 0),
}
# Tables and places that others of these have, too.
MORE = {("learned", "shared"), ("learned_2d", "stem"), ("learned_2d", "shared"), ("sincos2d", "every")}
MORE |= {("sincos2d_mae", "every"), ("sincos2d_mae", "shared"), ("relative_2d", "shared")}
MORE |= {("sincos2d", "shared"), ("sincos2d", "stem"), ("relative", "shared"), ("learned", "every"), ("none", "stem")}
MORE |= {("learned_2d", "every"), ("sincos2d_mae", "stem"), ("factorized", "every"), ("factorized", "shared")}
MORE |= {("factorized", "stem"), ("learned", "stem"), ("relative_2d", "every"), ("relative_mlp", "every")}


@pytest.mark.parametrize(
    ("embedding", "placement"),
    [pytest.param(*pair, marks=pytest.mark.slow if pair in MORE else ()) for pair in LEGAL],
)
def test_each_legal_combination_is_built_trained_and_saved(embedding, placement, make_model, images, tmp_path):
    # The head reads patches as well: the class token, which has no relative position, would leave the last keys idle.
    model = make_model(position_embedding=embedding, position_placement=placement, pooling="gap", class_token=True)
    layers, parameters = LAYERS[embedding, placement]
    positions = [layer for layer in model.layers if re.search("position|attention_bias", layer.name)]
    assert [layer.name for layer in positions] == layers
    assert sum(layer.count_params() for layer in positions) == parameters
    before = [keras.ops.convert_to_numpy(w).copy() for layer in positions for w in layer.weights]
    eager = keras.backend.backend() == "tensorflow"  # three steps are faster than one compilation
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), run_eagerly=eager)
    losses = model.fit(images, np.arange(len(images)) % 5, epochs=3, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    after = [keras.ops.convert_to_numpy(w) for layer in positions for w in layer.weights]
    assert all(np.abs(new - old).max() > 0 for new, old in zip(after, before, strict=True))
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again(images), model(images))
    resized = keras_vit.resize(model, (24, 16))
    assert np.isfinite(keras.ops.convert_to_numpy(resized(np.ones((1, 24, 16, 3), "float32")))).all()


@for_each(("embedding", "placement"), ILLEGAL)
def test_each_illegal_combination_is_refused(embedding, placement, make_config):
    with pytest.raises(ValueError, match=f"position_placement.*position_embedding='{embedding}'.*position_placement"):
        make_config(position_embedding=embedding, position_placement=placement)


def test_every_combination_is_one_or_the_other():
    assert set(LAYERS) == set(LEGAL) and len(LEGAL) + len(ILLEGAL) == len(COMBINATIONS)


def last_tokens(model, images):
    norm = keras.Model(model.input, model.get_layer("encoder_norm").output)
    return keras.ops.convert_to_numpy(norm(images))


def permuted(images, order):
    """The 4 x 4 patches of 4 x 4 pixels in another order."""
    batch = len(images)
    patches = images.reshape(batch, 4, 4, 4, 4, 3).swapaxes(2, 3).reshape(batch, 16, 4, 4, 3)[:, order]
    return patches.reshape(batch, 4, 4, 4, 4, 3).swapaxes(2, 3).reshape(batch, 16, 16, 3)


@pytest.mark.parametrize(("embedding", "placement"), [("none", "stem"), ("learned", "stem"), ("relative", "shared")])
def test_without_positions_patch_tokens_are_permutation_equivariant(embedding, placement, make_model, images):
    model = make_model(position_embedding=embedding, position_placement=placement)
    order = np.random.default_rng(3).permutation(16)
    tokens, moved = last_tokens(model, images), last_tokens(model, permuted(images, order))
    difference = np.abs(moved[:, 1:] - tokens[:, 1:][:, order]).max()
    assert difference < 1e-4 if embedding == "none" else difference > 1e-3
    if embedding == "none":  # and so the class token does not see the order
        np.testing.assert_allclose(model(permuted(images, order)), model(images), atol=1e-4)


@pytest.mark.parametrize("placement", ["every", "shared"])
def test_positions_are_added_at_the_input_of_every_block(placement, make_model, images):
    model = make_model(position_placement=placement)
    tokens = keras.Model(model.input, model.get_layer("class_token").output)(images)
    layers = LAYERS["learned", placement][0]
    for block, layer in zip(["block_00", "block_01"], (layers * 2)[:2], strict=True):
        table = keras.ops.convert_to_numpy(model.get_layer(layer).embedding)
        tokens = model.get_layer(block)(tokens + table)
    expected = keras.ops.convert_to_numpy(model.get_layer("encoder_norm")(tokens))
    np.testing.assert_allclose(last_tokens(model, images), expected, atol=1e-5)
