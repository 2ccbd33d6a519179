"""Colour jitter; the other colour operations are those of RandAugment (test_randaugment.py)."""

import numpy as np
import PIL.Image
import PIL.ImageEnhance
import pytest
import scipy.stats
import tensorflow as tf
from augmented import IMAGE, PHOTO, check_determinism, draw

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
