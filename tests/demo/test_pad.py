"""What the drawing pad sends."""

import base64
import io

import numpy as np
import pytest
from PIL import Image

from keras_vit.demo.drawn_digits import draw_digit
from keras_vit.demo.pad import read_drawing


def address(image):
    file = io.BytesIO()
    image.save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def test_a_drawing_comes_as_it_was_sent():
    drawn = draw_digit("2")
    np.testing.assert_array_equal(read_drawing(address(drawn)), np.asarray(drawn))


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (None, "a drawing must be a PNG as a data address"),
        (7, "a drawing must be a PNG as a data address"),
        ("/etc/passwd", "a drawing must be a PNG as a data address"),
        ("file:///etc/passwd", "a drawing must be a PNG as a data address"),
        ("data:image/png;base64," + "A" * 1_000_000, "at most 1,000,000 characters"),
        ("data:image/png;base64,???", "a drawing must be in base 64; it is damaged"),
        ("data:image/png;base64,", "the drawing must be an image .*; it is empty"),
        ("data:image/png;base64,AAAA", "the drawing must be an image"),
        (address(Image.new("1", (9000, 9000))), "the drawing must have at most 64,000,000 pixels"),
    ],
)
def test_anything_else_is_refused(sent, message):
    with pytest.raises(ValueError, match=message):
        read_drawing(sent)
