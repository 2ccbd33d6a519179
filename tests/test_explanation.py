"""`keras_vit.explain`: the arrays of the analyses, and the figure that shows them, drawn when it is asked for."""

import sys

import keras
import numpy as np
import pytest
from drawn import draw
from faults import for_each
from PIL import Image

import keras_vit
from keras_vit import analysis


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The current folder, with an image."""
    monkeypatch.chdir(tmp_path)
    draw(0).save("cat.jpg")
    return tmp_path


@pytest.fixture(scope="module")
def model(workplace):
    """Two blocks and a trained head, for images of 20 pixels of which patches cover 16."""
    model = workplace.small_model(image_size=20, num_layers=2)
    model.get_layer("head").kernel.assign(np.random.default_rng(0).normal(size=(16, 3)))
    return model


def test_the_arrays_are_those_of_the_analyses(here, model):
    found = keras_vit.explain(model, "cat.jpg", top=2, layer="block_00", num_heads=1)
    inputs = keras_vit.preprocess("cat.jpg", model.preprocessing)
    scores = np.exp(model.predict(inputs, verbose=0)[0])
    best = np.argsort(-scores)[:2]
    assert [label for label, _ in found.answers] == [model.labels[n] for n in best]
    np.testing.assert_allclose([score for _, score in found.answers], (scores / scores.sum())[best], rtol=1e-5)
    np.testing.assert_allclose(found.image, (0.5 * inputs[0] + 0.5)[:16, :16], atol=1e-6)
    np.testing.assert_array_equal(found.heads, analysis.head_maps(model, inputs, "block_00")[0])
    np.testing.assert_array_equal(found.rollout, analysis.attention_rollout(model, inputs)[0])
    assert found.title == "small: cat.jpg" and found.heads.shape == (2, 2, 2)
    assert keras_vit.explain(model, Image.open("cat.jpg")).title == "small"
    texts = {text.get_text() for text in found.figure.axes[0].texts}
    assert {"small: cat.jpg", "predictions"} <= texts and sum(text.startswith("head ") for text in texts) == 1


def test_the_figure_is_drawn_once_and_saved(here, model):
    found = keras_vit.explain(model, "cat.jpg", title="mine")
    found.save("cat.png")
    assert found.figure is found.figure and found._repr_png_().startswith(b"\x89PNG")
    with Image.open("cat.png") as image:
        np.testing.assert_array_equal(image.size, 100 * found.figure.get_size_inches())


def test_the_arrays_need_no_matplotlib(here, model, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    found = keras_vit.explain(model, "cat.jpg")
    with pytest.raises(ImportError, match="plots need matplotlib: pip install"):
        found.save("cat.png")
    assert not (here / "cat.png").exists()


def test_a_model_with_a_new_head(here, model):
    new = keras_vit.Model(model.input, keras.layers.Dense(2, name="new")(model.get_layer("pooling").output))
    found, plain = keras_vit.explain(new, "cat.jpg"), keras_vit.explain(model, "cat.jpg")
    assert [label for label, _ in found.answers] != [label for label, _ in plain.answers] and len(found.answers) == 2
    np.testing.assert_allclose(found.rollout, plain.rollout, atol=1e-6)
    np.testing.assert_array_equal(found.image, plain.image)


def _resnet():
    config = keras_vit.BiTConfig(name="r", image_size=32, stage_sizes=(1,), width_factor=1, classes=2)
    return keras_vit.BiTResNet(config)


@for_each(
    ("make", "images", "arguments", "message"),
    [
        (None, ["cat.jpg", "cat.jpg"], {}, "image must be one image; got 2"),
        (None, "cat.jpg", {"num_heads": 0}, "num_heads must be an integer of at least 1"),
        (None, "cat.jpg", {"layer": "block_07"}, "layers must be one of 'block_00'"),
        (_resnet, "cat.jpg", {}, "model must have transformer blocks with attention weights"),
    ],
)
def test_mistakes(here, model, make, images, arguments, message):
    with pytest.raises(ValueError, match=message):
        keras_vit.explain(make() if make else model, images, **arguments)
