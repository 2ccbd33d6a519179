"""The targets of masked patch prediction, against a golden case and a statement in NumPy's loops."""

import pathlib

import numpy as np
import pytest
from keras import ops

from keras_vit.models.masked_images import cut_patches, join_patches
from keras_vit.models.masked_patches import TARGETS, class_colors, color_classes, mean_colors

PATCH = 16


@pytest.fixture(scope="module")
def golden():
    """Images in [-1, 1] of 4 x 4 patches, and their targets as written down in plain NumPy."""
    with np.load(pathlib.Path(__file__).with_name("golden_mpp_targets.npz")) as arrays:
        return dict(arrays)


@pytest.fixture(scope="module")
def golden_patches(golden):
    return cut_patches((golden["images"] + 1) / 2, (4, 4))


def numpy(tensor):
    return ops.convert_to_numpy(tensor)


def test_classes_of_the_golden_case(golden, golden_patches):
    for name, expected in (("mean_color", "mean_colour_target"), ("downsampled", "downsampled_4x4_target")):
        np.testing.assert_array_equal(numpy(TARGETS[name].of(golden_patches)), golden[expected])


def test_means_of_the_golden_case(golden, golden_patches):
    means, cells = numpy(mean_colors(golden_patches)), numpy(mean_colors(golden_patches, 4))
    np.testing.assert_allclose(means[:, :, 0, 0], golden["mean_colour"], atol=1e-6)
    np.testing.assert_allclose(cells, golden["downsampled_4x4"], atol=1e-6)


def test_pixels_of_the_golden_case(golden, golden_patches):
    pixels = TARGETS["pixels"].of(golden_patches)
    np.testing.assert_allclose(2 * numpy(pixels) - 1, golden["raw_pixels"], atol=1e-6)
    as_given = numpy(TARGETS["pixels"].of(cut_patches(golden["images"], (4, 4))))
    np.testing.assert_array_equal(as_given, golden["raw_pixels"])


@pytest.mark.parametrize("channels", [1, 3])
def test_targets_said_plainly(channels):
    """Images of 8 x 24 pixels in 2 x 3 patches of 4 x 8."""
    levels = np.random.default_rng(0).uniform(size=(2, 8, 24, channels)).astype("float32")
    patches = cut_patches(levels, (2, 3))
    colors, cells, pixels = (numpy(TARGETS[name].of(patches)) for name in TARGETS)
    assert (colors.shape, cells.shape, pixels.shape) == ((2, 6), (2, 6, 16), (2, 6, 32 * channels))

    def color_class(region):
        bins = [min(int(8 * region[..., channel].mean()), 7) for channel in range(channels)]
        return bins[0] if channels == 1 else 64 * bins[0] + 8 * bins[1] + bins[2]

    for image in range(2):
        for patch in range(6):
            row, column = divmod(patch, 3)
            region = levels[image, 4 * row : 4 * row + 4, 8 * column : 8 * column + 8]
            assert colors[image, patch] == color_class(region)
            np.testing.assert_array_equal(pixels[image, patch], region.reshape(-1))
            expected = [color_class(region[i : i + 1, 2 * j : 2 * j + 2]) for i in range(4) for j in range(4)]
            assert cells[image, patch].tolist() == expected
    np.testing.assert_array_equal(join_patches(numpy(patches), (2, 3)), levels)


def test_levels_at_and_beyond_the_ends():
    levels = np.array([-1e-6, 0.0, 0.124, 0.125, 0.999, 1.0, 1.1], "float32")
    assert numpy(color_classes(levels[:, None])).tolist() == [0, 0, 0, 1, 7, 7, 7]


@pytest.mark.parametrize("channels", [1, 3])
def test_the_color_of_a_class_is_of_that_class(channels):
    colors = class_colors(channels)
    assert colors.shape == (8**channels, channels)
    np.testing.assert_array_equal(numpy(color_classes(colors)), np.arange(8**channels))


def test_images_of_predicted_classes():
    """Two classes, three to one: the expected colour lies between them, the likeliest is the first."""
    first, second = 64 * 7 + 8 * 0 + 3, 64 * 1 + 8 * 4 + 3
    logits = np.full((1, 2, 512), -1e4, "float32")
    logits[..., first], logits[..., second] = np.log(3), 0.0
    middles = np.array([[7.5, 0.5, 3.5], [1.5, 4.5, 3.5]]) / 8
    for colors, expected in (("expected", 0.75 * middles[0] + 0.25 * middles[1]), ("likeliest", middles[0])):
        images = TARGETS["mean_color"].images(logits, (4, 6, 3), colors)
        np.testing.assert_allclose(images, np.broadcast_to(expected, (1, 2, 4, 6, 3)), atol=1e-6)


def test_images_of_predicted_cells_and_pixels():
    levels = np.random.default_rng(0).uniform(-0.2, 1.2, size=(2, 8, 12, 1)).astype("float32")
    patches = cut_patches(levels, (1, 1))
    logits = 100.0 * np.eye(8)[numpy(TARGETS["downsampled"].of(patches))]
    cells = numpy(mean_colors(patches, 4)).clip(0, 1).repeat(2, 2).repeat(3, 3)
    assert np.abs(TARGETS["downsampled"].images(logits, (8, 12, 1)) - cells).max() <= 1 / 16 + 1e-6
    pixels = TARGETS["pixels"].images(numpy(TARGETS["pixels"].of(patches)), (8, 12, 1))
    np.testing.assert_array_equal(pixels, numpy(patches).clip(0, 1))
