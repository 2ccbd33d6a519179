"""The page without a browser: its parts, what its handlers give each of them, and how mistakes are shown."""

import asyncio

import keras
import numpy as np
import pytest
from page_models import NAME, small_digit_model

import keras_vit
from keras_vit.demo import models, server
from keras_vit.demo.models import Offers

pytestmark = pytest.mark.docs


@pytest.fixture(scope="module", autouse=True)
def _imported():
    """Gradio takes seconds to import, so the processes that run none of these tests do without."""
    global gr, page
    gr = pytest.importorskip("gradio", reason="needs the extra [test-docs]")
    from keras_vit.demo import page


@pytest.fixture(scope="module")
def model():
    return small_digit_model()


@pytest.fixture(scope="module")
def handlers(model):
    return page._Handlers(Offers(model, "w"))


def picked(index):
    """The event of picking an example."""
    return gr.SelectData(None, {"index": index, "value": None})


def built(*arguments):
    """The page; built inside a loop, for Gradio makes one for each of its locks elsewhere, and closes none of them."""

    async def build():
        return keras_vit.demo.build_page(*arguments)

    return asyncio.run(build())


def test_the_page_offers_the_model_first():
    config = built(small_digit_model(), "model.keras").get_config_file()
    values = {part["props"].get("label"): part["props"] for part in config["components"]}
    assert values["Model"]["value"] == NAME and values["Weights"]["value"] == "model.keras"
    assert config["analytics_enabled"] is False
    visible = {part["props"].get("elem_id"): part["props"].get("visible") for part in config["components"]}
    assert visible["examples"] is True and visible["depth"] is visible["figures"] is False


def test_one_image_is_computed_at_a_time():
    page = built()
    computing = [function for function in page.fns.values() if function.concurrency_id == "model"]
    assert len(computing) == 3 and all(function.concurrency_limit == 1 for function in computing)
    assert all(function.api_visibility == "private" for function in page.fns.values())


def test_an_example_is_answered_as_predict_does(handlers, model):
    said, figures, depth, answers, show_heads, heads, state = handlers.show_example(NAME, "w", picked(4))
    expected = keras_vit.predict(model, models.example_digits()["4"])[0]
    assert answers.value["label"].strip() == expected[0][0]
    found = [(part["label"].strip(), part["confidence"]) for part in answers.value["confidences"]]
    assert [label for label, _ in found] == [label for label, _ in expected]
    np.testing.assert_allclose([score for _, score in found], [score for _, score in expected], atol=1e-6)
    label, score = expected[0]
    assert said.splitlines()[0] == f"{NAME}: {label} ({100 * score:.1f} %)."
    assert said.splitlines()[1].startswith("preprocessing ")
    assert [part.visible for part in (figures, depth, answers, show_heads, heads)] == [True, True, True, True, False]
    figures, heads = page._change_depth(state, 1)
    assert figures[1][1] == "Attention rollout up to block_00" and heads.visible is False
    assert len(handlers.show_heads(state, 1).value) == 2


def test_what_needs_an_image_says_so_without_one(handlers):
    """Gradio forgets a state after an hour."""
    for function in (handlers.show_heads, page._change_depth):
        with pytest.raises(gr.Error, match="No image is chosen.*: pick an image"):
            function(None, 1)


def test_equal_labels_are_answered_one_by_one():
    model = small_digit_model()
    model.labels = ["crane"] * 10
    *_, answers, _, _, _ = page._Handlers(Offers(model, "w")).show_example(NAME, "w", picked(0))
    assert len(answers.value["confidences"]) == 5


@pytest.mark.parametrize("index", [10, -1, "0", None])
def test_other_examples_are_refused(handlers, index):
    with pytest.raises(gr.Error, match="Index must be one of 0, 1"):
        handlers.show_example(NAME, "w", picked(index))


def test_errors_are_shown_as_text(handlers, tmp_path):
    name = "<img src=x onerror=alert(1)>.png"
    (tmp_path / name).write_bytes(b"no image")
    with pytest.raises(gr.Error, match="must be an image") as error:
        handlers.show_file(NAME, "w", tmp_path / name)
    assert "<" not in error.value.message and "&lt;img" in error.value.message


def test_another_model_brings_its_weights_and_examples(handlers):
    weights, gallery, *results = handlers.change_model("ViT-B_32")
    assert weights.value == "imagenet21k+imagenet2012" and results[0] == page._HINT and results[-1] is None
    assert [part["caption"] for part in gallery.value] == list(models.SCENES) and gallery.columns == 4
    with pytest.raises(gr.Error, match="Model must be one of"):
        handlers.change_model("/etc/passwd")


def test_a_model_that_is_no_classifier_is_refused_before_anything_is_served(monkeypatch):
    monkeypatch.setattr(server, "wait", pytest.fail)
    with pytest.raises(ValueError, match="model must be a classifier of keras_vit"):
        keras_vit.demo.launch(model=keras.Sequential())


def test_nothing_is_fetched():
    style = page._STYLE.read_text()
    assert "http" not in style and "@import" not in style and "url(" not in style
