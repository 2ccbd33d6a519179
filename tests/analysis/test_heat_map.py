"""Heat maps: the colours of matplotlib's scale, brighter with attention whatever the image is."""

import numpy as np
import pytest
from faults import for_each
from PIL import Image

from keras_vit.analysis.overlay import enlarge, heat_map

RISING = np.linspace(0, 1, 14 * 14).reshape(14, 14)
IMAGES = {
    "black": np.zeros((224, 224, 3), "uint8"),
    "white": np.full((224, 224, 3), 255, "uint8"),
    "red": np.full((224, 224, 3), (255, 0, 0), "uint8"),
    "green": np.full((224, 224, 3), (0, 255, 0), "uint8"),
    "blue": np.full((224, 224, 3), (0, 0, 255), "uint8"),
}


def lightness(colours):
    """L* of CIE 1976, from 0 to 100, of sRGB colours (..., 3)."""
    shares = np.asarray(colours, "float64") / 255
    linear = np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)
    luminance = linear @ (0.2126, 0.7152, 0.0722)
    return np.where(luminance > (6 / 29) ** 3, 116 * np.cbrt(luminance) - 16, luminance * (29 / 3) ** 3)


@pytest.mark.parametrize("image", IMAGES.values(), ids=list(IMAGES))
def test_more_attention_is_brighter_on_images_of_any_colour(image):
    shown = lightness(heat_map(image, RISING, smooth=False, quantile=1)[8::16, 8::16]).ravel()
    assert (np.diff(shown) > -0.5).all() and shown[-1] > shown[0] + 30  # of 100; uint8 is rounded
    assert (shown[10:] > shown[:-10]).all()


def test_most_attention_on_black_is_brighter_than_least_on_white():
    image = IMAGES["white"].copy()
    image[:, :112] = 0
    attention = np.zeros((14, 14))
    attention[:, :7] = 1
    shown = lightness(heat_map(image, attention, smooth=False))
    assert shown[:, :112].min() > shown[:, 112:].max() + 20


def test_colours_are_those_of_inferno():
    """Against matplotlib's 256 colours, which cover 0.55 to 0.75 of a black image, whose grey is 0.3 of white."""
    from matplotlib import colormaps

    shown = heat_map(IMAGES["black"], RISING, smooth=False, quantile=1)[8::16, 8::16]
    covered = np.linspace(0.55, 0.75, RISING.size).reshape(14, 14, 1)
    expected = 255 * (covered * colormaps["inferno"](0.9 * RISING)[..., :3] + (1 - covered) * 0.3)
    assert np.abs(shown - expected).max() <= 7  # nine straight lines


def test_steps_look_alike_to_the_colour_blind():
    """Of equal steps of attention, none changes lightness, which everybody sees, more than twice the mean."""
    shown = lightness(heat_map(IMAGES["black"], np.linspace(0, 1, 14)[None], smooth=False, quantile=1)[0, 8::16])
    steps = np.diff(shown)
    assert steps.min() > 0.4 * steps.mean() and steps.max() < 2 * steps.mean()


@pytest.mark.parametrize("smooth", [True, False])
def test_it_is_hottest_where_an_overlay_is_brightest(smooth):
    attention = np.full((14, 14), 0.01)
    attention[3, 9] = attention[3, 10] = 1
    shown = lightness(heat_map(IMAGES["black"], attention, smooth=smooth))
    light = enlarge(attention, 224, smooth=smooth)
    assert light.flat[shown.argmax()] > 0.98
    assert np.corrcoef(shown.ravel(), light.ravel())[0, 1] > 0.95


def test_the_image_shows_in_grey():
    """Where nothing is attended to it is Pillow's grey, from 0.3 of white on, at 0.45 of its brightness."""
    image = np.random.default_rng(0).integers(0, 256, (28, 28, 3), "uint8")
    attention = np.zeros((2, 2))
    attention[1, 1] = 1
    shown = heat_map(image, attention, smooth=False)
    grey = np.asarray(Image.fromarray(image).convert("L"), "float64")
    expected = 0.45 * (0.3 * 255 + 0.7 * grey)
    assert np.ptp(shown[:14].max(-1)) > 50
    np.testing.assert_allclose(
        shown[:14], np.repeat(expected[:14, :, None], 3, -1), atol=3
    )  # the first colour has 4 of blue


def test_an_even_map_is_hot_everywhere():
    for attention in (np.full((14, 14), 1 / 197), np.zeros((2, 2))):
        shown = heat_map(IMAGES["white"], attention)
        assert (shown == shown[0, 0]).all() and shown[0, 0, 0] > 240 > 150 > shown[0, 0, 2]


def test_grey_and_float_images_are_alike():
    levels = np.arange(64, dtype="uint8").reshape(8, 8) * 4
    expected = heat_map(np.repeat(levels[..., None], 3, -1), np.eye(2))
    assert expected.shape == (8, 8, 3) and expected.dtype == np.uint8
    for image in (levels, levels[..., None], levels / 255, (levels / 255).astype("float32")):
        np.testing.assert_array_equal(heat_map(image, np.eye(2)), expected)


def test_outliers_are_cut_as_in_an_overlay():
    attention = np.full((14, 14), 0.001)
    attention[4:8, 4:8] = 0.01
    attention[0, 0] = attention[13, 13] = 0.04
    dark, cut = (
        heat_map(IMAGES["black"], attention, smooth=False, quantile=quantile)[:, :, 0] for quantile in (1, 0.97)
    )
    assert cut[80, 80] == cut[0, 0] == dark[0, 0] > dark[80, 80] + 60


@for_each(
    ("arguments", "message"),
    [
        ({"image": np.zeros((8, 8, 4))}, r"image must have shape \(height, width, 1 or 3\); got \(8, 8, 4\)"),
        ({"image": np.full((8, 8, 3), 1.5)}, r"image must be uint8, or floats in \[0, 1\]; got float64 from 1.5"),
        ({"attention": np.zeros((1, 2, 2))}, r"attention must be a map .* got shape \(1, 2, 2\)"),
        ({"attention": np.array([[1, np.nan]])}, "attention must be a map .* of finite numbers"),
        ({"attention": -np.ones((2, 2))}, "finite numbers from 0"),
        ({"quantile": 0}, r"quantile must be a number in \(0, 1\]; got quantile=0"),
        ({"smooth": 1}, "smooth must be True or False; got smooth=1"),
    ],
)
def test_arguments_are_checked(arguments, message):
    with pytest.raises(ValueError, match=message):
        heat_map(**{"image": np.zeros((8, 8, 3), "uint8"), "attention": np.eye(2), **arguments})
