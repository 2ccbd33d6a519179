"""The lists that the parser repeats, so that it need not wait for Keras, are those of the package."""

from keras_vit.checkpoints.description import LAYOUT_CHOICES
from keras_vit.cli import parser
from keras_vit.serving.formats import FORMATS


def test_formats_and_layouts():
    assert parser.FORMATS == tuple(FORMATS)
    assert sorted(parser.LAYOUTS) == sorted(set(LAYOUT_CHOICES) - {"auto"})
