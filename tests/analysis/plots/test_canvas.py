"""Figures: a notebook shows them."""

import io

import numpy as np
from PIL import Image

from keras_vit.analysis import plots

# IPython asks an object for this image where pyplot has not told it how to draw figures.
IMAGES = np.linspace(0, 1, 64).reshape(1, 8, 8, 1)


def test_notebook_shows_a_figure_pixel_by_pixel():
    figure = plots.attention_overlay(IMAGES, np.ones((1, 2, 2)))
    shown = Image.open(io.BytesIO(figure._repr_png_()))
    assert shown.size == tuple(np.rint(figure.get_size_inches() * figure.dpi))
    written = io.BytesIO()
    figure.savefig(written, format="png")
    np.testing.assert_array_equal(np.asarray(shown), np.asarray(Image.open(written)))
    assert np.asarray(shown.convert("L")).std() > 10
