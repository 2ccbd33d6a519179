"""Attention distance against loops over tokens, and receptive fields against the figures that are known of ResNets."""

import numpy as np
import pytest
from families import FAMILIES, built
from faults import for_each

import keras_vit
from keras_vit.analysis import attention_weights, mean_attention_distance, receptive_field


def make_images(count=2, size=(32, 32)):
    return np.random.default_rng(0).uniform(-1, 1, (count, *size, 3)).astype("float32")


@pytest.mark.parametrize("name", ["plain", "registers", "hybrid", "DeiT distilled"])
def test_distance_is_that_of_a_loop(name):
    model = built(name)
    images = make_images(3)
    prefix = model.config.num_prefix_tokens
    expected = np.zeros((2, 3))
    for index, block in enumerate(attention_weights(model, images)):
        for query in range(16):
            for key in range(16):
                away = 8 * np.hypot(query // 4 - key // 4, query % 4 - key % 4)
                expected[index] += away * block[:, :, prefix + query, prefix + key].mean(0) / 16
    found = mean_attention_distance(model, images, batch_size=2 if name == "plain" else 3)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_distance_in_a_rectangle_of_rectangles():
    config = FAMILIES["plain"].config.replace(image_size=(32, 24), patch_size=(16, 4))
    model = keras_vit.VisionTransformer(config)
    weights = np.mean([block for block in attention_weights(model, make_images(1, (32, 24)), 0)][0], 0)
    places = np.array([(16 * row, 4 * column) for row in range(2) for column in range(6)])
    away = np.linalg.norm(places[:, None] - places, axis=-1)
    expected = (weights[:, 1:, 1:] * away).sum(-1).mean(-1)
    np.testing.assert_allclose(
        mean_attention_distance(model, make_images(1, (32, 24)), layers="block_00")[0], expected, rtol=1e-6
    )


def test_even_attention_of_an_axial_model():
    model = FAMILIES["axial"].build(image_size=(24, 32))
    for weight in model.trainable_weights:
        if "qkv" in weight.path:
            weight.assign(np.zeros(weight.shape))
    rows, columns = mean_attention_distance(model, make_images(1, (24, 32)), [0, 1])
    along_row = 8 * np.abs(np.subtract.outer(range(4), range(4))).mean()
    along_column = 8 * np.abs(np.subtract.outer(range(3), range(3))).mean()
    np.testing.assert_allclose(rows, along_row, rtol=1e-6)
    np.testing.assert_allclose(columns, along_column, rtol=1e-6)


def _swin_by_hand(model, images, block):
    """Distances in the windows of one block of the first stage, from `SwinBlock`'s description of its windows."""
    layer = model.get_layer(block)
    (weights,) = attention_weights(model, images, block)
    (height, width), window, shift = layer.padded_size, layer.built_window, layer.built_shift
    rows, columns = model.config.stage_size(0)
    total, queries = 0, 0
    for index in range(weights.shape[1]):
        y, x = (window * part for part in divmod(index, width // window))
        tokens = [((y + i + shift) % height, (x + j + shift) % width) for i in range(window) for j in range(window)]
        for q, (qy, qx) in enumerate(tokens):
            if qy >= rows or qx >= columns:
                continue
            queries += 1
            for k, (ky, kx) in enumerate(tokens):
                if ky < rows and kx < columns:
                    total = total + 2 * np.hypot(qy - ky, qx - kx) * weights[:, index, :, q, k].mean(0)
    return total / queries


@pytest.mark.parametrize("block", ["stage_1_block_00", "stage_1_block_01"])
def test_distance_in_padded_and_shifted_windows(block):
    model = FAMILIES["Swin"].build(image_size=(22, 28))  # 11 x 14 patches in windows of 4
    images = make_images(1, (22, 28))
    (found,) = mean_attention_distance(model, images, block)
    np.testing.assert_allclose(found, _swin_by_hand(model, images, block), rtol=1e-5)


def test_stages_of_a_swin_reach_farther_and_have_their_own_heads():
    distances = mean_attention_distance(built("Swin"), make_images())
    assert distances.shape == (4, 4)
    assert np.isnan(distances[:2, 2:]).all() and np.isfinite(distances[:2, :2]).all()
    assert np.isfinite(distances[2:]).all()
    assert np.nanmax(distances[:2]) < 2 * 3 * np.sqrt(2) < distances[2:].max() * 2  # pixels across a window of 4


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        # 427 pixels: ResNet-50 with the stride in the 3 x 3 convolution
        (keras_vit.BiT_R50x1(weights=None, image_size=32).config, (19, 27, 35, 43, 59, 75, 91, 107)),
        (keras_vit.ResNetConfig(stage_sizes=(3, 4, 9)), (19, 27, 35, 43, 59, 75, 91, 107)),
    ],
)
def test_receptive_field_of_a_resnet(config, expected):
    sides = receptive_field(config)
    assert tuple(sides[:8]) == expected and len(sides) == sum(config.stage_sizes)
    assert sides[-1] == {(3, 4, 6, 3): 427, (3, 4, 9): 363}[tuple(config.stage_sizes)]


def test_receptive_field_is_what_a_cell_is_made_of():
    """From one cell of the last map backwards through every convolution and pooling: kernel, stride."""
    steps = [(7, 2), (3, 2), (3, 1), (3, 1), (3, 2), (3, 1), (3, 2)]  # root and stages of 2, 2 and 1 units
    first = last = 1000
    for kernel, stride in reversed(steps):
        first, last = first * stride, last * stride + kernel - 1
    config = keras_vit.ResNetConfig(stage_sizes=(2, 2, 1))
    assert receptive_field(config)[-1] == last - first + 1


@for_each(
    ("arguments", "message"),
    [
        ({"patch_size": 8}, "patch_size must be given with weights, and only then; got patch_size=8"),
        ({"images": None}, "a model requires images"),
        ({"model": np.ones((1, 1, 1, 5, 5)), "images": None}, "patch_size must be given with weights"),
    ],
)
def test_arguments_are_checked(arguments, message):
    with pytest.raises(ValueError, match=message):
        mean_attention_distance(**{"model": built("plain"), "images": make_images(), **arguments})


def test_a_receptive_field_needs_a_resnet():
    with pytest.raises(TypeError, match="config must be a BiTConfig or a ResNetConfig; got ViTConfig"):
        receptive_field(FAMILIES["plain"].config)
