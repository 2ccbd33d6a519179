"""Maps of heads and their strength against sums over tokens."""

import numpy as np
import pytest
from families import FAMILIES, built

from keras_vit.analysis import attention_weights, head_maps, head_strength


def make_images(count=2, size=(32, 32)):
    return np.random.default_rng(0).uniform(-1, 1, (count, *size, 3)).astype("float32")


@pytest.mark.parametrize(("name", "prefix"), [("plain", 1), ("DeiT distilled", 2)])
def test_a_class_token_looks_for_the_image(name, prefix):
    model = built(name)
    (weights,) = attention_weights(model, make_images(), "block_00")
    expected = weights[:, :, 0, prefix:].reshape(2, 3, 4, 4)
    np.testing.assert_allclose(head_maps(model, make_images(), "block_00", batch_size=1), expected, atol=1e-6)


def test_without_one_the_patches_look():
    model = built("registers")  # three registers, no class token
    (weights,) = attention_weights(model, make_images(), -1)
    expected = weights[:, :, 3:, 3:].mean(2).reshape(2, 3, 4, 4)
    np.testing.assert_allclose(head_maps(model, make_images()), expected, atol=1e-6)


def test_rows_columns_and_windows_are_put_together():
    model = FAMILIES["axial"].build(image_size=(24, 32))
    rows, columns = attention_weights(model, make_images(size=(24, 32)), [0, 1])
    maps = [head_maps(model, make_images(size=(24, 32)), layer) for layer in (0, 1)]
    np.testing.assert_allclose(maps[0], rows.mean(3).transpose(0, 2, 1, 3) / 3, atol=1e-6)
    np.testing.assert_allclose(maps[1], columns.mean(3).transpose(0, 2, 3, 1) / 4, atol=1e-6)
    model = built("Swin")
    (windows,) = attention_weights(model, make_images(), "stage_2_block_00")  # (2, 4 windows, 4 heads, 16, 16)
    expected = windows.mean(3).reshape(2, 2, 2, 4, 4, 4).transpose(0, 3, 1, 4, 2, 5).reshape(2, 4, 8, 8) / 4
    np.testing.assert_allclose(head_maps(model, make_images(), "stage_2_block_00"), expected, atol=1e-6)


def test_strength():
    even, one, half = np.ones((4, 4)), np.zeros((4, 4)), np.zeros((4, 4))
    one[2, 1] = 0.3
    half[:2] = 0.1
    np.testing.assert_allclose(head_strength([even, one, half, 0 * one]), [0, 15 / 16, 0.5, 0])


def test_a_class_token_that_no_head_reads_does_not_look():
    model = FAMILIES["plain"].build(class_token=True, pooling="gap")
    (weights,) = attention_weights(model, make_images(), -1)
    expected = weights[:, :, 1:, 1:].mean(2).reshape(2, 3, 4, 4)
    np.testing.assert_allclose(head_maps(model, make_images()), expected, atol=1e-6)
