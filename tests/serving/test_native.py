"""SavedModels that resize nothing: the signature `native`, and models for native aspect ratios."""

import numpy as np
import pytest
import tensorflow as tf
from any_size import FAMILIES
from drawn import draw, encode
from faults import for_each
from served import LABELS, make_model
from slow_rows import slow_after

import keras_vit
from keras_vit.serving import export, fresh_process


@pytest.fixture(scope="module")
def model():
    return keras_vit.resize(make_model(), "any")


@pytest.fixture(scope="module")
def native(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("native")
    folder = export(model, folder, signatures=["native"], native_pixels=40 * 40, check=False)
    text = (folder / "README.txt").read_text()
    assert "[[[[127, 127, 127]] * 32] * 24]" in text and "'$(cat image.json)'" in text
    return tf.saved_model.load(str(folder)).signatures["native"]


@pytest.mark.parametrize("size", [(24, 32), (8, 8), (40, 40), (20, 63)])
def test_it_takes_images_of_any_size_as_they_are(model, native, size):
    pixels = np.random.default_rng(0).uniform(0, 255, (2, *size, 3)).astype("float32")
    images = (pixels / 255 - model.preprocessing.mean) / model.preprocessing.std
    expected = keras_vit.resize(model, size)(images.astype("float32"))
    np.testing.assert_allclose(native(tf.constant(pixels))["logits"], expected, atol=2e-4)


@pytest.mark.parametrize(
    ("size", "message"),
    [((48, 40), "at most 1600 pixels each; got.*48 40"), ((6, 24), "must be at most image_size; got.*6 24")],
)
def test_sizes_that_do_not_fit_are_refused(native, size, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        native(tf.zeros((1, *size, 3)))


@for_each(
    ("make", "arguments", "message"),
    [
        (make_model, {"signatures": ["native"]}, "signature 'native' needs image_size='any'"),
        (lambda: keras_vit.resize(make_model(), "native"), {"format": "onnx"}, "format must be 'saved_model'"),
        (make_model, {"native_pixels": 9}, "native_pixels belongs to the signatures"),
        (make_model, {"native_pixels": 0, "signatures": ["native"]}, "native_pixels must be an integer of at least 1"),
        (
            lambda: keras_vit.resize(make_model(), "any"),
            {"native_pixels": 767, "signatures": ["native"]},
            r"native_pixels must be at least those of the usual size, \(24, 32\); got 767",
        ),
    ],
)
def test_other_models_and_formats_are_refused(make, arguments, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        export(make(), tmp_path, **arguments)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("check", slow_after(1, [False, True]))
def test_a_model_for_native_aspect_ratios_reads_files_as_predict_does(tmp_path, check):
    """Images of several sizes in one request, each in its own aspect ratio, and one that is none."""
    model = keras_vit.resize(make_model(), "native", max_tokens=20)
    served = tf.saved_model.load(str(export(model, tmp_path, check=check))).signatures
    images = [draw(1), draw(2).crop((0, 0, 50, 12)), draw(3).crop((0, 0, 9, 40))]
    answer = served["serving_default"](tf.constant([*map(encode, images), b"no image"]))
    for place, image in enumerate(images):
        expected = keras_vit.predict(model, image, top=5)[0]
        assert [name.decode() for name in answer["classes"][place].numpy()] == [label for label, _ in expected]
        np.testing.assert_allclose(answer["scores"][place], [score for _, score in expected], atol=1e-4)
        logits = served["images_uint8"](tf.constant(np.asarray(image)[None]))["logits"]
        assert LABELS[int(np.argmax(logits))] == expected[0][0]
    assert answer["error"].numpy().tolist()[:3] == [b""] * 3 and answer["error"][3] != b""


@pytest.mark.slow
@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "SAM"])  # which has no classes
@pytest.mark.parametrize("runtime", ["saved_model", "onnx"])
def test_exports_of_every_family_give_the_numbers_of_the_model_of_each_size(family, runtime, tmp_path):
    model = keras_vit.resize(make_model(**FAMILIES[family]), "any")
    options = {"signatures": ["native"]} if runtime == "saved_model" else {"format": runtime}
    folder = export(model, tmp_path, **options)
    for size in ((24, 32), (8, 8), (16, 16), (40, 40), (8, 56), (48, 16), (64, 72)):
        pixels = np.random.default_rng(0).uniform(0, 255, (2, *size, 3)).astype("float32")
        prepared = ((pixels / 255 - model.preprocessing.mean) / model.preprocessing.std).astype("float32")
        expected = np.asarray(keras_vit.resize(model, size)(prepared))
        if runtime == "saved_model":
            found = tf.saved_model.load(str(folder)).signatures["native"](tf.constant(pixels))["logits"]
        else:
            found = fresh_process.run(runtime, folder, {"images": pixels})[0]["logits"]
        np.testing.assert_allclose(found, expected, atol=2e-5 * max(1, np.abs(expected).max()))
