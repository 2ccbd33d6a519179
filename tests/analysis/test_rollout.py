"""Attention rollout against products of matrices in NumPy; the graph of `rollout_model` against it."""

import keras
import numpy as np
import pytest
from families import FAMILIES, built
from faults import for_each

import keras_vit
from keras_vit.analysis import (
    attention_rollout,
    attention_weights,
    head_maps,
    mean_attention_distance,
    rollout_by_block,
    rollout_model,
)

GLOBAL = ("plain", "registers", "hybrid", "DeiT distilled", "DeiT-III")


def make_images(count=3, size=(32, 32)):
    return np.random.default_rng(0).uniform(-1, 1, (count, *size, 3)).astype("float32")


@pytest.mark.parametrize("name", GLOBAL)
def test_rollout(name):
    model = built(name)
    images = make_images()
    weights = attention_weights(model, images)
    maps = attention_rollout(model, images, batch_size=2 if name == "plain" else 3)
    tokens = 16 + model.config.num_prefix_tokens
    for image in range(3):
        product = np.eye(tokens)
        for block in weights:
            mixed = 0.5 * block[image].astype("float64").mean(0) + 0.5 * np.eye(tokens)
            product = mixed @ product
        row = product[0] if model.config.num_class_tokens else product[model.config.num_prefix_tokens :].mean(0)
        np.testing.assert_allclose(maps[image].ravel(), row[-16:], atol=1e-6)
    assert maps.shape == (3, 4, 4) and np.ptp(maps) > 1e-3
    graph = keras.ops.convert_to_numpy(rollout_model(model)(images))
    np.testing.assert_allclose(graph, maps, atol=1e-6)


def test_layers_are_multiplied_in_their_order():
    model = built("plain")
    weights = attention_weights(model, make_images())
    found = attention_rollout(model, make_images(), layers=[1, 0])
    np.testing.assert_allclose(found, attention_rollout(weights[::-1]), atol=1e-9)
    assert np.abs(found - attention_rollout(weights)).max() > 1e-5


@pytest.mark.parametrize(
    "name", ["plain", "Swin", *(pytest.param(n, marks=pytest.mark.slow) for n in ("DeiT distilled", "axial"))]
)
def test_rollout_by_block_ends_with_every_block(name):
    model = built(name)
    found = rollout_by_block(model, make_images())
    names = list(found)
    for depth in range(1, len(names) + 1):
        expected = attention_rollout(model, make_images(), layers=names[:depth])
        np.testing.assert_allclose(found[names[depth - 1]], expected, atol=1e-6)
    assert len(names) > 1 and np.abs(found[names[0]] - found[names[-1]]).max() > 1e-5
    np.testing.assert_allclose(found[names[-1]], attention_rollout(model, make_images()), atol=1e-6)


def test_rollout_of_an_axial_model_joins_rows_and_columns():
    """Written down by indices: a row block mixes (i, j) with (i, j'), a column block (i, j) with (i', j)."""
    model = FAMILIES["axial"].build(image_size=(24, 32))
    images = make_images(2, (24, 32))
    weights = [block.astype("float64").mean(2) for block in attention_weights(model, images)]
    rolled = np.broadcast_to(np.eye(12).reshape(3, 4, 3, 4), (2, 3, 4, 3, 4))
    for rows, columns in (weights[:2], weights[2:]):
        rolled = (rolled + np.einsum("bijk,biklm->bijlm", rows, rolled)) / 2
        rolled = (rolled + np.einsum("bjik,bkjlm->bijlm", columns, rolled)) / 2
    np.testing.assert_allclose(attention_rollout(model, images), rolled.mean((1, 2)), atol=1e-6)


def test_rollout_of_one_stage_of_a_swin():
    """Unshifted windows alone: each picks its own quarter of the map."""
    model = built("Swin")
    images = make_images(2)
    (windows,) = attention_weights(model, images, "stage_2_block_00")  # (2, 4, heads, 16, 16) on 8 x 8
    maps = attention_rollout(model, images, layers=["stage_2_block_00"])
    mixed = 0.5 * windows.astype("float64").mean(2) + 0.5 * np.eye(16)
    shares = mixed.sum(2).reshape(2, 2, 2, 4, 4) / 64  # what the keys of each window get of all 64 queries
    np.testing.assert_allclose(maps, shares.transpose(0, 1, 3, 2, 4).reshape(2, 8, 8), atol=1e-6)
    shifted = attention_rollout(model, images, layers=["stage_2_block_00", "stage_2_block_01"])
    np.testing.assert_allclose(shifted.sum((1, 2)), 1, atol=1e-6)
    np.testing.assert_allclose(attention_rollout(model, images), shifted, atol=1e-9)


def test_stages_of_a_swin_have_no_common_grid():
    with pytest.raises(ValueError, match="one grid of patches .* are on 16 x 16, 8 x 8"):
        attention_rollout(built("Swin"), make_images(), layers=[0, -1])


def test_weights_of_a_rectangle():
    rng = np.random.default_rng(1)
    weights = rng.dirichlet(np.ones(8), (2, 1, 2, 8))
    maps = attention_rollout(weights, grid_size=(2, 3), num_prefix_tokens=2)
    assert maps.shape == (1, 2, 3)
    product = np.eye(8)
    for block in weights:
        product = (block[0].mean(0) + np.eye(8)) / 2 @ product
    np.testing.assert_allclose(maps[0].ravel(), product[0, 2:], atol=1e-12)


def test_another_size_and_16_bits():
    model = keras_vit.resize(built("plain"), (24, 48))
    assert attention_rollout(model, np.zeros((2, 24, 48, 3), "float32")).shape == (2, 3, 6)
    model = FAMILIES["plain"].build(dtype="mixed_bfloat16")
    maps = keras.ops.convert_to_numpy(rollout_model(model)(make_images()))
    assert maps.dtype == "float32" and np.isfinite(maps).all()


@pytest.mark.parametrize("changes", [{"pooling": "gap"}, {"pooling": "map"}])
def test_a_class_token_that_no_head_reads_is_not_followed(changes):
    """timm's "avg" and the like keep a class token beside their pooling of the patches."""
    model = FAMILIES["plain"].build(class_token=True, **changes)
    product = np.eye(17)
    for block in attention_weights(model, make_images(1)):
        product = (block[0].mean(0) + np.eye(17)) / 2 @ product
    expected = product[1:].mean(0)[1:].reshape(4, 4)
    np.testing.assert_allclose(attention_rollout(model, make_images(1))[0], expected, atol=1e-6)
    np.testing.assert_allclose(keras.ops.convert_to_numpy(rollout_model(model)(make_images(1)))[0], expected, atol=1e-6)


def test_a_head_that_reads_the_first_patch_is_followed_there():
    model = FAMILIES["plain"].build(pooling="first")
    (weights,) = attention_weights(model, make_images(1), -1)
    expected = (weights[0].mean(0) + np.eye(16))[0].reshape(4, 4) / 2
    np.testing.assert_allclose(attention_rollout(model, make_images(1), layers=-1)[0], expected, atol=1e-6)


@for_each("call", [attention_rollout, head_maps, mean_attention_distance])
def test_what_is_no_model_is_refused(call):
    with pytest.raises(TypeError, match="model must be a keras model if images are given; got str"):
        call("ViT-Ti_16", make_images())


@pytest.mark.parametrize("name", ["axial", "Swin"])
def test_a_graph_needs_global_attention(name):
    with pytest.raises(ValueError, match="model must have global attention"):
        rollout_model(built(name))


@for_each(
    ("arguments", "message"),
    [
        ({"grid_size": (2, 2)}, "a model requires images, and must not be given grid_size"),
        ({"images": None}, "a model requires images"),
        ({"model": np.ones((1, 1, 1, 5, 5)), "images": None, "layers": -1}, "layers are for a model"),
        ({"model": [np.ones((1, 1, 5, 5)), np.ones((2, 1, 5, 5))], "images": None}, "equal images and tokens"),
        ({"model": np.full((1, 1, 1, 5, 5), np.nan), "images": None}, "weights must be finite"),
        ({"model": np.ones((1, 1, 1, 4, 4)), "images": None}, r"grid_size must be \(rows, columns\) of 3 patches"),
        ({"model": np.ones((1, 1, 4, 4)), "images": None}, r"weights must be float .* \(1, 4, 4\)"),
        ({"model": [], "images": None}, "weights must contain at least one block"),
    ],
)
def test_arguments_are_checked(arguments, message):
    with pytest.raises(ValueError, match=message):
        attention_rollout(**{"model": built("plain"), "images": make_images(), **arguments})
