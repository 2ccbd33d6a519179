"""The HTML of the results: what is shown, and that nothing in it runs."""

import base64
import io
import re

import numpy as np
from PIL import Image

from keras_vit.demo import markup


def test_bars_are_as_long_as_the_scores():
    shown = markup.answers([("cat", 0.75), ("dog", 0.125), ("fox", 0.0)])
    assert re.findall(r"width: ([\d.]+)%", shown) == ["75.0", "12.5", "0.0"]
    assert re.findall(r"kv-score\">([\d.]+ %)", shown) == ["75.0 %", "12.5 %", "0.0 %"]
    assert re.findall(r"kv-label\">(\w+)", shown) == ["cat", "dog", "fox"]


def test_labels_and_messages_are_text():
    evil = "<script>alert('\"')</script>"
    for shown in (
        markup.answers([(evil, 0.5)]),
        markup.status(evil, "error"),
        markup.times({evil: 1.0}),
        markup.gallery([(evil, np.zeros((2, 2, 3), "uint8"))], 4),
        markup.figures([(evil, np.zeros((2, 2, 3), "uint8"))]),
    ):
        assert "<script" not in shown and "&lt;script&gt;" in shown and 'alt="<' not in shown


def test_figures_hold_their_pixels():
    image = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype="uint8")
    shown = markup.figures([("a", image), ("b", image[:3])])
    found = [
        np.asarray(Image.open(io.BytesIO(base64.b64decode(text)))) for text in re.findall(r"base64,([^\"]+)", shown)
    ]
    np.testing.assert_array_equal(found[0], image)
    np.testing.assert_array_equal(found[1], image[:3])


def test_the_gallery_is_of_small_images_in_their_order():
    levels = [np.full((30, 400, 3), level, "uint8") for level in (10, 200)]
    shown = markup.gallery([("a", levels[0]), ("b", levels[1])], 5)
    assert re.findall(r'data-place="(\d)" title="(\w)"', shown) == [("0", "a"), ("1", "b")]
    for text, level in zip(re.findall(r"base64,([^\"]+)", shown), (10, 200), strict=True):
        image = np.asarray(Image.open(io.BytesIO(base64.b64decode(text))))
        assert image.shape == (12, 160, 3) and (image == level).all()


def test_times_are_whole_milliseconds():
    assert re.findall(r"<b>(.*?)</b>", markup.times({"model": 12.4, "attention": 0.6})) == ["12 ms", "1 ms"]


def test_nothing_is_fetched():
    assert "http" not in markup.STYLE and "@import" not in markup.STYLE and "url(" not in markup.STYLE
