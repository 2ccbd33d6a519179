"""Colour jitter, grey, solarize and blur; the other operations are those of RandAugment (test_randaugment.py)."""

import colorsys

import numpy as np
import PIL.Image
import PIL.ImageEnhance
import pytest
import scipy.ndimage
import scipy.stats
import tensorflow as tf
from augmented import IMAGE, PHOTO, check_determinism, draw
from faults import for_each

from keras_vit.data.augment import colour


@pytest.mark.slow
def test_the_seed_determines_the_image():
    check_determinism("color_jitter(0.4)")


@pytest.mark.slow
def test_factors_of_color_jitter():
    results = draw("color_jitter(0.3)", 200)
    assert 0 <= results.min() and results.max() <= 255
    brightness = results.mean((1, 2, 3)) / PHOTO.mean()
    assert 0.69 < brightness.min() < 0.75 and 1.2 < brightness.max() < 1.31
    # Contrast and saturation have nothing to change in a flat grey image.
    flat = draw("color_jitter(0.3)", 400, np.full((4, 4, 3), 100, np.float32))
    assert np.ptp(flat, axis=(1, 2, 3)).max() < 1e-4
    factors = flat[:, 0, 0, 0] / 100
    assert scipy.stats.kstest(factors, scipy.stats.uniform(0.7, 0.6).cdf).statistic < 0.1
    grey_levels = draw("color_jitter(1.0)", 200, IMAGE[..., :1])
    assert grey_levels.shape == (200, 64, 80, 1) and np.isfinite(grey_levels).all()
    np.testing.assert_array_equal(draw("color_jitter(0)", 2)[0], IMAGE)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_color_jitter_steps_are_those_of_pillow(order, monkeypatch):
    factors = (0.8, 1.25, 0.7)
    draws = tf.constant([factor / 2 for factor in factors] + [0.0])  # strength 1 makes factors of 2 * draw
    monkeypatch.setattr(colour, "_ORDERS", {3: (order,) * 6})
    monkeypatch.setattr(tf.random, "stateless_uniform", lambda shape, seed: draws)
    result = colour.color_jitter(1.0)(tf.constant(IMAGE), tf.constant((1, 2)))
    enhancers = (PIL.ImageEnhance.Brightness, PIL.ImageEnhance.Contrast, PIL.ImageEnhance.Color)
    expected = PIL.Image.fromarray(PHOTO)
    for place in order:
        expected = enhancers[place](expected).enhance(factors[place])
    assert np.abs(result - np.asarray(expected, np.float32)).max() < 3  # Pillow rounds down after every step


def test_hue_and_unequal_strengths():
    colours = IMAGE[::16, ::16] / 255
    hues = np.array([colorsys.rgb_to_hsv(*pixel) for pixel in colours.reshape(-1, 3)])
    shifted = draw("color_jitter(0, 0, 0, 0.25)", 200, IMAGE[::16, ::16])
    assert np.abs(shifted.max((0, 3)) - IMAGE[::16, ::16].max(-1)).max() < 0.01  # the value of HSV stays
    turns = []
    for image in shifted:
        found = np.array([colorsys.rgb_to_hsv(*pixel) for pixel in image.reshape(-1, 3) / 255])
        np.testing.assert_allclose(found[:, 1:], hues[:, 1:], atol=1e-3)
        turn = (found[:, 0] - hues[:, 0] + 0.5) % 1 - 0.5
        is_colour = hues[:, 1] > 0.1
        np.testing.assert_allclose(turn[is_colour], np.median(turn[is_colour]), atol=1e-3)
        turns.append(np.median(turn[is_colour]))
    assert scipy.stats.kstest(turns, scipy.stats.uniform(-0.25, 0.5).cdf).statistic < 0.1
    grey = draw("color_jitter(0, 0, 0, 0.5)", 2, IMAGE[..., :1])
    np.testing.assert_array_equal(grey[1], IMAGE[..., :1])
    bright = draw("color_jitter(0.3, 0, 0)", 50).mean((1, 2, 3)) / IMAGE.mean()
    assert bright.min() < 0.8 and bright.max() > 1.15


@for_each(
    ("text", "changed"),
    [
        ("color_jitter(0.5, probability=0.3)", None),
        ("grayscale(0.3)", np.asarray(PIL.Image.fromarray(PHOTO).convert("L").convert("RGB"), np.float32)),
        ("solarize(0.3)", np.where(PHOTO < 128, PHOTO, 255 - PHOTO).astype(np.float32)),
        ("gaussian_blur(0.3)", None),
    ],
)
def test_probability_and_result(text, changed):
    results = draw(text, 200)
    is_changed = np.any(results != IMAGE, axis=(1, 2, 3))
    assert 0.2 < is_changed.mean() < 0.4
    if changed is not None:
        assert np.abs(results[is_changed] - changed).max() < 1  # Pillow rounds


def test_blur_is_a_gaussian_whose_weights_end_at_the_border():
    [result] = draw("gaussian_blur(1.0, 1.5, 1.5)", 1)
    blurred, weights = (
        scipy.ndimage.gaussian_filter(x, 1.5, mode="constant", truncate=8, axes=(0, 1))
        for x in (IMAGE, np.ones_like(IMAGE))
    )
    np.testing.assert_allclose(result, blurred / weights, atol=0.01)
    spread = [np.abs(image - IMAGE).mean() for image in draw("gaussian_blur(1.0)", 50)]
    assert min(spread) < 1 < 5 < max(spread)
