"""Overlays to the pixel: a bright cell lies where its patch is."""

import numpy as np
import pytest
from faults import for_each

from keras_vit.analysis.overlay import enlarge, overlay
from keras_vit.tasks.drawing import as_uint8


def _one_cell(row, column, grid=(14, 14)):
    attention = np.zeros(grid)
    attention[row, column] = 0.7
    return attention


@pytest.mark.parametrize("grid", [(14, 14), (7, 4)])
def test_a_plain_cell_covers_its_patch_and_nothing_else(grid):
    white = np.full((grid[0] * 16, grid[1] * 16, 3), 255, "uint8")
    seen = overlay(white, _one_cell(3, 2, grid), smooth=False, quantile=1)
    expected = np.full_like(white, 51)  # a fifth of the brightness
    expected[48:64, 32:48] = 255
    np.testing.assert_array_equal(seen, expected)


@pytest.mark.parametrize("place", [(5, 8), (7, 3)])
@pytest.mark.parametrize("size", [(224, 224), (112, 448)])
def test_the_middle_of_a_smooth_cell_is_that_of_its_patch(place, size):
    light = enlarge(_one_cell(*place), size, quantile=1)
    assert light.shape == size and light.min() == 0 and light.max() == 1
    sides = [side / 14 for side in size]
    for axis, (cell, side) in enumerate(zip(place, sides, strict=True)):
        along = light.sum(1 - axis)
        middle = (along * np.arange(len(along))).sum() / along.sum()
        assert abs(middle - ((cell + 0.5) * side - 0.5)) < 0.2
        np.testing.assert_allclose(light.max(1 - axis).argmax(), (cell + 0.5) * side - 0.5, atol=0.5)


def test_the_blur_is_a_gaussian_of_a_patch():
    """Against SciPy: the same filter on what Pillow enlarges."""
    from PIL import Image
    from scipy.ndimage import gaussian_filter

    attention = np.random.default_rng(0).uniform(size=(14, 14))
    large = np.asarray(
        Image.fromarray((attention / attention.max()).astype("float32")).resize((224, 224), Image.Resampling.LANCZOS)
    )
    expected = gaussian_filter(large.astype("float64"), 16, mode="constant", truncate=20)
    expected /= gaussian_filter(np.ones_like(expected), 16, mode="constant", truncate=20)
    expected = (expected - expected.min()) / np.ptp(expected)
    np.testing.assert_allclose(enlarge(attention, 224, quantile=1), expected, atol=1e-5)


def test_few_outliers_do_not_darken_the_rest():
    attention = np.full((14, 14), 0.001)
    attention[4:8, 4:8] = 0.01
    attention[0, 0] = attention[13, 13] = 0.04
    dark, cut = (enlarge(attention, 224, smooth=False, quantile=quantile) for quantile in (1, 0.97))
    assert dark[80, 80] < 0.25 and cut[80, 80] == 1 and cut[0, 0] == 1 and cut[20, 120] == 0


def test_one_patch_alone_is_no_outlier():
    light = enlarge(_one_cell(3, 2), 224, smooth=False)
    assert light[50, 40] == 1 and light.sum() == 16 * 16


def test_an_even_map_leaves_the_image():
    image = np.random.default_rng(0).integers(0, 256, (28, 28, 3)).astype("uint8")
    np.testing.assert_array_equal(overlay(image, np.full((14, 14), 1 / 197)), image)


def test_grey_and_float_images():
    grey = np.linspace(0, 1, 64).reshape(8, 8)
    for image in (grey, grey[..., None], np.repeat(grey[..., None], 3, -1).astype("float32")):
        np.testing.assert_array_equal(as_uint8("image", image)[..., 1], np.rint(255 * grey))


@for_each(
    ("arguments", "message"),
    [
        ({"image": np.zeros((8, 8, 4))}, r"image must have shape \(height, width, 1 or 3\); got \(8, 8, 4\)"),
        ({"image": np.full((8, 8, 3), 1.5)}, r"image must be uint8, or floats in \[0, 1\]; got float64 from 1.5"),
        ({"image": np.full((8, 8, 3), -1)}, "image must be uint8, .* got int64"),
        ({"attention": np.zeros((1, 2, 2))}, r"attention must be a map .* got shape \(1, 2, 2\)"),
        ({"attention": np.array([[1, np.nan]])}, "attention must be a map .* of finite numbers"),
        ({"attention": -np.ones((2, 2))}, "finite numbers from 0"),
        ({"quantile": 0}, r"quantile must be a number in \(0, 1\]; got quantile=0"),
        ({"smooth": 1}, "smooth must be True or False; got smooth=1"),
    ],
)
def test_arguments_are_checked(arguments, message):
    with pytest.raises(ValueError, match=message):
        overlay(**{"image": np.zeros((8, 8, 3), "uint8"), "attention": np.eye(2), **arguments})
